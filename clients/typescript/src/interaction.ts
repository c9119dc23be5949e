import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import type { Connection } from "./connection.js";
import { MeshError } from "./errors.js";
import {
  InteractRequestSchema,
  type EnvironmentService,
  type InteractRequest,
  type InteractResponse,
} from "./gen/openclaw_rl/v1/environment_pb.js";
import type { ToolDefinitionSchema, Turn } from "./gen/openclaw_rl/v1/turn_pb.js";
import { messagesOf, type Conversation } from "./messages.js";
import type { CallOptions } from "./options.js";
import { turnOptions, type Sampling, type TurnFields } from "./policy.js";
import { Queue } from "./queue.js";
import { CallStream } from "./stream.js";

/** Options of a live session. */
export interface InteractOptions extends CallOptions, TurnFields {
  sampling?: Sampling;
  /** Functions that the policy may call. */
  tools?: MessageInitShape<typeof ToolDefinitionSchema>[];
}

/** A live session: what is said goes in, the policy's answers come out, and the mesh keeps the conversation. */
export class Interaction implements AsyncDisposable {
  private readonly requests = new Queue<InteractRequest>();
  private readonly responses: CallStream<InteractResponse>;
  private first = true;

  constructor(
    private readonly connection: Connection,
    raw: Client<typeof EnvironmentService>,
    private readonly options: InteractOptions,
  ) {
    const open = (o: CallOptions): AsyncIterable<InteractResponse> => raw.interact(this.requests, o);
    this.responses = new CallStream(connection, "EnvironmentService/Interact", open, options);
  }

  /**
   * Say something, and read the answer: the iterator gives the new texts and returns the complete turn. With `turn()`
   * only the latter. One thing is said at a time; leaving an answer early ends the session.
   */
  async *say(conversation: Conversation): AsyncGenerator<string, Turn> {
    const { tools, sampling } = this.options;
    const head = this.first
      ? { turn: turnOptions(this.options), ...(tools ? { tools } : {}), ...(sampling ? { sampling } : {}) }
      : {};
    this.first = false;
    this.requests.put(create(InteractRequestSchema, { ...head, messages: messagesOf(conversation) }));
    let complete = false;
    try {
      for (;;) {
        const { done, value } = await this.responses.next();
        if (done) break;
        if (value.event.case === "content") yield value.event.value;
        else if (value.event.case === "turn") {
          complete = true;
          return value.event.value;
        }
      }
    } finally {
      if (!complete) this.responses.cancel(); // what is left of the answer must not be taken for the next one's
    }
    const method = "EnvironmentService/Interact";
    const { address } = this.connection;
    throw new MeshError({ code: "UNAVAILABLE", message: "the session broke off", address, method });
  }

  /** Say something, and wait for the complete turn. */
  async turn(conversation: Conversation): Promise<Turn> {
    const answer = this.say(conversation);
    for (;;) {
      const { done, value } = await answer.next();
      if (done) return value;
    }
  }

  /** Say no more, and wait until the server has ended the session. */
  async close(): Promise<void> {
    this.requests.close();
    if (!this.first) for await (const _ of this.responses);
    this.responses.cancel();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
