import type { CallOptions as ConnectCallOptions } from "@connectrpc/connect";
import type { Connection } from "./connection.js";
import { checkTimeout, type CallOptions } from "./options.js";
import { Reading } from "./reading.js";

/** Starts a streaming call with these options. */
export type Open<T> = (options: ConnectCallOptions) => AsyncIterable<T>;

/**
 * The answers of a streaming call, to be read once with `for await`. Leaving the loop, `cancel()` and the end of an
 * `await using` cancel the call at the server, and the loop ends; a signal that is aborted ends it with a `MeshError`.
 */
export class CallStream<T> extends Reading<T> {
  private readonly stopper = new AbortController();
  private iterator: AsyncIterator<T> | undefined;
  private over = false;

  constructor(
    private readonly connection: Connection,
    private readonly method: string,
    private readonly open: Open<T>,
    private readonly options: CallOptions = {},
  ) {
    super();
  }

  async next(): Promise<IteratorResult<T>> {
    if (this.over) return { done: true, value: undefined };
    try {
      this.iterator ??= this.begin();
      const result = await this.iterator.next();
      if (result.done) this.finish();
      return result;
    } catch (error) {
      const cancelled = this.over;
      this.finish();
      if (cancelled) return { done: true, value: undefined };
      throw await this.connection.explain(this.method, error, this.options.signal);
    }
  }

  /** End the call, at the server too. */
  cancel(): void {
    this.finish();
  }

  private begin(): AsyncIterator<T> {
    this.connection.assertOpen(this.method);
    const { timeoutMs, signal } = this.options;
    const both = signal ? AbortSignal.any([signal, this.stopper.signal]) : this.stopper.signal;
    return this.open({ signal: both, ...(timeoutMs === undefined ? {} : { timeoutMs: checkTimeout(timeoutMs) }) })[
      Symbol.asyncIterator
    ]();
  }

  private finish(): void {
    this.over = true;
    this.stopper.abort();
  }
}
