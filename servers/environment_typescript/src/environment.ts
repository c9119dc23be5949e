/** EnvironmentService: translate, call, translate back. */
import { timestampFromMs, timestampNow } from "@bufbuild/protobuf/wkt";
import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { invalid, type PolicyClient } from "@openclaw-rl/client";
import {
  LeaseSchema,
  RecordTurnsResponseSchema,
  TaskSplit,
  type EnvironmentService,
  type Lease as LeaseMessage,
} from "@openclaw-rl/client/v1";
import { peerKey } from "./guard.js";
import { LiveSession } from "./interact.js";
import { ACTION_SCHEMA, OBSERVATION_SCHEMA, TYPE, type Lease } from "./lease.js";
import { checkType, type Pool } from "./pool.js";
import type { SessionBook } from "./sessions.js";
import type { Store } from "./store.js";
import { bounded, sleep } from "./time.js";
import * as views from "./views.js";

const INSTRUCTIONS =
  "Reach the goal by calling the functions. Call submit when it is reached; where the goal asks for something, give it " +
  "as the answer. If no function helps, submit an answer that says so.";
const SANDBOX = "none: functions that the task declares, worked out by the environment server";

/** The handlers of EnvironmentService. RunEpisodes is left out: what is not here answers UNIMPLEMENTED. */
export function environment(
  book: SessionBook,
  store: Store,
  pool: Pool,
  policy: PolicyClient,
): Partial<ServiceImpl<typeof EnvironmentService>> {
  return {
    recordTurns: async function* (requests) {
      for await (const { events } of requests) {
        // The acknowledgements go out once the transaction is on the disk.
        if (events.length > 0) yield create(RecordTurnsResponseSchema, { acks: book.handle(events) });
      }
    },
    interact: (requests, { signal, values }) =>
      new LiveSession(policy, book, store, values.get(peerKey).address).run(requests, signal),
    getSession: ({ sessionId }) => views.session(store, sessionId),
    endSession: ({ sessionId }) => {
      views.sessionRow(store, sessionId); // throws when there is none
      return { closedTurns: book.end(sessionId) };
    },
    listTurns: (request) => views.turns(store, request),

    acquire: async ({ leaseId, type, holder, wait, ttl }, { signal, values }) => {
      if (holder.length > 200) throw invalid("holder", holder, "at most 200 characters");
      const waitMs = (bounded("wait", wait, 0, 3600) ?? 0) * 1000;
      const seconds = bounded("ttl", ttl, 1, 86_400);
      const ttlMs = seconds === undefined ? undefined : seconds * 1000;
      const lease = await pool.acquire(type, leaseId, holder || values.get(peerKey).address, waitMs, ttlMs, signal);
      return {
        leaseId: lease.id,
        expiresAt: timestampFromMs(lease.expiresAt),
        actionSchemaJson: ACTION_SCHEMA,
        observationSchemaJson: OBSERVATION_SCHEMA,
        sandbox: SANDBOX,
      };
    },
    reset: ({ leaseId, taskId }) => {
      const lease = pool.lease(leaseId);
      lease.reset(taskId ? pool.task(taskId) : undefined);
      const tools = lease.tools.map(({ name, description, parameters }) => {
        return { name, description, parametersJson: JSON.stringify(parameters) };
      });
      return { observation: observation(""), goal: lease.task?.goal ?? "", instructions: INSTRUCTIONS, tools };
    },
    step: ({ leaseId, step, actionJson, timeout }) => {
      if (step < 1n) throw invalid("step", step, "1 for the first step after a reset, then one more each time");
      bounded("timeout", timeout, 0.001, 3600);
      const lease = pool.lease(leaseId);
      const before = lease.steps;
      const { text, done, error } = lease.step(Number(step), actionJson);
      pool.counts.steps += lease.steps - before;
      return { observation: observation(text), done, error };
    },
    evaluate: ({ leaseId }) => pool.lease(leaseId).evaluate(),
    renew: ({ leaseId }) => ({ expiresAt: timestampFromMs(pool.lease(leaseId).expiresAt) }),
    release: ({ leaseId }) => {
      pool.release(leaseId);
      return {};
    },
    watchLease: async function* ({ leaseId, interval }, { signal }) {
      const seconds = bounded("interval", interval, 0.1, 3600) ?? 1;
      const lease = pool.lease(leaseId, false); // what is watched may still be given up
      const over = AbortSignal.any([signal, lease.over.signal]);
      for (let last = ""; ;) {
        const now = JSON.stringify([lease.steps, lease.task?.id, lease.ended, lease.view]);
        if (now !== last) {
          const ended = lease.ended !== "";
          const view = observation(lease.view);
          yield {
            lease: message(lease),
            actionJson: lease.lastAction.slice(0, 20_000),
            view,
            at: timestampNow(),
            ended,
          };
        }
        last = now;
        if (lease.ended || signal.aborted) return;
        await sleep(seconds * 1000, over);
      }
    },

    listEpisodes: ({ pageSize, pageToken }) => {
      if (pageSize < 0 || pageSize > 1000) throw invalid("page_size", pageSize, "from 0 to 1000; 0 means 100");
      if (pageToken) throw invalid("page_token", pageToken, "next_page_token of an earlier answer");
      return { episodes: [] };
    },
    listEnvironments: () => ({
      environments: [
        {
          type: TYPE,
          kind: TYPE,
          capacity: pool.capacity,
          leased: pool.running.length,
          warm: pool.capacity - pool.running.length,
          waiting: pool.waitingCount,
          tasks: pool.tasks.size,
          actionSchemaJson: ACTION_SCHEMA,
          observationSchemaJson: OBSERVATION_SCHEMA,
        },
      ],
    }),
    listTasks: ({ type, split }) => {
      checkType(type);
      const tasks = [...pool.tasks.values()].map((task) => ({
        taskId: task.id,
        goal: task.goal,
        split: task.split === "train" ? TaskSplit.TRAIN : TaskSplit.HELD_OUT,
        maxSteps: task.max_steps,
        tags: task.tags,
      }));
      return { tasks: tasks.filter((task) => split === TaskSplit.UNSPECIFIED || task.split === split) };
    },
    listLeases: ({ type }) => {
      if (type) checkType(type);
      return { leases: pool.running.map(message) };
    },
  };
}

function observation(text: string): { json: string } {
  return { json: JSON.stringify({ text }) };
}

function message(lease: Lease): LeaseMessage {
  return create(LeaseSchema, {
    leaseId: lease.id,
    type: TYPE,
    holder: lease.holder,
    taskId: lease.task?.id ?? "",
    steps: BigInt(lease.steps),
    acquiredAt: timestampFromMs(lease.acquiredAt),
    expiresAt: timestampFromMs(lease.expiresAt),
  });
}
