import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import * as http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { after } from "node:test";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { TimestampSchema } from "@bufbuild/protobuf/wkt";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { identity, MESH_VARIABLE, MeshError } from "@openclaw-rl/client";
import {
  AckStatus,
  JudgeService,
  PolicyEventSchema,
  TurnSchema,
  type PolicyEvent,
  type Transition,
  type Turn,
} from "@openclaw-rl/client/v1";

/** The mesh of the tests: of the servers that they start, which inherit it, and of their clients. */
export const OURS = "mesh-a";
process.env[MESH_VARIABLE] = OURS;

const folders: string[] = [];
process.on("exit", () => folders.forEach((made) => rmSync(made, { recursive: true, force: true })));

export function folder(): string {
  const made = mkdtempSync(join(tmpdir(), "env-server-"));
  folders.push(made);
  return made;
}

export function event(event: MessageInitShape<typeof PolicyEventSchema>["event"]): PolicyEvent {
  return create(PolicyEventSchema, { event: event! });
}

let number = 0;

/** A turn of a conversation that is given as texts: user, assistant, user, ..., and last the response. */
export function turn(id: string, texts: string[], more: Partial<Turn> = {}): PolicyEvent {
  const roles = ["user", "assistant"] as const;
  const messages = texts.map((content, i) => ({ role: roles[i % 2]!, content }));
  const response = messages.pop()!;
  const requestedAt = { seconds: BigInt(1_700_000_000 + ++number), nanos: 0 };
  return event({
    case: "turn",
    value: {
      ...create(TurnSchema, { turnId: id, sessionId: "s", messages, response, client: "k:1" }),
      requestedAt: create(TimestampSchema, requestedAt),
      ...more,
    },
  });
}

export async function until(what: () => boolean | Promise<boolean>, seconds = 30): Promise<void> {
  const end = Date.now() + seconds * 1000;
  while (!(await what())) {
    if (Date.now() > end) throw new Error(`it is still not so after ${seconds} s: ${what.toString()}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export async function failure(work: Promise<unknown>): Promise<MeshError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof MeshError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

/** A judge in this process that keeps what it is sent, of the mesh that its `mesh` says. */
export async function judge(port = 0) {
  const got: Transition[] = [];
  const made = { mesh: OURS };
  const adapter = connectNodeAdapter({
    routes: (router) =>
      router.service(JudgeService, {
        judgeTransitions: async function* (requests) {
          for await (const { transitions } of requests) {
            got.push(...transitions);
            yield { acks: transitions.map(({ turn }) => ({ id: turn!.turnId, status: AckStatus.ACCEPTED })) };
          }
        },
      }),
  });
  const sessions = new Set<http2.ServerHttp2Session>();
  const server = http2.createServer((request, response) => {
    response.writeHead(200, { "content-type": "application/grpc+proto", ...identity(made.mesh, "prm_judge") });
    (response as typeof response & { flushHeaders(): void }).flushHeaders();
    response.writeHead = () => response;
    adapter(request, response);
  });
  server.on("session", (session) => sessions.add(session));
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  return Object.assign(made, {
    got,
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => {
      sessions.forEach((session) => session.destroy());
      server.close();
    },
  });
}

const MAIN = fileURLToPath(new URL("../dist/main.js", import.meta.url)); // as it is run, and quick to start

/** The server's process. */
export class Server {
  address = "";
  output = "";
  readonly exit: Promise<number | null>;
  private readonly child: ChildProcess;

  constructor(...args: string[]) {
    this.child = spawn(process.execPath, [MAIN, ...args], { stdio: ["ignore", "pipe", "pipe"] });
    const read = (data: Buffer): void => {
      this.output += data.toString();
      this.address = /serves gRPC on (\S+)/.exec(this.output)?.[1] ?? "";
    };
    this.child.stdout!.on("data", read);
    this.child.stderr!.on("data", read);
    this.exit = new Promise((resolve) => this.child.on("exit", resolve));
    after(() => this.child.kill("SIGKILL")); // also when the test has failed
  }

  static async start(...args: string[]): Promise<Server> {
    const server = new Server("--listen", "127.0.0.1:0", ...args);
    let gone = false;
    void server.exit.then(() => (gone = true));
    await until(() => server.address !== "" || gone, 60);
    if (!server.address) throw new Error(`it has ended: ${server.output}`);
    return server;
  }

  kill(signal: "SIGTERM" | "SIGKILL"): Promise<number | null> {
    this.child.kill(signal);
    return this.exit;
  }
}
