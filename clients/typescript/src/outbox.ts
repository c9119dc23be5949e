import { create, toBinary, type DescMessage, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import { AckStatus, type Ack } from "./gen/openclaw_rl/v1/common_pb.js";
import { invalid } from "./errors.js";
import type { PolicyEvent } from "./gen/openclaw_rl/v1/environment_pb.js";

/** A message that waits for the next component. */
export interface OutboxEntry {
  /** Number that grows in the order in which messages were put in. */
  seq: number;
  /** The id by which it is acknowledged. */
  id: string;
  /** The message as protobuf. */
  payload: Uint8Array;
}

/** Messages that wait for the next component. One that is to survive the process keeps them on disk. */
export interface Outbox {
  /** Messages behind `seq` number `after`, oldest first: at most `limit`, and `maxBytes` together (but at least one). */
  window(after: number, limit: number, maxBytes: number): OutboxEntry[];
  /**
   * Forget what the receiver has, and set aside what it rejected. Unknown ids are no error.
   *
   * @returns the ids that are settled by it.
   */
  settle(acks: Pick<Ack, "id" | "status" | "reason">[]): string[];
  /** Call `listener` after each message that was put in. */
  listen(listener: (() => void) | undefined): void;
  /** Messages that wait. */
  readonly size: number;
}

/** An outbox in memory: what waits in it ends with the process. */
export class MemoryOutbox<D extends DescMessage> implements Outbox {
  /** What the receiver refused, with its reasons. */
  readonly rejected: { id: string; reason: string; payload: Uint8Array }[] = [];
  private readonly entries = new Map<string, OutboxEntry>();
  private listener: (() => void) | undefined;
  private seq = 0;

  /**
   * @param schema of the messages.
   * @param idOf the id by which a message is acknowledged.
   */
  constructor(
    private readonly schema: D,
    private readonly idOf: (message: MessageShape<D>) => string,
  ) {}

  get size(): number {
    return this.entries.size;
  }

  /** Put a message in; one whose id waits already is not put in again. */
  put(message: MessageInitShape<D>): void {
    const whole = create(this.schema, message);
    const id = this.idOf(whole);
    if (!id) throw invalid("id", id, "an id of the message's own: it is acknowledged by it");
    if (this.entries.has(id)) return;
    this.entries.set(id, { seq: ++this.seq, id, payload: toBinary(this.schema, whole) });
    this.listener?.();
  }

  window(after: number, limit: number, maxBytes: number): OutboxEntry[] {
    const found: OutboxEntry[] = [];
    let bytes = 0;
    for (const entry of this.entries.values()) {
      if (entry.seq <= after) continue;
      bytes += entry.payload.length;
      if (found.length === limit || (found.length > 0 && bytes > maxBytes)) break;
      found.push(entry);
    }
    return found;
  }

  settle(acks: Pick<Ack, "id" | "status" | "reason">[]): string[] {
    return acks.flatMap(({ id, status, reason }) => {
      const entry = this.entries.get(id);
      if (!entry || status === AckStatus.UNSPECIFIED) return [];
      if (status === AckStatus.REJECTED) this.rejected.push({ id, reason, payload: entry.payload });
      this.entries.delete(id);
      return [id];
    });
  }

  listen(listener: (() => void) | undefined): void {
    this.listener = listener;
  }
}

/** The id by which an event of the policy server is acknowledged; "" when it has none. */
export function eventId({ event }: PolicyEvent): string {
  switch (event.case) {
    case "turn":
      return event.value.turnId;
    case "feedback":
      return event.value.feedbackId;
    case "sessionEnd":
    case "sessionActive":
      return event.value.eventId;
    default:
      return "";
  }
}
