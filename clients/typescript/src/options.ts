import { readFileSync } from "node:fs";
import { invalid } from "./errors.js";

/** PEM text or bytes. */
export type Pem = string | Uint8Array;

/** How a connection is encrypted. */
export interface TlsOptions {
  /** The mesh's CA (ca.crt); without it the system's CAs are trusted. */
  ca?: Pem;
  /** This side's certificate (such as operator.crt); none with a bearer key. */
  cert?: Pem;
  /** Its private key. */
  key?: Pem;
  /**
   * Name that the server's certificate must have. With a certificate of one's own that is by default
   * `ROLE.openclaw-rl.internal` of the component that is called, with a bearer key the host of the address.
   */
  serverName?: string;
}

/** Options of a client. */
export interface ClientOptions {
  /** HOST:PORT; by default 127.0.0.1 and the contract's port of the component. */
  address?: string;
  /** Bearer key, for the `keys_port` of a component. */
  key?: string;
  /** Encryption; without it the connection is plain text. */
  tls?: TlsOptions;
  /**
   * Id of the mesh (`openclaw-rl mesh id`): each call names it, and an answer of another mesh is not taken. By default
   * the variable OPENCLAW_RL_MESH; "" takes any. On plain text components take no ring stream of a sender without one.
   */
  mesh?: string;
  /** Name of this side, when it is a component of the mesh itself, such as "prm_judge". */
  component?: string;
  /** Deadline of calls that are answered once, in milliseconds; 30,000 by default. */
  timeoutMs?: number;
  /** Watches connect again by themselves when their stream breaks; true by default. */
  reconnect?: boolean;
}

/** Options of one call. */
export interface CallOptions {
  /** Deadline in milliseconds; streams have none unless it is given. */
  timeoutMs?: number;
  /** Cancels the call, at the server too. */
  signal?: AbortSignal;
}

/** The certificate of a role out of a folder of certificates (ca.crt, ROLE.crt, ROLE.key). */
export function tlsFromFolder(folder: string, role = "operator"): TlsOptions {
  return {
    ca: readFileSync(`${folder}/ca.crt`),
    cert: readFileSync(`${folder}/${role}.crt`),
    key: readFileSync(`${folder}/${role}.key`),
  };
}

/** Host and port of HOST:PORT, where HOST may be an IPv6 address in brackets. */
export function splitAddress(address: string): { host: string; port: number } {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^\s:/[\]]+)):([0-9]{1,5})$/.exec(address);
  const port = Number(match?.[3]);
  if (!match || port < 1 || port > 65535) throw invalid("address", address, "HOST:PORT, such as 127.0.0.1:50051");
  return { host: (match[1] ?? match[2])!, port };
}

/** A deadline in whole milliseconds. */
export function checkTimeout(ms: number): number {
  if (!(ms > 0 && ms < 2 ** 31)) throw invalid("timeoutMs", String(ms), "more than 0 and less than 2^31 milliseconds");
  return Math.ceil(ms);
}
