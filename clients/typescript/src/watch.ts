import { setTimeout } from "node:timers/promises";
import type { Connection } from "./connection.js";
import { MeshError } from "./errors.js";
import type { CallOptions } from "./options.js";
import { Reading } from "./reading.js";
import { CallStream, type Open } from "./stream.js";

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;

/** Options of a watch. */
export interface WatchOptions extends CallOptions {
  /** Connect again when the stream breaks; by default as the client's options say. */
  reconnect?: boolean;
  /** Told of each break, before the pause that follows it. */
  onBreak?: (error: MeshError) => void;
}

/** Pause before try number `failures` (from 1), in milliseconds: growing, with chance in it. */
export function pauseAfter(failures: number, retryAfter?: number): number {
  const grown = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(failures - 1, 10));
  return Math.max(grown * (0.75 + Math.random() / 2), (retryAfter ?? 0) * 1000);
}

/** Wait; less when the signal is aborted. */
export async function sleep(ms: number, signal: AbortSignal): Promise<void> {
  await setTimeout(ms, undefined, { signal }).catch(() => {});
}

/**
 * A stream of news that is to go on until the caller ends it: it connects again when it breaks, with growing pauses.
 * It ends when the loop is left, with `cancel()`, `await using`, or when its signal is aborted, without an error.
 */
export class Watch<T> extends Reading<T> {
  private readonly stopper = new AbortController();
  private readonly news: AsyncGenerator<T, void>;
  private current: CallStream<T> | undefined;

  constructor(
    private readonly connection: Connection,
    private readonly method: string,
    private readonly open: Open<T>,
    private readonly options: WatchOptions = {},
  ) {
    super();
    this.news = this.run();
  }

  next(): Promise<IteratorResult<T>> {
    return this.news.next();
  }

  /** End it, at the server too. */
  cancel(): void {
    this.stopper.abort();
    this.current?.cancel();
  }

  private async *run(): AsyncGenerator<T, void> {
    const { signal, timeoutMs, onBreak } = this.options;
    const reconnect = this.options.reconnect ?? this.connection.reconnect;
    const ended = signal ? AbortSignal.any([signal, this.stopper.signal]) : this.stopper.signal;
    for (let failures = 0; !ended.aborted;) {
      const callOptions = { signal: ended, ...(timeoutMs === undefined ? {} : { timeoutMs }) };
      this.current = new CallStream(this.connection, this.method, this.open, callOptions);
      let failure: MeshError;
      try {
        for await (const item of this.current) {
          failures = 0;
          yield item;
        }
        if (!reconnect || ended.aborted) return;
        failure = this.endedByServer();
      } catch (error) {
        if (ended.aborted) return;
        failure = MeshError.from(error);
        if (!reconnect || !failure.retryable) throw failure;
      }
      failures += 1;
      onBreak?.(failure);
      await sleep(pauseAfter(failures, failure.retryAfter), ended);
    }
  }

  private endedByServer(): MeshError {
    const { address } = this.connection;
    return new MeshError({ code: "UNAVAILABLE", message: "it has ended the stream", address, method: this.method });
  }
}
