import type { Client } from "@connectrpc/connect";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import type { Connection } from "./connection.js";
import { MeshError } from "./errors.js";
import type {
  AcquireResponse,
  EnvironmentService,
  EvaluateResponse,
  ResetResponse,
  StepResponse,
} from "./gen/openclaw_rl/v1/environment_pb.js";
import { duration, int64 } from "./messages.js";
import type { CallOptions } from "./options.js";

const RELEASE_TIMEOUT_MS = 10_000;
/** Bounds of the time that a lease is thought to last: the server's clock may be another. */
const SHORTEST_MS = 600;
const LONGEST_MS = 60_000;

/** An action: a function's name and arguments. */
export interface Action {
  name: string;
  arguments?: Record<string, unknown>;
}

/**
 * A leased environment. It is renewed by itself as long as this program runs, and given back with `release()` or at the
 * end of an `await using`.
 */
export class Lease implements AsyncDisposable {
  /** Steps done since the last reset. */
  steps = 0;
  /** Why the lease can't be renewed any more; undefined while it is well. */
  lost: MeshError | undefined;
  private expires: Date;
  private timer: NodeJS.Timeout | undefined;
  private closed = false;

  constructor(
    private readonly connection: Connection,
    private readonly raw: Client<typeof EnvironmentService>,
    /** As the server told it. */
    readonly acquired: AcquireResponse,
    renew: boolean,
    ttlSeconds?: number,
  ) {
    this.expires = timestampDate(acquired.expiresAt!);
    const lasts = ttlSeconds === undefined ? this.expires.getTime() - Date.now() : ttlSeconds * 1000;
    if (renew) this.renewLater(Math.min(Math.max(lasts, SHORTEST_MS), LONGEST_MS));
  }

  get id(): string {
    return this.acquired.leaseId;
  }

  /** When it ends unless it is renewed, as last told. */
  get expiresAt(): Date {
    return this.expires;
  }

  /** Put it into the initial state of a task (none without an id). */
  async reset(taskId = "", options: CallOptions & { seed?: number | bigint } = {}): Promise<ResetResponse> {
    const { seed, ...rest } = options;
    const request = { leaseId: this.id, taskId, ...(seed === undefined ? {} : { seed: int64("seed", seed) }) };
    const answer = await this.call("Reset", rest, (o) => this.raw.reset(request, o));
    this.steps = 0;
    return answer;
  }

  /**
   * Do one action. When the call fails on the way, the same call may be repeated: the server does a step once.
   *
   * @param options `seconds`: longest time for the action; by default the server's.
   */
  async step(action: Action, options: CallOptions & { seconds?: number } = {}): Promise<StepResponse> {
    const { seconds, ...rest } = options;
    const step = this.steps + 1;
    const request = {
      leaseId: this.id,
      step: BigInt(step),
      actionJson: JSON.stringify({ name: action.name, arguments: action.arguments ?? {} }),
      ...(seconds === undefined ? {} : { timeout: duration(seconds) }),
    };
    const answer = await this.call("Step", rest, (o) => this.raw.step(request, o));
    this.steps = step;
    return answer;
  }

  /** Run the task's check. */
  evaluate(options: CallOptions = {}): Promise<EvaluateResponse> {
    return this.call("Evaluate", options, (o) => this.raw.evaluate({ leaseId: this.id }, o));
  }

  /** Begin its time anew; done by itself unless it was acquired with `renew: false`. */
  async renew(options: CallOptions = {}): Promise<Date> {
    const answer = await this.call("Renew", options, (o) => this.raw.renew({ leaseId: this.id }, o));
    return (this.expires = timestampDate(answer.expiresAt!));
  }

  /** Give it back; any number of times. */
  async release(options: CallOptions = {}): Promise<void> {
    this.closed = true;
    clearTimeout(this.timer);
    await this.connection.unary("EnvironmentService/Release", { timeoutMs: RELEASE_TIMEOUT_MS, ...options }, (o) =>
      this.raw.release({ leaseId: this.id }, o),
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  private async call<T>(name: string, options: CallOptions, call: (options: CallOptions) => Promise<T>): Promise<T> {
    const method = `EnvironmentService/${name}`;
    if (this.closed) {
      throw new MeshError({
        code: "FAILED_PRECONDITION",
        reason: "LEASE_CLOSED",
        message: `lease ${this.id} was given back by this program`,
        advice: "Acquire another one",
        address: this.connection.address,
        method,
      });
    }
    return this.connection.unary(method, options, call);
  }

  /** Renew at a third of the time that it lasts, and again and again. */
  private renewLater(lasts: number): void {
    this.timer = setTimeout(() => void this.renewNow(lasts), lasts / 3);
    this.timer.unref();
  }

  private async renewNow(lasts: number): Promise<void> {
    try {
      await this.renew({ timeoutMs: Math.max(1000, lasts / 2) });
      this.lost = undefined;
    } catch (error) {
      this.lost = MeshError.from(error);
      if (!this.lost.retryable && this.lost.code !== "DEADLINE_EXCEEDED") return; // it has ended
    }
    if (!this.closed) this.renewLater(lasts);
  }
}
