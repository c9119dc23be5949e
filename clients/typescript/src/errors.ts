import type { DescMessage, MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/** `ErrorInfo.domain` of a mesh's own errors. */
export const ERROR_DOMAIN = "openclaw-rl";

/** gRPC's code of an error, by its usual name. */
export type StatusCode =
  | "CANCELLED"
  | "UNKNOWN"
  | "INVALID_ARGUMENT"
  | "DEADLINE_EXCEEDED"
  | "NOT_FOUND"
  | "ALREADY_EXISTS"
  | "PERMISSION_DENIED"
  | "RESOURCE_EXHAUSTED"
  | "FAILED_PRECONDITION"
  | "ABORTED"
  | "OUT_OF_RANGE"
  | "UNIMPLEMENTED"
  | "INTERNAL"
  | "UNAVAILABLE"
  | "DATA_LOSS"
  | "UNAUTHENTICATED";

/** A field with a value that is not allowed. */
export interface Violation {
  /** Its path, such as "sampling.temperature". */
  field: string;
  /** What is wrong with it, and what is allowed. */
  description: string;
}

/** What a `MeshError` is made of. */
export interface MeshErrorInit {
  code: StatusCode;
  message: string;
  reason?: string;
  violations?: Violation[];
  retryAfter?: number;
  metadata?: Record<string, string>;
  advice?: string;
  address?: string;
  method?: string;
  cause?: unknown;
}

/**
 * The one kind of error of this package's calls. Printed, it says what is wrong and what to do.
 *
 * `reason` is one of the mesh's error catalogue (such as "VERSION_UNKNOWN"), or made here (CONTRACT_MISMATCH,
 * WRONG_COMPONENT, NO_ACK, FOREIGN_ACK, LEASE_CLOSED), or the name of the code when the server told none.
 */
export class MeshError extends Error {
  override readonly name = "MeshError";
  /** gRPC's code. */
  readonly code: StatusCode;
  /** Why, for programs. */
  readonly reason: string;
  /** What is wrong, without where it happened and what to do about it. */
  readonly text: string;
  /** The bad fields of an INVALID_ARGUMENT. */
  readonly violations: Violation[];
  /** Seconds after which a repeated call makes sense; undefined when the error does not say. */
  readonly retryAfter: number | undefined;
  /** More, by name. */
  readonly metadata: Record<string, string>;
  /** What to do about it, where this side has recognised it; else empty. */
  readonly advice: string;
  /** Whom the call was for; may be empty. */
  readonly address: string;
  /** The RPC, such as "PolicyService/Chat"; may be empty. */
  readonly method: string;

  constructor(init: MeshErrorInit) {
    super(printed(init), init.cause === undefined ? undefined : { cause: init.cause });
    this.code = init.code;
    this.reason = init.reason ?? init.code;
    this.text = init.message;
    this.violations = init.violations ?? [];
    this.retryAfter = init.retryAfter;
    this.metadata = init.metadata ?? {};
    this.advice = init.advice ?? "";
    this.address = init.address ?? "";
    this.method = init.method ?? "";
  }

  /** The same call may succeed later. */
  get retryable(): boolean {
    return this.retryAfter !== undefined || this.code === "UNAVAILABLE" || this.code === "ABORTED";
  }

  /** The same error with more about where it happened. */
  with(more: Partial<MeshErrorInit>): MeshError {
    return new MeshError({
      code: this.code,
      reason: this.reason,
      message: this.text,
      violations: this.violations,
      ...(this.retryAfter === undefined ? {} : { retryAfter: this.retryAfter }),
      metadata: this.metadata,
      advice: this.advice,
      address: this.address,
      method: this.method,
      cause: this.cause,
      ...more,
    });
  }

  /** The error as a server of @connectrpc/connect throws it, details included. */
  toConnectError(): ConnectError {
    const details: { desc: DescMessage; value: MessageInitShape<DescMessage> }[] = [
      { desc: ErrorInfoSchema, value: { reason: this.reason, domain: ERROR_DOMAIN, metadata: this.metadata } },
    ];
    if (this.violations.length > 0) {
      details.push({ desc: BadRequestSchema, value: { fieldViolations: this.violations } });
    }
    if (this.retryAfter !== undefined) {
      const seconds = Math.floor(this.retryAfter);
      const nanos = Math.round((this.retryAfter - seconds) * 1e9);
      details.push({ desc: RetryInfoSchema, value: { retryDelay: { seconds: BigInt(seconds), nanos } } });
    }
    return new ConnectError(this.text, codeNumber(this.code), undefined, details);
  }

  /** The error that a call ended with, its details read; one that is a `MeshError` already is given back. */
  static from(error: unknown): MeshError {
    if (error instanceof MeshError) return error;
    const failure = ConnectError.from(error);
    const code = codeName(failure.code);
    const info = failure.findDetails(ErrorInfoSchema)[0];
    const delay = failure.findDetails(RetryInfoSchema)[0]?.retryDelay;
    const bad = failure.findDetails(BadRequestSchema)[0];
    return new MeshError({
      code,
      reason: info?.reason || code,
      message: failure.rawMessage || code,
      violations: bad?.fieldViolations.map(({ field, description }) => ({ field, description })) ?? [],
      ...(delay ? { retryAfter: Number(delay.seconds) + delay.nanos / 1e9 } : {}),
      metadata: info?.metadata ?? {},
      cause: error,
    });
  }
}

/** A field with a value that is not allowed; `allowed` completes "must be ...". */
export function invalid(field: string, value: unknown, allowed: string): MeshError {
  let shown = JSON.stringify(value, (_, v: unknown) => (typeof v === "bigint" ? String(v) : v)) ?? String(value);
  if (shown.length > 80) shown = `${shown.slice(0, 77)}...`;
  return invalidFields([{ field, description: `${shown} is not allowed: must be ${allowed}` }]);
}

/** Several bad fields at once. */
export function invalidFields(violations: Violation[]): MeshError {
  const message = violations.map(({ field, description }) => `${field}: ${description}`).join("; ");
  return new MeshError({ code: "INVALID_ARGUMENT", message, violations });
}

function printed(init: MeshErrorInit): string {
  const where = [init.method, init.address && `at ${init.address}`].filter(Boolean).join(" ");
  const fields = (init.violations ?? [])
    .filter(({ field }) => !init.message.includes(field))
    .map(({ field, description }) => `; ${field}: ${description}`);
  const retry = init.retryAfter === undefined ? "" : ` (worth repeating after ${init.retryAfter} s)`;
  return (
    (where ? `${where}: ` : "") +
    `${init.reason ?? init.code}: ${init.message}${fields.join("")}` +
    (init.advice ? `. ${init.advice}` : "") +
    retry
  );
}

function codeName(code: Code): StatusCode {
  if (code === Code.Canceled) return "CANCELLED";
  return Code[code].replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase() as StatusCode;
}

function codeNumber(code: StatusCode): Code {
  for (const value of Object.values(Code)) {
    if (typeof value === "number" && codeName(value) === code) return value;
  }
  return Code.Unknown;
}
