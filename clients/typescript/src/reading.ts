/** What is read once with `for await`, and ended by leaving the loop, by `cancel()` or by the end of an `await using`. */
export abstract class Reading<T> implements AsyncIterableIterator<T>, AsyncDisposable {
  abstract next(): Promise<IteratorResult<T>>;

  /** End it, at the server too. */
  abstract cancel(): void;

  /** What a loop calls that is left early. */
  async return(): Promise<IteratorResult<T>> {
    this.cancel();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cancel();
  }
}
