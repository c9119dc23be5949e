/** What every component tells of itself: ComponentService and health. */
import { setMaxListeners } from "node:events";
import { hostname } from "node:os";
import { create } from "@bufbuild/protobuf";
import { timestampFromMs, timestampMs, timestampNow } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type ServiceImpl } from "@connectrpc/connect";
import { CONTRACT_VERSION, duration, invalid, type RingSender } from "@openclaw-rl/client";
import { Health, HealthCheckResponse_ServingStatus as Serving } from "@openclaw-rl/client/grpc";
import {
  ComponentService,
  ComponentState,
  ComponentStatusSchema,
  type ComponentStatus,
  type TransitionSchema,
} from "@openclaw-rl/client/v1";
import { secondsOf, sleep } from "./time.js";
import type { Membership } from "./membership.js";
import type { Pool } from "./pool.js";
import type { SessionBook } from "./sessions.js";
import type { DiskOutbox, Store } from "./store.js";

export const NAME = "env_server";
const VERSION = "0.1.0";
const COUNTERS = [
  "turns_main",
  "turns_side",
  "turns_unknown",
  "retries",
  "transitions_sent",
  "feedback_ignored",
  "total_interactions",
];

/** The parts that a status is made of. */
export interface Parts {
  store: Store;
  book: SessionBook;
  outbox: DiskOutbox;
  sender: RingSender<typeof TransitionSchema>;
  pool: Pool;
  membership: Membership;
  secure: boolean;
}

export class Component {
  /** Set once the server listens. */
  address = "";
  /** Aborted when the server is to stop; `graceMs` says how long running work may take. */
  readonly stopping = new AbortController();
  graceMs = 30_000;
  private readonly startedAt = timestampNow();
  private wrongMeshSince: number | undefined;

  constructor(private readonly parts: Parts) {
    setMaxListeners(0, this.stopping.signal);
  }

  stop(graceMs = 5_000): void {
    this.graceMs = graceMs;
    this.stopping.abort();
  }

  status(): ComponentStatus {
    const { store, outbox, sender, pool, membership, secure } = this.parts;
    const { messages, bytes, oldest } = outbox.figures();
    const rejected = store.get("SELECT count(*) AS n FROM rejected")!["n"] as number;
    const version = store.get("SELECT max(version) AS v FROM turns")!["v"];
    const sessions = store.get("SELECT count(*) AS n FROM sessions WHERE ended = 0")!["n"] as number;
    const why = sender.lastError?.message ?? "connecting";
    const waits = messages > 0 && !sender.connected;
    const { trouble } = membership;
    const sinceMs = trouble ? (this.wrongMeshSince ??= Date.now()) : (this.wrongMeshSince = undefined);
    const waiting = waits ? `${messages} transitions wait on disk for prm_judge: ${why}` : "";
    const running = trouble ? ComponentState.DEGRADED : ComponentState.RUNNING;
    return create(ComponentStatusSchema, {
      name: NAME,
      meshId: membership.id,
      state: this.stopping.signal.aborted ? ComponentState.DRAINING : running,
      detail: [trouble || waiting, membership.refusals].filter(Boolean).join("; "),
      alarms: trouble ? [{ name: "wrong_mesh", message: trouble, since: timestampFromMs(sinceMs!) }] : [],
      pid: BigInt(process.pid),
      address: this.address,
      packageVersion: VERSION,
      contractVersion: CONTRACT_VERSION,
      startedAt: this.startedAt,
      ...(typeof version === "number" ? { policyVersion: BigInt(version) } : {}),
      counters: {
        ...Object.fromEntries(COUNTERS.map((name) => [name, 0n])),
        ...store.counters(),
        leases: BigInt(pool.counts.leases),
        leases_expired: BigInt(pool.counts.leases_expired),
        steps: BigInt(pool.counts.steps),
      },
      gauges: {
        sessions_open: sessions,
        leases_running: pool.running.length,
        leases_waiting: pool.waitingCount,
        foreign_calls_refused: membership.refused,
      },
      outboxes: [
        {
          name: "transitions",
          pending: BigInt(messages),
          pendingBytes: BigInt(bytes),
          ...(messages > 0 ? { oldestAge: duration(Math.max(0, (Date.now() - oldest) / 1000)) } : {}),
          connected: sender.connected,
          delivered: BigInt(sender.delivered),
          rejected: BigInt(rejected),
          lastError: sender.lastError?.message ?? "",
        },
      ],
      host: hostname(),
      secure,
    });
  }

  service(): Partial<ServiceImpl<typeof ComponentService>> {
    const component = this;
    const { book } = this.parts;
    return {
      getStatus: () => ({ status: this.status() }),
      watchStats: async function* ({ interval }, { signal }) {
        const seconds = interval ? secondsOf(interval) : 1;
        if (!(seconds >= 0.1 && seconds <= 3600)) throw invalid("interval", `${seconds}s`, "from 0.1 s to 1 h");
        while (!signal.aborted) {
          yield { status: component.status(), at: timestampNow() };
          await sleep(seconds * 1000, signal);
        }
      },
      drain: ({ grace }) => {
        const seconds = grace ? secondsOf(grace) : 30;
        if (!(seconds >= 0 && seconds <= 3600)) throw invalid("grace", `${seconds}s`, "from 0 s to 1 h");
        setTimeout(() => this.stop(Math.min(seconds * 1000, 8_000)), 20); // behind the answer
        return {};
      },
      forget: ({ sessionId, turnIds, before }) => {
        if (!sessionId) throw invalid("session_id", "", "the id of a session");
        const { turnIds: known, removed } = book.forget(sessionId, turnIds, before ? timestampMs(before) : Date.now());
        const message = `${known.length} turns of the session are forgotten here`;
        return { turnIds: known, removed, message };
      },
    };
  }

  /** Health of the whole ("") and of each of these services. */
  health(services: string[]): Partial<ServiceImpl<typeof Health>> {
    const { signal } = this.stopping;
    const statusOf = (service: string): Serving | undefined => {
      if (service !== "" && !services.includes(service)) return undefined;
      return signal.aborted ? Serving.NOT_SERVING : Serving.SERVING;
    };
    return {
      check: ({ service }) => {
        const status = statusOf(service);
        if (status === undefined)
          throw new ConnectError(`there is no service ${JSON.stringify(service.slice(0, 80))} here`, Code.NotFound);
        return { status };
      },
      watch: async function* ({ service }, context) {
        yield { status: statusOf(service) ?? Serving.SERVICE_UNKNOWN };
        await sleep(2 ** 31 - 1, AbortSignal.any([context.signal, signal]));
        if (signal.aborted) yield { status: statusOf(service) ?? Serving.SERVICE_UNKNOWN };
      },
    };
  }
}
