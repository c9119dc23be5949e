/** What stands before every handler: who may call, errors in the mesh's form, deadlines, and the end of the server. */
import { randomUUID } from "node:crypto";
import type { DescMethod, DescService } from "@bufbuild/protobuf";
import { ConnectError, createContextKey, type HandlerContext, type ServiceImpl } from "@connectrpc/connect";
import { MeshError } from "@openclaw-rl/client";
import type { Membership } from "./membership.js";
import { ofTheStore, unavailable, unimplemented } from "./faults.js";

/** Who calls. */
export interface Peer {
  /** Its address without the port. */
  address: string;
  /** What its certificate names; undefined without TLS. */
  identity: { mesh: string; role: string } | undefined;
}

export const peerKey = createContextKey<Peer>({ address: "", identity: undefined });

const ALL = ["policy_server", "env_server", "prm_judge", "trainer", "operator"];
const OPERATORS = ["trainer", "operator"];
/** Roles that may call what OPERATORS may not, or not only they. */
const ROLES: Record<string, string[]> = {
  RecordTurns: ["policy_server"],
  Interact: ["operator"],
  EndSession: ["operator"],
  GetStatus: ALL,
  WatchStats: ALL,
  Drain: ["operator"],
  Forget: ["operator"],
  ReadLogs: ["operator"],
  ListSpans: ["operator"],
};

type Handler = (request: unknown, context: HandlerContext) => unknown;

/** Wraps services' handlers. */
export class Guard {
  private stopped: MeshError | undefined;
  private readonly running = new Set<(error: unknown) => void>();

  /**
   * @param mesh of this server's certificate; undefined without TLS: everybody may call.
   * @param membership refuses those of another mesh.
   */
  constructor(
    private readonly mesh: string | undefined,
    private readonly membership: Membership,
  ) {}

  /** End all streams, and refuse new calls: another one is worth a try later. */
  stop(): void {
    this.stopped = unavailable("the environment server is stopping");
    for (const end of this.running) end(this.stopped);
  }

  /** The handlers of a service with everything before them; those left out answer UNIMPLEMENTED. */
  service<S extends DescService>(service: S, handlers: Partial<ServiceImpl<S>>): ServiceImpl<S> {
    const wrapped: Record<string, Handler> = {};
    for (const method of service.methods) {
      const own = (handlers as Record<string, Handler | undefined>)[method.localName];
      const handler = own?.bind(handlers) ?? missing(method);
      const stream = method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming";
      wrapped[method.localName] = stream ? this.stream(method, handler) : this.unary(method, handler);
    }
    return wrapped as ServiceImpl<S>;
  }

  private unary(method: DescMethod, handler: Handler): Handler {
    return async (request, context) => {
      try {
        this.enter(method, context);
        return await this.atMost(context, async () => handler(request, context));
      } catch (error) {
        throw told(method, error);
      }
    };
  }

  private stream(method: DescMethod, handler: Handler): Handler {
    const guard = this;
    return async function* (request, context) {
      let items: AsyncIterator<unknown> | undefined;
      try {
        guard.enter(method, context);
        items = (handler(request, context) as AsyncIterable<unknown>)[Symbol.asyncIterator]();
        for (;;) {
          const { done, value } = await guard.atMost(context, () => items!.next());
          if (done) return;
          yield value;
        }
      } catch (error) {
        throw told(method, error);
      } finally {
        items?.return?.().catch(() => {}); // not waited for: it may be in the middle of something
      }
    };
  }

  /** Work until it is done, or the call's deadline, its cancellation or the server's end. */
  private atMost<T>(context: HandlerContext, work: () => Promise<T>): Promise<T> {
    const { signal } = context;
    return new Promise<T>((resolve, reject) => {
      const cancelled = (): void => reject(signal.reason);
      const tidy = (): void => {
        signal.removeEventListener("abort", cancelled);
        this.running.delete(reject);
      };
      if (signal.aborted) return cancelled();
      signal.addEventListener("abort", cancelled);
      this.running.add(reject);
      work().then(resolve, reject).finally(tidy);
    });
  }

  private enter(method: DescMethod, context: HandlerContext): void {
    if (this.stopped) throw this.stopped;
    if (method.parent.typeName.startsWith("grpc.")) return;
    if (this.mesh !== undefined) this.authorize(method, context);
    this.membership.admit(method.name, context.requestHeader, this.mesh !== undefined);
  }

  private authorize(method: DescMethod, context: HandlerContext): void {
    const { identity } = context.values.get(peerKey);
    if (!identity?.role || identity.mesh !== this.mesh) {
      const message = `the certificate is not of a role in the mesh ${this.mesh}`;
      throw new MeshError({ code: "PERMISSION_DENIED", reason: "FOREIGN_MESH", message });
    }
    const allowed = ROLES[method.name] ?? OPERATORS;
    if (!allowed.includes(identity.role)) {
      const message = `${method.name} is for ${allowed.join(", ")}; the certificate is of ${identity.role}`;
      throw new MeshError({ code: "PERMISSION_DENIED", reason: "WRONG_ROLE", message });
    }
  }
}

function missing(method: DescMethod): Handler {
  const error = unimplemented(method.name);
  if (method.methodKind === "unary") {
    return () => {
      throw error;
    };
  }
  return async function* () {
    throw error;
  };
}

/** An error as it is sent: always with its reason. */
function told(method: DescMethod, error: unknown): ConnectError {
  if (error instanceof MeshError) return error.toConnectError();
  const failure = ofTheStore(error);
  if (failure) {
    console.error(`${method.name}:`, error);
    return failure.toConnectError();
  }
  if (error instanceof ConnectError) return error.details.length > 0 ? error : MeshError.from(error).toConnectError();
  const incident = randomUUID();
  console.error(`incident ${incident} in ${method.name}:`, error);
  const message = `internal error; the component's log has more under incident ${incident}`;
  return new MeshError({ code: "INTERNAL", message, metadata: { incident } }).toConnectError();
}
