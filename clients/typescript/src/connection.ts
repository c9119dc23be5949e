import type { DescService } from "@bufbuild/protobuf";
import { createClient, type Client, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { probe, tlsRefusal } from "./diagnose.js";
import { invalid, invalidFields, MeshError } from "./errors.js";
import { identified, MESH_VARIABLE } from "./mesh.js";
import { checkTimeout, splitAddress, type CallOptions, type ClientOptions, type Pem } from "./options.js";
import { MAX_MESSAGE_BYTES } from "./version.js";

/** Names of the components, as their status has them. */
export type Role = "policy_server" | "env_server" | "prm_judge" | "trainer";

const DEFAULT_TIMEOUT_MS = 30_000;
/** Node refuses new calls of a connection that buffers more than this (by default 10): less than one long message. */
const SESSION_MEGABYTES = 256;
const LOOPBACK = /^(127\.|::1$|localhost$)/;

/** A connection to one component; it connects with the first call, and again after a break. */
export class Connection {
  readonly address: string;
  readonly transport: Transport;
  readonly reconnect: boolean;
  private readonly host: string;
  private readonly port: number;
  private readonly timeoutMs: number;
  private readonly encrypted: boolean;
  private readonly nodeOptions: object;
  private readonly sessions: Http2SessionManager;
  private closed: MeshError | undefined;

  /**
   * @param role the component that must be there, by its certificate; "" takes any of the mesh.
   * @param defaultPort where it listens unless the options say otherwise.
   */
  constructor(role: Role | "", defaultPort: number, options: ClientOptions = {}) {
    this.address = options.address ?? `127.0.0.1:${defaultPort}`;
    ({ host: this.host, port: this.port } = splitAddress(this.address));
    this.timeoutMs = checkTimeout(options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
    const mesh = options.mesh ?? process.env[MESH_VARIABLE] ?? "";
    this.reconnect = options.reconnect ?? true;
    this.encrypted = options.tls !== undefined;
    if (options.key !== undefined && !this.encrypted && !LOOPBACK.test(this.host)) {
      throw invalid("tls", undefined, "given beside `key`: a bearer key is not sent in plain text");
    }
    if (options.key !== undefined && !/^[\x21-\x7e]+$/.test(options.key)) {
      const description = "must be a bearer key as `openclaw-rl keys` made it, without spaces and line ends";
      throw invalidFields([{ field: "key", description }]); // its value is not shown
    }
    const baseUrl = `${this.encrypted ? "https" : "http"}://${this.address}`;
    this.nodeOptions = this.tlsOptions(role, options);
    this.sessions = new Http2SessionManager(
      baseUrl,
      { pingIntervalMs: 20_000, pingTimeoutMs: 10_000, connectTimeoutMs: 10_000 },
      this.nodeOptions,
    );
    this.transport = createGrpcTransport({
      baseUrl,
      sessionManager: this.sessions,
      interceptors: [
        ...(options.key === undefined ? [] : [bearer(options.key)]),
        ...(mesh ? [identified(mesh, options.component ?? "")] : []),
      ],
      acceptCompression: [],
      readMaxBytes: MAX_MESSAGE_BYTES,
      writeMaxBytes: MAX_MESSAGE_BYTES,
    });
  }

  /** A raw client of a service, for what this package does not wrap. Its errors are @connectrpc/connect's. */
  client<S extends DescService>(service: S): Client<S> {
    return createClient(service, this.transport);
  }

  /** Make a call that is answered once. */
  async unary<T>(method: string, options: CallOptions, call: (options: CallOptions) => Promise<T>): Promise<T> {
    this.assertOpen(method);
    try {
      return await call({ ...options, timeoutMs: checkTimeout(options.timeoutMs ?? this.timeoutMs) });
    } catch (error) {
      throw await this.explain(method, error, options.signal);
    }
  }

  /** The error that a call ended with, in this package's form, with what can be found out about its cause. */
  async explain(method: string, error: unknown, signal?: AbortSignal): Promise<MeshError> {
    const where = { address: this.address, method };
    const own = causes(error).find((cause) => cause instanceof MeshError);
    const failure = own ?? MeshError.from(error);
    if (signal?.aborted && failure.code !== "DEADLINE_EXCEEDED") {
      return new MeshError({ ...where, code: "CANCELLED", message: "the caller cancelled the call", cause: error });
    }
    const unfit = /^serialize binary: cannot encode field \S*?(\w+) to binary: (.*)/.exec(failure.text);
    if (unfit) return invalidFields([{ field: unfit[1]!, description: unfit[2]! }]).with(where);
    if (own || failure.reason !== failure.code) return failure.with(where); // all is said
    if (failure.code === "UNIMPLEMENTED") {
      const advice =
        "Another service may be behind the address, or one of an older contract: `check()` tells which component it is";
      return failure.with({ ...where, advice });
    }
    return (isConnection(failure) ? await this.unreachable(failure) : failure).with(where);
  }

  /** Throws when the connection was closed by this program. */
  assertOpen(method: string): void {
    if (this.closed) throw this.closed.with({ address: this.address, method });
  }

  /** End the connection and all its calls; no others can be made. */
  close(): void {
    this.closed = new MeshError({ code: "CANCELLED", message: "the client was closed" });
    this.sessions.abort(this.closed);
  }

  /** A connection that did not come about, or broke: say why. */
  private async unreachable(failure: MeshError): Promise<MeshError> {
    const codes = causes(failure).map(codeOf);
    const text = causes(failure)
      .map((cause) => (cause as Error).message)
      .join(" ");
    const broken = (advice: string, message = failure.text): MeshError =>
      failure.with({ code: "UNAVAILABLE", reason: "UNAVAILABLE", message, advice });
    if (codes.includes("ECONNREFUSED")) {
      return broken("Nothing listens there: start the component, or check the address and the port");
    }
    if (codes.includes("ENOTFOUND") || codes.includes("EAI_AGAIN")) return broken("Check the host's name");
    if (
      codes.some((code) => code.startsWith("ERR_SSL") || code === "EPROTO") ||
      /SSL|certificate|altname/i.test(text)
    ) {
      return wrongSide(failure, codes, text);
    }
    if (this.encrypted) {
      const refusal = await tlsRefusal(this.host, this.port, this.nodeOptions);
      if (refusal) return wrongSide(failure.with({ message: refusal.message }), [codeOf(refusal)], refusal.message);
    }
    const spoken = await probe(this.host, this.port);
    if (spoken === "http/1") {
      const message = "it speaks HTTP/1, and gRPC needs HTTP/2";
      return failure.with({
        code: "FAILED_PRECONDITION",
        reason: "HTTP1",
        message,
        advice: "Give the gRPC port of the component, not that of its HTTP door; a proxy before it must pass HTTP/2 on",
      });
    }
    if (spoken === "tls" && !this.encrypted) {
      const message = "it speaks TLS, and this side plain text";
      return failure.with({
        code: "FAILED_PRECONDITION",
        reason: "TLS_NEEDED",
        message,
        advice: "Give `tls` with the mesh's ca.crt and a certificate, or a bearer key for its keys_port",
      });
    }
    if (spoken === "nothing") return broken("Nothing listens there any more: it was stopped, or has died");
    if (failure.code === "INTERNAL" || failure.code === "ABORTED" || failure.code === "CANCELLED") {
      return broken("The connection broke; the call may be worth repeating");
    }
    return failure;
  }

  private tlsOptions(role: Role | "", options: ClientOptions): object {
    const tls = options.tls;
    if (!tls) return { maxSessionMemory: SESSION_MEGABYTES };
    const asRole = tls.cert === undefined ? undefined : `${role || "component"}.openclaw-rl.internal`;
    const servername = tls.serverName ?? asRole;
    const pem = (value: Pem | undefined): Buffer | string | undefined =>
      value === undefined || typeof value === "string" ? value : Buffer.from(value);
    return {
      maxSessionMemory: SESSION_MEGABYTES,
      ALPNProtocols: ["h2"],
      minVersion: "TLSv1.2",
      ...(tls.ca === undefined ? {} : { ca: pem(tls.ca) }),
      ...(tls.cert === undefined ? {} : { cert: pem(tls.cert), key: pem(tls.key) }),
      ...(servername === undefined ? {} : { servername }),
    };
  }
}

function wrongSide(failure: MeshError, codes: string[], text: string): MeshError {
  const told = (reason: string, message: string, advice: string): MeshError =>
    failure.with({ code: "FAILED_PRECONDITION", reason, message, advice });
  if (
    codes.some((code) => /WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG/.test(code)) ||
    /wrong version number/.test(text)
  ) {
    return told("PLAIN_TEXT", "it speaks plain text, and this side TLS", "Leave `tls` out, or check the address");
  }
  if (/certificate required|alert handshake|unknown ca|bad certificate/i.test(text)) {
    const message = `it does not take this side's certificate: ${failure.text}`;
    return told(
      "CERTIFICATE_REFUSED",
      message,
      "Give `tls` a certificate of its mesh: compare `openclaw-rl certs show` on both sides",
    );
  }
  if (/altname|does not match/i.test(text)) {
    return told(
      "CERTIFICATE_NAME",
      failure.text,
      "Another component or host is there than was expected: check the address, or give `tls.serverName`",
    );
  }
  return told(
    "CERTIFICATE_UNTRUSTED",
    `its certificate is not trusted: ${failure.text}`,
    "Give `tls.ca` the ca.crt of its mesh; check the clocks",
  );
}

function bearer(key: string): Interceptor {
  return (next) => (request) => {
    request.header.set("authorization", `Bearer ${key}`);
    return next(request);
  };
}

/** Whether an error comes from the connection, and not from a server that has answered. */
function isConnection(failure: MeshError): boolean {
  if (!["INTERNAL", "UNAVAILABLE", "ABORTED", "UNKNOWN", "CANCELLED"].includes(failure.code)) return false;
  return causes(failure).length > 2 || /http\/2|protocol error|missing trailer|HTTP \d{3}/i.test(failure.text);
}

function codeOf(error: Error): string {
  return String((error as NodeJS.ErrnoException).code ?? "");
}

/** An error and all its causes. */
function causes(error: unknown): Error[] {
  const chain: Error[] = [];
  for (let at = error; at instanceof Error && !chain.includes(at); at = at.cause) chain.push(at);
  return chain;
}
