import { randomUUID } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import { ComponentClient } from "./component.js";
import {
  EnvironmentService,
  TaskSplit,
  type EnvironmentInfo,
  type Episode,
  type GetSessionResponse,
  type Lease as LeaseInfo,
  type ListTurnsRequestSchema,
  type RunEpisodesRequestSchema,
  type RunEpisodesResponse,
  type TaskInfo,
  type TurnSummary,
  type WatchLeaseResponse,
} from "./gen/openclaw_rl/v1/environment_pb.js";
import { Interaction, type InteractOptions } from "./interaction.js";
import { Lease } from "./lease.js";
import { duration } from "./messages.js";
import type { CallOptions, ClientOptions } from "./options.js";
import { CallStream } from "./stream.js";

/** Options of a lease. */
export interface AcquireOptions extends CallOptions {
  /** Its id; a repeated call with the same one gives the same lease. By default a new one. */
  leaseId?: string;
  /** Longest wait for a free slot, in seconds; by default none. */
  waitSeconds?: number;
  /** Time after which the lease is taken back unless it is renewed, in seconds; by default the server's. */
  ttlSeconds?: number;
  /** Who asks, for operators and for the queue. */
  holder?: string;
  /** Renew it by itself; true by default. */
  renew?: boolean;
}

/** A client of the environment server: sessions, turns, leased environments, episodes. */
export class EnvironmentClient extends ComponentClient {
  /** The raw client of EnvironmentService, for RPCs that this class does not wrap. */
  readonly raw: Client<typeof EnvironmentService>;

  constructor(options: ClientOptions = {}) {
    super(options, 50052, "env_server");
    this.raw = this.connection.client(EnvironmentService);
  }

  /** Begin a live session. */
  interact(options: InteractOptions = {}): Interaction {
    return new Interaction(this.connection, this.raw, options);
  }

  /** A session with its turns and feedback. */
  session(sessionId: string, options: CallOptions = {}): Promise<GetSessionResponse> {
    return this.connection.unary("EnvironmentService/GetSession", options, (o) =>
      this.raw.getSession({ sessionId }, o),
    );
  }

  /** End a session; gives the number of turns that got their next state by it. */
  async endSession(sessionId: string, options: CallOptions = {}): Promise<number> {
    const answer = await this.connection.unary("EnvironmentService/EndSession", options, (o) =>
      this.raw.endSession({ sessionId }, o),
    );
    return answer.closedTurns;
  }

  /** Turns, newest first: all that fit, page after page as they are read. */
  async *turns(
    filter: Omit<MessageInitShape<typeof ListTurnsRequestSchema>, "$typeName"> = {},
    options: CallOptions = {},
  ): AsyncGenerator<TurnSummary, void> {
    for (let pageToken = filter.pageToken ?? ""; ;) {
      const page = await this.connection.unary("EnvironmentService/ListTurns", options, (o) =>
        this.raw.listTurns({ ...filter, pageToken }, o),
      );
      yield* page.turns;
      if (!page.nextPageToken) return;
      pageToken = page.nextPageToken;
    }
  }

  /** Lease an environment: "tool_call", "terminal" or another one that `environments()` tells. */
  async acquire(type: string, options: AcquireOptions = {}): Promise<Lease> {
    const { leaseId = `lease_${randomUUID()}`, waitSeconds, ttlSeconds, holder = "", renew = true, ...rest } = options;
    const request = {
      leaseId,
      type,
      holder,
      ...(waitSeconds === undefined ? {} : { wait: duration(waitSeconds, "waitSeconds") }),
      ...(ttlSeconds === undefined ? {} : { ttl: duration(ttlSeconds, "ttlSeconds") }),
    };
    // The server's wait is not cut short by the default deadline.
    const timeoutMs = rest.timeoutMs ?? 120_000 + (waitSeconds ?? 0) * 1000;
    try {
      const answer = await this.connection.unary("EnvironmentService/Acquire", { ...rest, timeoutMs }, (o) =>
        this.raw.acquire(request, o),
      );
      return new Lease(this.connection, this.raw, answer, renew, ttlSeconds);
    } catch (error) {
      // It may have been granted in the same moment, and nobody else knows its id.
      if (options.leaseId === undefined) this.raw.release({ leaseId }, { timeoutMs: 10_000 }).catch(() => {});
      throw error;
    }
  }

  /** The environments that there are, and how much of each is in use. */
  async environments(options: CallOptions = {}): Promise<EnvironmentInfo[]> {
    const answer = await this.connection.unary("EnvironmentService/ListEnvironments", options, (o) =>
      this.raw.listEnvironments({}, o),
    );
    return answer.environments;
  }

  /** The tasks of an environment. */
  async tasks(type: string, options: CallOptions & { split?: TaskSplit } = {}): Promise<TaskInfo[]> {
    const { split = TaskSplit.UNSPECIFIED, ...rest } = options;
    const answer = await this.connection.unary("EnvironmentService/ListTasks", rest, (o) =>
      this.raw.listTasks({ type, split }, o),
    );
    return answer.tasks;
  }

  /** The leases that run, of one environment or of all. */
  async leases(type = "", options: CallOptions = {}): Promise<LeaseInfo[]> {
    const answer = await this.connection.unary("EnvironmentService/ListLeases", options, (o) =>
      this.raw.listLeases({ type }, o),
    );
    return answer.leases;
  }

  /** What goes on in a leased environment, until the lease ends. */
  watchLease(leaseId: string, options: CallOptions & { seconds?: number } = {}): CallStream<WatchLeaseResponse> {
    const { seconds, ...rest } = options;
    const request = { leaseId, ...(seconds === undefined ? {} : { interval: duration(seconds) }) };
    return new CallStream(
      this.connection,
      "EnvironmentService/WatchLease",
      (o) => this.raw.watchLease(request, o),
      rest,
    );
  }

  /** Let the policy act in environments; gives what happens. Leaving the loop ends the run. */
  runEpisodes(
    request: Omit<MessageInitShape<typeof RunEpisodesRequestSchema>, "$typeName">,
    options: CallOptions = {},
  ): CallStream<RunEpisodesResponse> {
    return new CallStream(
      this.connection,
      "EnvironmentService/RunEpisodes",
      (o) => this.raw.runEpisodes(request, o),
      options,
    );
  }

  /** Episodes, newest first, page after page as they are read. */
  async *episodes(
    filter: { runId?: string; type?: string } = {},
    options: CallOptions = {},
  ): AsyncGenerator<Episode, void> {
    for (let pageToken = ""; ;) {
      const page = await this.connection.unary("EnvironmentService/ListEpisodes", options, (o) =>
        this.raw.listEpisodes({ ...filter, pageToken }, o),
      );
      yield* page.episodes;
      if (!page.nextPageToken) return;
      pageToken = page.nextPageToken;
    }
  }
}
