import { existsSync } from "node:fs";
import { parseArgs } from "node:util";
import { MESH_VARIABLE } from "@openclaw-rl/client";

/** What the command line says. */
export interface Options {
  host: string;
  port: number;
  data: string;
  judge: string;
  policy: string;
  mesh: string;
  certs: string | undefined;
  tasks: string | undefined;
  capacity: number;
  leaseTtl: number;
  sessionTimeout: number;
}

export const HELP = `An environment server of an OpenClaw-RL mesh.

  env-server --listen 127.0.0.1:50052 --data ./data --judge 127.0.0.1:50053 --policy 127.0.0.1:50051

  --listen HOST:PORT      where to serve gRPC; port 0 means any free one (default 127.0.0.1:50052)
  --data DIR              folder for state.db; made when it is not there (default ./data)
  --judge HOST:PORT       where transitions go (default 127.0.0.1:50053)
  --policy HOST:PORT      whom Interact asks for answers (default 127.0.0.1:50051)
  --mesh ID               the mesh that it belongs to (\`openclaw-rl mesh id\`): components of another one are refused.
                          Default: the variable OPENCLAW_RL_MESH, else the certificate's; without one it takes no turns
  --certs DIR             folder with ca.crt, env_server.crt and env_server.key: mutual TLS, also to judge and policy
  --tasks FILE            tasks of the environment tool_call (default tasks.json beside this package)
  --capacity N            leases at a time (default 8)
  --lease-ttl SECONDS     after which a lease that nobody uses is taken back (default 120)
  --session-timeout SECONDS  after which an idle session has ended (default 300)
  --help                  this text
`;

/** A command line that can't be used; says which option, and what is allowed. */
export class BadOptions extends Error {}

/** Read a command line; undefined asks for help. */
export function readOptions(argv: string[]): Options | undefined {
  const text = { type: "string" } as const;
  const names = [
    "listen",
    "data",
    "judge",
    "policy",
    "mesh",
    "certs",
    "tasks",
    "capacity",
    "lease-ttl",
    "session-timeout",
  ] as const;
  const options = { ...Object.fromEntries(names.map((name) => [name, text])), help: { type: "boolean" } } as const;
  let values: Record<string, string | boolean | undefined>;
  try {
    ({ values } = parseArgs({ args: argv, options, strict: true }));
  } catch (error) {
    throw new BadOptions((error as Error).message);
  }
  if (values["help"]) return undefined;
  const given = (name: (typeof names)[number]): string | undefined => values[name] as string | undefined;
  const { host, port } = address("listen", given("listen") ?? "127.0.0.1:50052");
  const neighbour = (name: "judge" | "policy", fallback: string): string => {
    const where = given(name) ?? fallback;
    if (address(name, where).port === 0) throw new BadOptions(`--${name} ${where}: the port must be 1 to 65535`);
    return where;
  };
  const certs = given("certs");
  for (const file of certs === undefined ? [] : ["ca.crt", "env_server.crt", "env_server.key"]) {
    if (!existsSync(`${certs}/${file}`)) {
      throw new BadOptions(`--certs ${certs}: ${file} is not there; \`openclaw-rl init\` makes it`);
    }
  }
  if (certs === undefined && !/^(127\.|::1$|localhost$)/.test(host)) {
    throw new BadOptions(
      `--listen ${host}:${port}: without --certs anybody on the network could read and change everything`,
    );
  }
  return {
    host,
    port,
    data: given("data") ?? "./data",
    judge: neighbour("judge", "127.0.0.1:50053"),
    policy: neighbour("policy", "127.0.0.1:50051"),
    mesh: given("mesh") ?? process.env[MESH_VARIABLE] ?? "",
    certs,
    tasks: given("tasks"),
    capacity: number("capacity", given("capacity") ?? "8", 1, 10_000, true),
    leaseTtl: number("lease-ttl", given("lease-ttl") ?? "120", 0.1, 86_400),
    sessionTimeout: number("session-timeout", given("session-timeout") ?? "300", 0.1, 1e9),
  };
}

function address(name: string, value: string): { host: string; port: number } {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^\s:/[\]]+)):([0-9]{1,5})$/.exec(value);
  const port = Number(match?.[3]);
  if (!match || port > 65535) throw new BadOptions(`--${name} ${value}: must be HOST:PORT, such as 127.0.0.1:50052`);
  return { host: (match[1] ?? match[2])!, port };
}

function number(name: string, value: string, low: number, high: number, whole = false): number {
  const read = Number(value);
  if (!(read >= low && read <= high) || value.trim() === "" || (whole && !Number.isInteger(read))) {
    throw new BadOptions(`--${name} ${value}: must be a ${whole ? "whole " : ""}number from ${low} to ${high}`);
  }
  return read;
}
