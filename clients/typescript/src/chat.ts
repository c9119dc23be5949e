import type { Connection } from "./connection.js";
import { MeshError } from "./errors.js";
import type {
  ChatDelta,
  ChatEnd,
  ChatResponse,
  ChatStart,
  GenerateResponse,
  GenerationEnd,
  TokenChunk,
} from "./gen/openclaw_rl/v1/policy_pb.js";
import type { ChatMessage } from "./gen/openclaw_rl/v1/turn_pb.js";
import type { CallOptions } from "./options.js";
import { Reading } from "./reading.js";
import { CallStream, type Open } from "./stream.js";

/** An answer's pieces as they are made: of a `ChatStream` or a `GenerateStream`. */
abstract class Pieces<R, P> extends Reading<P> {
  private readonly responses: CallStream<R>;

  constructor(
    private readonly connection: Connection,
    private readonly method: string,
    open: Open<R>,
    options: CallOptions,
  ) {
    super();
    this.responses = new CallStream(connection, method, open, options);
  }

  /** Reads a response; undefined when it has no piece for the caller. */
  protected abstract take(response: R): P | undefined;
  /** The last message has come. */
  protected abstract get complete(): boolean;

  private cancelled = false;

  async next(): Promise<IteratorResult<P>> {
    for (;;) {
      const result = await this.responses.next();
      if (result.done) {
        if (!this.complete && !this.cancelled) {
          const { address } = this.connection;
          throw new MeshError({ code: "UNAVAILABLE", message: "the answer broke off", address, method: this.method });
        }
        return { done: true, value: undefined };
      }
      const piece = this.take(result.value);
      if (piece !== undefined) return { done: false, value: piece };
    }
  }

  /** End the answer, at the server too: it is recorded as cancelled. */
  cancel(): void {
    this.cancelled = true;
    this.responses.cancel();
  }
}

/** A chat answer as it is made: `for await (const piece of stream)` gives its pieces, once. */
export class ChatStream extends Pieces<ChatResponse, ChatDelta> {
  private started: ChatStart | undefined;
  private ended: ChatEnd | undefined;

  /** Id of the turn, for feedback; empty before the first piece. */
  get turnId(): string {
    return this.started?.turnId ?? "";
  }

  /** Session of the turn, for the next request; empty before the first piece. */
  get sessionId(): string {
    return this.started?.sessionId ?? "";
  }

  /** Policy version that was active as the answer began; undefined before the first piece. */
  get policyVersion(): bigint | undefined {
    return this.started?.policyVersion;
  }

  /** Why it ended, its tokens and their versions; undefined before it has ended. */
  get end(): GenerationEnd | undefined {
    return this.ended?.generation;
  }

  /** Read what is left, and give the whole message, its tool calls included. */
  async message(): Promise<ChatMessage> {
    for await (const _ of this);
    if (!this.ended?.message) {
      throw new MeshError({ code: "CANCELLED", message: "the answer was cancelled before it was complete" });
    }
    return this.ended.message;
  }

  /** Read what is left, and give the whole text. */
  async text(): Promise<string> {
    return (await this.message()).content;
  }

  protected override get complete(): boolean {
    return this.ended !== undefined;
  }

  protected override take({ event }: ChatResponse): ChatDelta | undefined {
    if (event.case === "start") this.started = event.value;
    else if (event.case === "end") this.ended = event.value;
    else if (event.case === "delta") return event.value;
    return undefined;
  }
}

/** Sampled tokens as they come. */
export class GenerateStream extends Pieces<GenerateResponse, TokenChunk> {
  /** Why it ended, and which version produced which tokens; undefined before it has ended. */
  end: GenerationEnd | undefined;

  /** Read what is left, and give all that came. */
  async tokens(): Promise<TokenChunk[]> {
    const found: TokenChunk[] = [];
    for await (const token of this) found.push(token);
    return found;
  }

  protected override get complete(): boolean {
    return this.end !== undefined;
  }

  protected override take({ event }: GenerateResponse): TokenChunk | undefined {
    if (event.case === "end") this.end = event.value;
    return event.case === "token" ? event.value : undefined;
  }
}
