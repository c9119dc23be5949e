import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import { Connection, type Role } from "./connection.js";
import { MeshError } from "./errors.js";
import { Health, HealthCheckResponse_ServingStatus } from "./gen/grpc/health/v1/health_pb.js";
import {
  ComponentService,
  type ComponentStatus,
  type ForgetRequestSchema,
  type ForgetResponse,
  type WatchStatsResponse,
} from "./gen/openclaw_rl/v1/component_pb.js";
import { duration } from "./messages.js";
import type { CallOptions, ClientOptions } from "./options.js";
import { CONTRACT_VERSION } from "./version.js";
import { Watch, type WatchOptions } from "./watch.js";

/** What `check` found. */
export interface CheckReport {
  /** The component's status. */
  status: ComponentStatus;
  /** Version of the contract that the component was built with. */
  contractVersion: string;
  /** What works, but should be known: an older contract, alarms. */
  warnings: string[];
}

/** What the clients of all four components have; by itself, a client of any of them. */
export class ComponentClient implements AsyncDisposable {
  /** The connection; `connection.client(SERVICE)` is a raw client of any service behind it. */
  readonly connection: Connection;
  /** The raw client of ComponentService. */
  readonly rawComponent: Client<typeof ComponentService>;

  constructor(options: ClientOptions & { address: string });
  /** For the clients of the four: where their component listens by default, and its name. */
  constructor(options: ClientOptions, defaultPort: number, role: Role);
  constructor(
    options: ClientOptions,
    defaultPort = 0,
    private readonly role: Role | "" = "",
  ) {
    this.connection = new Connection(role, defaultPort, options);
    this.rawComponent = this.connection.client(ComponentService);
  }

  /** HOST:PORT of the component. */
  get address(): string {
    return this.connection.address;
  }

  /** What the component tells of itself. */
  async status(options: CallOptions = {}): Promise<ComponentStatus> {
    const answer = await this.connection.unary("ComponentService/GetStatus", options, (o) =>
      this.rawComponent.getStatus({}, o),
    );
    return answer.status!;
  }

  /** The same again and again, each `seconds` (0.1 to 3600, by default 1). */
  watchStats(options: WatchOptions & { seconds?: number } = {}): Watch<WatchStatsResponse> {
    const { seconds, ...rest } = options;
    const request = seconds === undefined ? {} : { interval: duration(seconds) };
    return new Watch(
      this.connection,
      "ComponentService/WatchStats",
      (o) => this.rawComponent.watchStats(request, o),
      rest,
    );
  }

  /**
   * Ask whether this is the right component, and one that this package can talk to.
   *
   * @throws MeshError CONTRACT_MISMATCH: it speaks another major version of the contract; WRONG_COMPONENT.
   */
  async check(options: CallOptions = {}): Promise<CheckReport> {
    const status = await this.status(options);
    const { address } = this;
    if (this.role && status.name !== this.role) {
      throw new MeshError({
        code: "FAILED_PRECONDITION",
        reason: "WRONG_COMPONENT",
        message: `${JSON.stringify(status.name)} answers there, not ${JSON.stringify(this.role)}`,
        advice: "Check the address and the port",
        address,
        metadata: { expected: this.role, found: status.name },
      });
    }
    const theirs = status.contractVersion || "1.0";
    const [major, minor] = numbers(theirs);
    const [ownMajor, ownMinor] = numbers(CONTRACT_VERSION);
    if (major !== ownMajor) {
      throw new MeshError({
        code: "FAILED_PRECONDITION",
        reason: "CONTRACT_MISMATCH",
        message: `${status.name} speaks contract ${theirs}, this client ${CONTRACT_VERSION}`,
        advice: `Use a client of contract ${major}, or a component of contract ${ownMajor}`,
        address,
        metadata: { client: CONTRACT_VERSION, server: theirs },
      });
    }
    const warnings = status.alarms.map(({ name, message }) => `${name}: ${message}`);
    if (minor < ownMinor) {
      warnings.unshift(
        `${status.name} speaks contract ${theirs}, older than this client's ${CONTRACT_VERSION}: what was added since is not there`,
      );
    }
    return { status, contractVersion: theirs, warnings };
  }

  /** Whether a service is served, by its full name; "" is the whole component. */
  async healthy(service = "", options: CallOptions = {}): Promise<boolean> {
    const health = this.connection.client(Health);
    const answer = await this.connection.unary("Health/Check", options, (o) => health.check({ service }, o));
    return answer.status === HealthCheckResponse_ServingStatus.SERVING;
  }

  /** Let the component end its running work, for at most `graceSeconds` (30 by default), and stop. */
  async drain(graceSeconds?: number, options: CallOptions = {}): Promise<void> {
    const request = graceSeconds === undefined ? {} : { grace: duration(graceSeconds, "graceSeconds") };
    await this.connection.unary("ComponentService/Drain", options, (o) => this.rawComponent.drain(request, o));
  }

  /** Remove a session's turns from everything that this component keeps, for good. */
  async forget(
    request: MessageInitShape<typeof ForgetRequestSchema>,
    options: CallOptions = {},
  ): Promise<ForgetResponse> {
    return this.connection.unary("ComponentService/Forget", options, (o) => this.rawComponent.forget(request, o));
  }

  /** End the connection and all its calls. */
  close(): void {
    this.connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}

function numbers(version: string): [number, number] {
  const [major = "", minor = "0"] = version.split(".");
  return [Number(major), Number(minor)];
}
