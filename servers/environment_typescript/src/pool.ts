/** All leases: how many there are, who gets the next one, and for how long. */
import { invalid, MeshError } from "@openclaw-rl/client";
import { exhausted, notFound, precondition, shown, unavailable } from "./faults.js";
import { Lease, TYPE } from "./lease.js";
import type { Task } from "./tasks.js";

const MOST_WAITING = 1000;
const REMEMBERED = 10_000;

interface Waiting {
  id: string;
  holder: string;
  ttlMs: number;
  callers: number;
  granted: Promise<Lease>;
  grant: (lease: Lease) => void;
  refuse: (error: MeshError) => void;
}

/** They end with the process: a lease is a promise of this process and of no other. */
export class Pool {
  readonly counts = { leases: 0, leases_expired: 0, steps: 0 };
  private readonly leases = new Map<string, Lease>();
  private readonly waiting: Waiting[] = [];
  private readonly ended = new Map<string, string>();
  private readonly timer: NodeJS.Timeout;

  constructor(
    readonly tasks: Map<string, Task>,
    readonly capacity: number,
    private readonly ttlMs: number,
  ) {
    this.timer = setInterval(() => this.reap(), Math.min(1000, ttlMs / 4));
    this.timer.unref();
  }

  get running(): Lease[] {
    return [...this.leases.values()];
  }

  get waitingCount(): number {
    return this.waiting.length;
  }

  task(id: string): Task {
    const task = this.tasks.get(id);
    if (!task) throw notFound("task", id, `ListTasks tells those of "${TYPE}"`);
    return task;
  }

  /** A lease that runs; it begins its time anew. */
  lease(id: string, renew = true): Lease {
    const lease = this.leases.get(id);
    if (lease) {
      if (renew) lease.renew();
      return lease;
    }
    const why = this.ended.get(id);
    if (why) throw leaseEnded(id, why);
    const message = `there is no lease ${shown(id)}: it was never acquired, ended long ago, or the environment server has been started anew since, which ends all leases; acquire another one`;
    throw new MeshError({ code: "NOT_FOUND", reason: "LEASE_LOST", message, metadata: { id: id.slice(0, 80) } });
  }

  /** Lease an environment; a repeated call gives the same lease. One that is cancelled leaves nothing behind. */
  async acquire(
    type: string,
    id: string,
    holder: string,
    waitMs: number,
    ttlMs: number | undefined,
    signal: AbortSignal,
  ): Promise<Lease> {
    if (!/^[A-Za-z0-9._:-]{1,128}$/.test(id)) {
      throw invalid("lease_id", id, "1 to 128 letters, digits, `-`, `_`, `.` and `:`, made by the client");
    }
    checkType(type);
    if (this.leases.has(id)) return this.lease(id);
    if (this.ended.has(id)) throw leaseEnded(id, this.ended.get(id)!);
    let place = this.waiting.find((one) => one.id === id);
    if (!place) {
      if (this.leases.size < this.capacity) return this.give(id, holder, ttlMs ?? this.ttlMs);
      if (waitMs <= 0) throw this.full();
      if (this.waiting.length >= MOST_WAITING)
        throw exhausted(`${this.waiting.length} requests wait for an environment, more may not`);
      place = this.queue(id, holder, ttlMs ?? this.ttlMs);
    }
    return this.wait(place, waitMs, signal);
  }

  /** Give a lease back; any number of times, also one that there never was. */
  release(id: string): void {
    const place = this.waiting.find((one) => one.id === id);
    if (place) {
      this.leave(place);
      place.refuse(leaseEnded(id, "was given back before it was there"));
    }
    const lease = this.leases.get(id);
    if (lease) this.end(lease, "was given back");
  }

  close(): void {
    clearInterval(this.timer);
    for (const place of this.waiting.splice(0)) place.refuse(unavailable("the environment server is stopping"));
    for (const lease of this.running) this.end(lease, "ended with the environment server");
  }

  private give(id: string, holder: string, ttlMs: number): Lease {
    const lease = new Lease(id, holder, ttlMs);
    this.leases.set(id, lease);
    this.counts.leases += 1;
    return lease;
  }

  private queue(id: string, holder: string, ttlMs: number): Waiting {
    let grant!: Waiting["grant"];
    let refuse!: Waiting["refuse"];
    const granted = new Promise<Lease>((resolve, reject) => {
      grant = resolve;
      refuse = reject;
    });
    granted.catch(() => {}); // nobody may be listening any more
    const place: Waiting = { id, holder, ttlMs, callers: 0, granted, grant, refuse };
    this.waiting.push(place);
    return place;
  }

  private async wait(place: Waiting, waitMs: number, signal: AbortSignal): Promise<Lease> {
    place.callers += 1;
    let timer: NodeJS.Timeout | undefined;
    const cancelled = new MeshError({ code: "CANCELLED", message: "the caller went away" });
    const over = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(this.full()), waitMs);
      signal.addEventListener("abort", () => reject(cancelled), { once: true });
    });
    try {
      return await Promise.race([place.granted, over]);
    } catch (error) {
      if (place.callers === 1) {
        this.leave(place);
        if (error === cancelled) this.release(place.id); // it was given in the same moment
      }
      throw error;
    } finally {
      clearTimeout(timer);
      place.callers -= 1;
    }
  }

  private leave(place: Waiting): void {
    const at = this.waiting.indexOf(place);
    if (at >= 0) this.waiting.splice(at, 1);
  }

  private end(lease: Lease, why: string): void {
    this.leases.delete(lease.id);
    this.ended.set(lease.id, why);
    if (this.ended.size > REMEMBERED) this.ended.delete(this.ended.keys().next().value!);
    lease.end(why);
    // Holders take turns: next is the first in the queue of the holder that has the fewest leases.
    const held = (holder: string): number => this.running.filter((one) => one.holder === holder).length;
    const next = [...this.waiting].sort((a, b) => held(a.holder) - held(b.holder))[0];
    if (!next || this.leases.size >= this.capacity) return;
    this.leave(next);
    next.grant(this.give(next.id, next.holder, next.ttlMs));
  }

  private reap(): void {
    for (const lease of this.running.filter(({ expiresAt }) => expiresAt <= Date.now())) {
      this.counts.leases_expired += 1;
      this.end(lease, `was taken back, since nobody used or renewed it for ${lease.ttlMs / 1000} s`);
    }
  }

  private full(): MeshError {
    const also = this.waiting.length > 0 ? ` and ${this.waiting.length} requests wait` : "";
    const soonest = Math.min(...this.running.map(({ expiresAt }) => expiresAt)) - Date.now();
    const retry = Math.round(Math.min(60, Math.max(0.5, (soonest / 1000) * (this.waiting.length + 1))) * 10) / 10;
    return exhausted(`all ${this.capacity} environments "${TYPE}" are leased${also}`, retry);
  }
}

/** The one type that there is. */
export function checkType(type: string): void {
  if (type !== TYPE) throw notFound("environment", type, `there are: ${TYPE}`);
}

function leaseEnded(id: string, why: string): MeshError {
  return precondition("LEASE_ENDED", `lease ${shown(id)} ${why}; acquire another one, with an id of its own`);
}
