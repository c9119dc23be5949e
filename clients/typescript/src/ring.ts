import { fromBinary, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import type { CallOptions as ConnectCallOptions } from "@connectrpc/connect";
import type { Connection } from "./connection.js";
import type { EnvironmentClient } from "./environment.js";
import { MeshError } from "./errors.js";
import { AckStatus, type Ack } from "./gen/openclaw_rl/v1/common_pb.js";
import { PolicyEventSchema, type PolicyEvent } from "./gen/openclaw_rl/v1/environment_pb.js";
import { SampleSchema, TransitionSchema, type Sample, type Transition } from "./gen/openclaw_rl/v1/turn_pb.js";
import type { JudgeClient } from "./judge.js";
import { eventId, MemoryOutbox, type Outbox, type OutboxEntry } from "./outbox.js";
import type { TrainerClient } from "./trainer.js";
import { MAX_MESSAGE_BYTES } from "./version.js";
import { pauseAfter, sleep } from "./watch.js";

const REQUEST_BYTES = 1024 * 1024;
const TOO_LARGE = MAX_MESSAGE_BYTES - 64 * 1024;

/** Options of a ring stream. */
export interface RingOptions {
  /** Messages that may be unanswered at a time; 256 by default. */
  window?: number;
  /** Messages of one request; 64 by default. */
  batch?: number;
  /** Time after which a receiver that answers nothing is reported and left, in milliseconds; 60,000 by default. */
  ackTimeoutMs?: number;
  /** Told of each message that is settled: "accepted", "duplicate" or "rejected". */
  onSettled?: (id: string, status: "accepted" | "duplicate" | "rejected", reason: string) => void;
  /** Told of each failure of the stream; it goes on by itself. */
  onError?: (error: MeshError) => void;
}

type OpenRing<D extends DescMessage> = (
  requests: AsyncIterable<MessageShape<D>[]>,
  options: ConnectCallOptions,
) => AsyncIterable<{ acks: Ack[] }>;

/**
 * Carries an outbox to the next component of the ring: a window of messages in flight, each acknowledged by its id and
 * only then forgotten; a stream that breaks is opened again, with growing pauses, and what was not acknowledged is sent
 * again. It goes on until it is closed.
 */
export class RingSender<D extends DescMessage> implements AsyncDisposable {
  /** The stream to the receiver is open. */
  connected = false;
  /** Why the stream broke last; undefined when it is well. */
  lastError: MeshError | undefined;
  /** Messages that the receiver has, and those that it refused, since the start. */
  delivered = 0;
  rejected = 0;

  private readonly ended = new AbortController();
  private readonly inFlight = new Set<string>(); // ids in the order in which they were sent
  private readonly answered = new Set<string>(); // on this stream
  private headSince = 0;
  private wake: () => void = () => {};
  private drained: (() => void)[] = [];
  private readonly running: Promise<void>;
  private readonly options: Required<Pick<RingOptions, "window" | "batch" | "ackTimeoutMs">> & RingOptions;

  constructor(
    private readonly connection: Connection,
    private readonly method: string,
    private readonly schema: D,
    private readonly outbox: Outbox,
    private readonly open: OpenRing<D>,
    options: RingOptions = {},
  ) {
    this.options = { window: 256, batch: 64, ackTimeoutMs: 60_000, ...options };
    outbox.listen(() => this.wake());
    this.running = this.run();
  }

  /** Wait until all that waits is settled, or the sender is closed. */
  flush(): Promise<void> {
    if (this.outbox.size === 0 || this.ended.signal.aborted) return Promise.resolve();
    return new Promise((resolve) => this.drained.push(resolve));
  }

  /** End. What is not acknowledged stays in the outbox. */
  async close(): Promise<void> {
    this.outbox.listen(undefined);
    this.ended.abort();
    this.wake();
    await this.running;
    this.tellDrained();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async run(): Promise<void> {
    for (let failures = 0; !this.ended.signal.aborted;) {
      const before = this.delivered + this.rejected;
      const error = await this.oneStream();
      this.connected = false;
      if (this.ended.signal.aborted) return;
      this.lastError = error;
      this.options.onError?.(error);
      failures = this.delivered + this.rejected > before ? 1 : failures + 1;
      await sleep(pauseAfter(failures, error.retryAfter), this.ended.signal);
    }
  }

  /** Connect and send until the stream breaks; gives why. */
  private async oneStream(): Promise<MeshError> {
    const stopper = new AbortController();
    const signal = AbortSignal.any([this.ended.signal, stopper.signal]);
    this.inFlight.clear();
    this.answered.clear();
    let failure: MeshError | undefined;
    const watchdog = setInterval(
      () => {
        if (this.inFlight.size === 0 || Date.now() - this.headSince < this.options.ackTimeoutMs) return;
        failure = this.silent();
        stopper.abort();
      },
      Math.min(1000, this.options.ackTimeoutMs / 4),
    );
    try {
      const onHeader = (): void => {
        this.connected = true;
      };
      for await (const { acks } of this.open(this.requests(signal), { signal, onHeader })) {
        this.connected = true;
        failure = this.take(acks);
        if (failure) return failure;
        this.lastError = undefined;
      }
      return failure ?? this.fault("UNAVAILABLE", "UNAVAILABLE", "it has ended the stream");
    } catch (error) {
      return failure ?? (await this.connection.explain(this.method, error));
    } finally {
      clearInterval(watchdog);
      stopper.abort();
      this.wake();
    }
  }

  private async *requests(signal: AbortSignal): AsyncGenerator<MessageShape<D>[], void> {
    let cursor = 0;
    while (!signal.aborted) {
      const woken = new Promise<void>((resolve) => (this.wake = resolve));
      const limit = Math.min(this.options.window - this.inFlight.size, this.options.batch);
      const entries = limit > 0 ? this.outbox.window(cursor, limit, REQUEST_BYTES) : [];
      if (entries.length === 0) {
        await woken;
        continue;
      }
      cursor = entries.at(-1)!.seq;
      const messages = this.read(entries);
      if (messages.length > 0) yield messages;
    }
  }

  /** The messages of these entries, now in flight; what can't be sent is set aside. */
  private read(entries: OutboxEntry[]): MessageShape<D>[] {
    const messages: MessageShape<D>[] = [];
    for (const { id, payload } of entries) {
      let problem = payload.length > TOO_LARGE ? `it has ${payload.length} bytes, more than ${TOO_LARGE}` : "";
      try {
        if (!problem) messages.push(fromBinary(this.schema, payload));
      } catch (error) {
        problem = `it can't be read: ${String(error)}`;
      }
      if (problem) {
        this.settle([{ id, status: AckStatus.REJECTED, reason: problem }]);
        continue;
      }
      if (this.inFlight.size === 0) this.headSince = Date.now();
      this.inFlight.add(id);
    }
    return messages;
  }

  /** Acknowledgements have come; gives what is wrong with them. */
  private take(acks: Ack[]): MeshError | undefined {
    const ours = acks.filter(({ id, status }) => status !== AckStatus.UNSPECIFIED && this.inFlight.has(id));
    const head = this.inFlight.keys().next().value;
    this.settle(ours);
    for (const { id } of ours) {
      this.inFlight.delete(id);
      this.answered.add(id);
      if (this.answered.size > 4 * this.options.window) this.answered.delete(this.answered.keys().next().value!);
    }
    if (head === undefined || !this.inFlight.has(head)) this.headSince = Date.now();
    this.wake();
    const bad = acks.find(({ id, status }) => status === AckStatus.UNSPECIFIED || !this.answered.has(id));
    if (!bad) return undefined;
    if (bad.status === AckStatus.UNSPECIFIED) {
      return this.fault("INTERNAL", "BAD_ACK", `it has answered ${JSON.stringify(bad.id)} without a status`);
    }
    const message = `it has acknowledged ${JSON.stringify(bad.id.slice(0, 80))}, which was never sent to it`;
    return this.fault("INTERNAL", "FOREIGN_ACK", message, "The receiver breaks the contract; nothing is lost here");
  }

  private settle(acks: Pick<Ack, "id" | "status" | "reason">[]): void {
    const settled = new Set(this.outbox.settle(acks));
    for (const { id, status, reason } of acks) {
      if (!settled.delete(id)) continue;
      if (status === AckStatus.REJECTED) this.rejected += 1;
      else this.delivered += 1;
      const word = { [AckStatus.ACCEPTED]: "accepted", [AckStatus.DUPLICATE]: "duplicate" } as const;
      this.options.onSettled?.(id, word[status as AckStatus.ACCEPTED] ?? "rejected", reason);
    }
    if (this.outbox.size === 0) this.tellDrained();
  }

  private tellDrained(): void {
    for (const tell of this.drained.splice(0)) tell();
  }

  private silent(): MeshError {
    const [id = "a message"] = this.inFlight.keys();
    const seconds = this.options.ackTimeoutMs / 1000;
    const message = `no acknowledgement of ${id} for ${seconds} s`;
    return this.fault("UNAVAILABLE", "NO_ACK", message, "It is connected to again; look at its log if that goes on");
  }

  private fault(code: "UNAVAILABLE" | "INTERNAL", reason: string, message: string, advice = ""): MeshError {
    return new MeshError({ code, reason, message, advice, address: this.connection.address, method: this.method });
  }
}

/** An outbox in memory for turns, feedback and session ends. */
export function turnsOutbox(): MemoryOutbox<typeof PolicyEventSchema> {
  return new MemoryOutbox(PolicyEventSchema, eventId);
}

/** An outbox in memory for transitions. */
export function transitionsOutbox(): MemoryOutbox<typeof TransitionSchema> {
  return new MemoryOutbox(TransitionSchema, ({ turn }) => turn?.turnId ?? "");
}

/** An outbox in memory for samples. */
export function samplesOutbox(): MemoryOutbox<typeof SampleSchema> {
  return new MemoryOutbox(SampleSchema, ({ transition }) => transition?.turn?.turnId ?? "");
}

/** Carry turns, feedback and session ends to the environment server, as a policy server does. */
export function sendTurns(
  to: EnvironmentClient,
  outbox: Outbox,
  options?: RingOptions,
): RingSender<typeof PolicyEventSchema> {
  return new RingSender(
    to.connection,
    "EnvironmentService/RecordTurns",
    PolicyEventSchema,
    outbox,
    (requests, o) =>
      to.raw.recordTurns(
        map(requests, (events: PolicyEvent[]) => ({ events })),
        o,
      ),
    options,
  );
}

/** Carry transitions to the judge, as an environment server does. */
export function sendTransitions(
  to: JudgeClient,
  outbox: Outbox,
  options?: RingOptions,
): RingSender<typeof TransitionSchema> {
  return new RingSender(
    to.connection,
    "JudgeService/JudgeTransitions",
    TransitionSchema,
    outbox,
    (requests, o) =>
      to.raw.judgeTransitions(
        map(requests, (transitions: Transition[]) => ({ transitions })),
        o,
      ),
    options,
  );
}

/** Carry samples to the trainer, as a judge does. */
export function sendSamples(to: TrainerClient, outbox: Outbox, options?: RingOptions): RingSender<typeof SampleSchema> {
  return new RingSender(
    to.connection,
    "TrainerService/SubmitSamples",
    SampleSchema,
    outbox,
    (requests, o) =>
      to.raw.submitSamples(
        map(requests, (samples: Sample[]) => ({ samples })),
        o,
      ),
    options,
  );
}

async function* map<A, B>(items: AsyncIterable<A>, change: (item: A) => B): AsyncGenerator<B, void> {
  for await (const item of items) yield change(item);
}
