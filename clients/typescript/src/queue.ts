/** What is put in comes out again, in order, for one reader; the requests of a call that goes both ways. */
export class Queue<T> implements AsyncIterable<T> {
  private readonly items: T[] = [];
  private wake: (() => void) | undefined;
  private closed = false;

  put(item: T): void {
    this.items.push(item);
    this.wake?.();
  }

  /** Nothing more comes; what is there is still given. */
  close(): void {
    this.closed = true;
    this.wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void> {
    for (;;) {
      while (this.items.length > 0) yield this.items.shift()!;
      if (this.closed) return;
      await new Promise<void>((resolve) => (this.wake = resolve));
    }
  }
}
