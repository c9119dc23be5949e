/** The HTTP/2 server: plain text or mutual TLS, and what @connectrpc/connect-node leaves to do for gRPC's clients. */
import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import * as http2 from "node:http2";
import type { AddressInfo, Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import { create, toBinary } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import { ConnectError, createContextValues, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ERROR_DOMAIN, MAX_MESSAGE_BYTES, MeshError } from "@openclaw-rl/client";
import { ErrorInfoSchema, StatusSchema } from "@openclaw-rl/client/grpc";
import { peerKey } from "./guard.js";

const DETAILS = "grpc-status-details-bin";
const SESSION_MEGABYTES = 256; // Node refuses calls of a connection that buffers more; one message may have 16
const ROLE = "env_server";
type Request = http2.Http2ServerRequest;
type Response = http2.Http2ServerResponse;

/** A server that listens. */
export interface Listening {
  port: number;
  /** Take no more connections and calls, and wait until those that run have ended, at most so long. */
  close(graceMs: number): Promise<void>;
}

/** The mesh and role that a certificate names, by its URI `spiffe://MESH/ROLE`, else by its common name. */
export function identityOf(
  altNames: string | undefined,
  commonName: string | undefined,
): { mesh: string; role: string } {
  const uri = /URI:spiffe:\/\/([^/,]+)\/([^/,\s]+)/.exec(altNames ?? "");
  return uri ? { mesh: uri[1]!, role: uri[2]! } : { mesh: "", role: commonName ?? "" };
}

/** The mesh of this server's certificate; undefined without one. */
export function ownMesh(certs: string | undefined): string | undefined {
  if (certs === undefined) return undefined;
  return identityOf(new X509Certificate(readFileSync(`${certs}/${ROLE}.crt`)).subjectAltName, undefined).mesh;
}

/**
 * Listen.
 *
 * @param streams paths of the calls whose answer is a stream.
 * @param headers of each answer.
 * @throws an error of Node's when the address can't be listened on.
 */
export async function listen(
  host: string,
  port: number,
  certs: string | undefined,
  routes: (router: ConnectRouter) => void,
  streams: Set<string>,
  headers: Record<string, string>,
): Promise<Listening> {
  const handler = connectNodeAdapter({
    routes,
    readMaxBytes: MAX_MESSAGE_BYTES,
    writeMaxBytes: MAX_MESSAGE_BYTES,
    contextValues: (request) => createContextValues().set(peerKey, peerOf(request.socket as Socket)),
    fallback: (_, response) => unknown(response as Response),
  });
  const listener = (request: Request, response: Response): void => {
    delete request.headers["grpc-accept-encoding"]; // on one machine compressing only costs time
    for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
    withDetails(response);
    if (streams.has(request.url) && /^application\/grpc(\+proto)?$/.test(request.headers["content-type"] ?? "")) {
      headersAtOnce(response);
    }
    handler(request, response);
  };
  const options = {
    maxSessionMemory: SESSION_MEGABYTES,
    keepAlive: true, // a caller whose machine is gone says no more
    keepAliveInitialDelay: 60_000,
    settings: { initialWindowSize: 2 ** 20, maxConcurrentStreams: 1024 },
  };
  const file = (name: string): Buffer => readFileSync(`${certs}/${name}`);
  const server =
    certs === undefined
      ? http2.createServer(options, listener)
      : http2.createSecureServer(
          {
            ...options,
            ca: file("ca.crt"),
            cert: file(`${ROLE}.crt`),
            key: file(`${ROLE}.key`),
            requestCert: true,
            rejectUnauthorized: true,
            minVersion: "TLSv1.2",
            handshakeTimeout: 20_000,
          },
          listener,
        );
  const sessions = new Set<http2.ServerHttp2Session>();
  server.on("session", (session) => {
    sessions.add(session);
    session.on("close", () => sessions.delete(session));
    session.on("error", () => session.destroy());
  });
  server.on("sessionError", () => {}); // a caller that speaks something else
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, resolve);
  });
  return {
    port: (server.address() as AddressInfo).port,
    close: async (graceMs) => {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const session of sessions) session.close();
      const timer = setTimeout(() => sessions.forEach((session) => session.destroy()), graceMs);
      await closed;
      clearTimeout(timer);
    },
  };
}

function peerOf(socket: Socket): { address: string; identity: ReturnType<typeof identityOf> | undefined } {
  const address = socket.remoteAddress ?? "";
  if (!("getPeerCertificate" in socket)) return { address, identity: undefined };
  const { subjectaltname, subject } = (socket as TLSSocket).getPeerCertificate();
  return { address, identity: identityOf(subjectaltname, subject?.CN as string | undefined) };
}

/** Send the headers now: connect sends them with the first answer, and some clients wait for them before they write. */
function headersAtOnce(response: Response): void {
  response.writeHead(200, { "content-type": "application/grpc+proto" });
  (response as Response & { flushHeaders(): void }).flushHeaders(); // Node has it, its types don't
  response.writeHead = () => response;
}

/** Give the errors that connect makes itself (too large, no such method) their details. */
function withDetails(response: Response): void {
  const add = response.addTrailers.bind(response);
  response.addTrailers = (trailers) => {
    const code = Number(trailers["grpc-status"] ?? 0);
    if (code !== 0 && trailers[DETAILS] === undefined) {
      trailers = { ...trailers, [DETAILS]: details(code, decodeURIComponent(String(trailers["grpc-message"] ?? ""))) };
    }
    add(trailers);
  };
}

function unknown(response: Response): void {
  const message = "there is no such service or method here";
  const headers = {
    ":status": 200,
    "content-type": "application/grpc+proto",
    "grpc-status": "12",
    "grpc-message": encodeURIComponent(message),
    [DETAILS]: details(12, message),
  };
  response.stream.respond(headers, { endStream: true }); // an empty frame behind them would not be gRPC
}

function details(code: number, message: string): string {
  const { reason } = MeshError.from(new ConnectError(message, code));
  const info = create(ErrorInfoSchema, { reason, domain: ERROR_DOMAIN });
  const status = create(StatusSchema, { code, message, details: [anyPack(ErrorInfoSchema, info)] });
  return Buffer.from(toBinary(StatusSchema, status)).toString("base64").replace(/=+$/, "");
}
