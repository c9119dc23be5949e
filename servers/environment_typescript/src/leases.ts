/** Leases of the environment `tool_call`: how many there are, who gets the next one, and for how long. */
import { MeshError, invalid, invalidFields } from "@openclaw-rl/client";
import { exhausted, notFound, precondition, shown, unavailable } from "./faults.js";
import {
  argumentsCheck,
  asText,
  call,
  FunctionError,
  wrong,
  type Done,
  type FunctionSpec,
  type Json,
  type Task,
} from "./tasks.js";

export const TYPE = "tool_call";
const MOST_WAITING = 1000;
const REMEMBERED = 10_000;
const MOST_ACTION = 2 ** 20;

export const SUBMIT: Omit<FunctionSpec, "cases"> = {
  name: "submit",
  description: "Say that the goal is reached.",
  parameters: {
    type: "object",
    properties: { answer: { type: "string", description: "The answer, where the goal asks for one." } },
  },
};
export const ACTION_SCHEMA = JSON.stringify({
  type: "object",
  required: ["name", "arguments"],
  additionalProperties: false,
  properties: {
    name: { type: "string", description: "One of the functions of the task, or submit." },
    arguments: { type: "object", description: "After the function's own schema." },
  },
});
export const OBSERVATION_SCHEMA = JSON.stringify({
  type: "object",
  required: ["text"],
  properties: { text: { type: "string", description: "What the function said." } },
});

/** What a step has shown. */
export interface Stepped {
  text: string;
  done: boolean;
  error: string;
}

interface Action {
  name: string;
  arguments: { [key: string]: Json };
}

/** One leased environment. Its calls are worked out at once, so one never waits for another. */
export class Lease {
  readonly acquiredAt = Date.now();
  readonly over = new AbortController();
  task: Task | undefined;
  steps = 0;
  lastAction = "";
  /** Why it is no more; empty while it runs. */
  ended = "";
  private usedAt = Date.now();
  private wasReset = false;
  private isOver = false;
  private answer: Stepped | undefined;
  private done: Done = { calls: [], state: {}, answer: undefined };
  private lines: string[] = [];

  constructor(
    readonly id: string,
    readonly holder: string,
    readonly ttlMs: number,
  ) {}

  get expiresAt(): number {
    return this.usedAt + this.ttlMs;
  }

  /** What has been called, for a person. */
  get view(): string {
    return this.lines.join("\n") || "No function has been called.";
  }

  get tools(): Omit<FunctionSpec, "cases">[] {
    return [...(this.task?.functions ?? []), SUBMIT];
  }

  renew(): void {
    this.usedAt = Date.now();
  }

  reset(task: Task | undefined): void {
    this.task = task;
    this.steps = 0;
    this.lastAction = "";
    this.lines = [];
    this.answer = undefined;
    this.isOver = false;
    this.done = { calls: [], state: structuredClone(task?.state ?? {}), answer: undefined };
    this.wasReset = true;
  }

  /** Do an action, or tell again what the last one did. */
  step(number: number, json: string): Stepped {
    const action = parse(json);
    const text = JSON.stringify(action);
    if (!this.wasReset)
      throw precondition("NOT_RESET", `lease ${shown(this.id)} has not been reset: reset it with a task, then step`);
    if (number === this.steps && this.answer) {
      if (text === this.lastAction) return this.answer;
      throw precondition(
        "STEP_OUT_OF_ORDER",
        `step ${number} of lease ${shown(this.id)} was done with another action; the next one is ${this.steps + 1}`,
      );
    }
    if (number !== this.steps + 1) {
      throw precondition(
        "STEP_OUT_OF_ORDER",
        `step ${number} of lease ${shown(this.id)} can't be done: the next one is ${this.steps + 1}`,
      );
    }
    if (this.isOver) {
      throw precondition(
        "EPISODE_OVER",
        `the episode in lease ${shown(this.id)} was over with step ${this.steps}: evaluate it, or reset to begin another`,
      );
    }
    this.answer = this.act(action);
    this.steps = number;
    this.lastAction = text;
    this.isOver = this.answer.done;
    this.lines = [
      ...this.lines.slice(-49),
      `${action.name}(${JSON.stringify(action.arguments).slice(0, 300)})\n  ${this.answer.text.slice(0, 500)}`,
    ];
    return this.answer;
  }

  /** Run the task's check. */
  evaluate(): { outcome: number; detail: string } {
    if (!this.wasReset)
      throw precondition("NOT_RESET", `lease ${shown(this.id)} has not been reset: there is nothing to evaluate`);
    if (!this.task) return { outcome: 0, detail: "there is no task" };
    const detail = wrong(this.task, this.done);
    return detail ? { outcome: 0, detail } : { outcome: 1, detail: "everything that the check asks for is so" };
  }

  end(why: string): void {
    this.ended = why;
    this.over.abort();
  }

  private act(action: Action): Stepped {
    const tool = this.tools.find(({ name }) => name === action.name);
    if (!tool) {
      const names = this.tools.map(({ name }) => name).join(", ");
      throw bad(`name: ${shown(action.name)} is no function; there are ${names}`);
    }
    const problem = argumentsCheck(tool.parameters)(action.arguments);
    if (problem) throw bad(`${action.name}: ${problem}`);
    if (tool === SUBMIT) {
      this.done.answer = action.arguments["answer"] as string | undefined;
      return { text: "Submitted.", done: true, error: "" };
    }
    try {
      const { result, state } = call(tool as FunctionSpec, action.arguments, this.done.state);
      this.done.state = state;
      this.done.calls.push({ name: action.name, arguments: action.arguments });
      return { text: asText(result), done: false, error: "" };
    } catch (error) {
      if (!(error instanceof FunctionError)) throw error;
      const text = `Error: ${error.message}`;
      return { text, done: false, error: text };
    }
  }
}

interface Waiting {
  id: string;
  holder: string;
  ttlMs: number;
  callers: number;
  granted: Promise<Lease>;
  grant: (lease: Lease) => void;
  refuse: (error: MeshError) => void;
}

/** All leases. They end with the process: a lease is a promise of this process and of no other. */
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

function bad(description: string): MeshError {
  return invalidFields([{ field: "action_json", description }]);
}

function parse(json: string): Action {
  const shape = 'an object such as {"name": ..., "arguments": {...}}';
  if (Buffer.byteLength(json) > MOST_ACTION)
    throw invalid("action_json", `${json.slice(0, 40)}...`, `at most ${MOST_ACTION} bytes`);
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    throw invalid("action_json", json, `JSON, ${shape} (${(error as Error).message})`);
  }
  const { name, arguments: args = {}, ...more } = (value ?? {}) as Record<string, unknown>;
  const fits = typeof name === "string" && typeof args === "object" && args !== null && !Array.isArray(args);
  if (!fits || Object.keys(more).length > 0) throw invalid("action_json", value, shape);
  return { name, arguments: args as Action["arguments"] };
}
