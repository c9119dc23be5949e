/** A live session over gRPC: messages come in as they are said, the policy's turns go out. */
import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { timestampNow } from "@bufbuild/protobuf/wkt";
import { invalid, type PolicyClient } from "@openclaw-rl/client";
import {
  InteractResponseSchema,
  OnBehalfOfSchema,
  TurnOptionsSchema,
  TurnSchema,
  type ChatMessage,
  type InteractRequest,
  type InteractResponse,
  type Turn,
  type TurnOptions,
} from "@openclaw-rl/client/v1";
import { unavailable } from "./faults.js";
import type { SessionBook } from "./sessions.js";
import type { Store } from "./store.js";
import { sleep } from "./time.js";

const MOST_MESSAGES = 5000;
const RECORD_MS = 10_000; // for which the record of the last turn is waited for before its session is ended

export class LiveSession {
  private options: TurnOptions | undefined;
  private done = false;
  private messages: ChatMessage[] = [];
  private tools: InteractRequest["tools"] = [];
  private sampling: InteractRequest["sampling"];
  private last = "";

  /** @param address of who calls: for the policy server the turns are this client's. */
  constructor(
    private readonly policy: PolicyClient,
    private readonly book: SessionBook,
    private readonly store: Store,
    private readonly address: string,
  ) {}

  /** Answer until the client says no more. */
  async *run(requests: AsyncIterable<InteractRequest>, signal: AbortSignal): AsyncGenerator<InteractResponse> {
    for await (const request of requests) {
      this.take(request);
      if (request.messages.length > 0) yield* this.answer(signal);
    }
    if (!this.done || !this.options?.sessionId) return;
    // Its record would open the session again.
    for (let waited = 0; waited < RECORD_MS && !this.recorded() && !signal.aborted; waited += 20)
      await sleep(20, signal);
    this.book.end(this.options.sessionId);
  }

  private recorded(): boolean {
    return !this.last || this.store.get("SELECT 1 FROM turns WHERE id = ?", this.last) !== undefined;
  }

  private take(request: InteractRequest): void {
    if (!this.options) {
      const client = `:${createHash("sha256").update(this.address).digest("hex").slice(0, 32)}`;
      this.options = create(TurnOptionsSchema, request.turn);
      this.options.onBehalfOf = create(OnBehalfOfSchema, { client });
      delete this.options.episode; // none is run here
      this.done = this.options.sessionDone;
      this.options.sessionDone = false;
    }
    const count = this.messages.length + request.messages.length;
    if (count > MOST_MESSAGES)
      throw invalid("messages", `${count} messages`, `at most ${MOST_MESSAGES} in one session`);
    this.messages.push(...request.messages);
    if (request.tools.length > 0) this.tools = request.tools;
    if (request.sampling) this.sampling = request.sampling;
  }

  private async *answer(signal: AbortSignal): AsyncGenerator<InteractResponse> {
    const { messages, tools, sampling, options } = this;
    const turn: Turn = create(TurnSchema, {
      messages: [...messages],
      tools,
      requestedAt: timestampNow(),
      api: "grpc.chat",
      declaredType: options!.turnType,
      ...(sampling ? { sampling } : {}),
    });
    const request = { messages, tools, turn: options!, ...(sampling ? { sampling } : {}) };
    const method = "PolicyService/Chat";
    const { connection } = this.policy;
    try {
      for await (const { event } of this.policy.raw.chat(request, { signal })) {
        if (event.case === "start") {
          const { turnId, sessionId, policyVersion, model } = event.value;
          Object.assign(turn, { turnId, sessionId, policyVersion, model, firstTokenAt: timestampNow() });
          options!.sessionId = sessionId;
        } else if (event.case === "delta" && event.value.content) {
          yield create(InteractResponseSchema, { event: { case: "content", value: event.value.content } });
        } else if (event.case === "end") {
          const { message, generation } = event.value;
          if (message) {
            turn.response = message;
            messages.push(message);
          }
          Object.assign(turn, { finishReason: generation?.finishReason ?? 0, finishedAt: timestampNow() });
          this.last = turn.turnId;
          yield create(InteractResponseSchema, { event: { case: "turn", value: turn } });
          return;
        }
      }
    } catch (error) {
      throw await connection.explain(method, error, signal); // what the policy server says of the request
    }
    throw unavailable("the policy's response broke off");
  }
}
