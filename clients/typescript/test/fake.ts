/** Servers for the tests, in this process. */
import * as http2 from "node:http2";
import type { AddressInfo } from "node:net";
import type { ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { MeshError } from "../src/index.js";

export interface Fake extends AsyncDisposable {
  address: string;
  /** Break all connections at once. */
  cut(): void;
  close(): Promise<void>;
}

/** @param headers of each answer, sent at once; by default what connect does: with the first message. */
export async function serve(
  routes: (router: ConnectRouter) => void,
  port = 0,
  headers?: () => Record<string, string>,
): Promise<Fake> {
  const sessions = new Set<http2.ServerHttp2Session>();
  const handler = connectNodeAdapter({ routes, readMaxBytes: 16 * 1024 * 1024 });
  const server = http2.createServer({ maxSessionMemory: 256 }, (request, response) => {
    if (headers) {
      response.writeHead(200, { "content-type": "application/grpc+proto", ...headers() });
      (response as typeof response & { flushHeaders(): void }).flushHeaders();
      response.writeHead = () => response;
    }
    handler(request, response);
  });
  server.on("session", (session) => {
    sessions.add(session);
    session.on("close", () => sessions.delete(session));
  });
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  const cut = (): void => sessions.forEach((session) => session.destroy());
  const close = async (): Promise<void> => {
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    cut();
    await closed;
  };
  return {
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    cut,
    close,
    [Symbol.asyncDispose]: close,
  };
}

/** Wait until something is so. */
export async function until(what: () => boolean, seconds = 20): Promise<void> {
  const end = Date.now() + seconds * 1000;
  while (!what()) {
    if (Date.now() > end) throw new Error(`it is still not so after ${seconds} s: ${what.toString()}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** The `MeshError` that something is rejected with. */
export async function failure(work: Promise<unknown>): Promise<MeshError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof MeshError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}
