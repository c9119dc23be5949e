import assert from "node:assert/strict";
import * as http from "node:http";
import * as net from "node:net";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  ComponentClient,
  EnvironmentClient,
  CONTRACT_VERSION,
  JudgeClient,
  MAX_MESSAGE_BYTES,
  MeshError,
  PolicyClient,
  TrainerClient,
} from "../src/index.js";
import { ComponentService, JudgeService, PolicyService, TrainerService } from "../src/v1.js";
import { failure, serve, until } from "./fake.js";

test("an error has its details and says what to do", async () => {
  const told = new MeshError({
    code: "INVALID_ARGUMENT",
    reason: "INVALID_ARGUMENT",
    message: "sampling.temperature: -1 is not allowed: must be from 0 to 2",
    violations: [{ field: "sampling.temperature", description: "-1 is not allowed: must be from 0 to 2" }],
    retryAfter: 1.5,
    metadata: { id: "x" },
  });
  await using server = await serve((router) =>
    router.service(PolicyService, {
      getPolicy: () => {
        throw told.toConnectError();
      },
      chat: async function* () {
        throw told.toConnectError();
      },
    }),
  );
  await using policy = new PolicyClient({ address: server.address });
  for (const call of [() => policy.policy(), () => policy.chat("Hi").text()]) {
    const error = await failure(call());
    assert.equal(error.code, "INVALID_ARGUMENT");
    assert.equal(error.reason, "INVALID_ARGUMENT");
    assert.deepEqual(error.violations, told.violations);
    assert.equal(error.retryAfter, 1.5);
    assert.equal(error.retryable, true);
    assert.deepEqual(error.metadata, { id: "x" });
    assert.match(String(error), /PolicyService\/\w+ at 127\.0\.0\.1:\d+: INVALID_ARGUMENT: sampling\.temperature/);
    assert.match(String(error), /worth repeating after 1.5 s/);
  }
});

test("nothing listens there", async () => {
  const taken = net.createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => taken.once("listening", resolve));
  const { port } = taken.address() as AddressInfo;
  await new Promise((resolve) => taken.close(resolve));
  await using policy = new PolicyClient({ address: `127.0.0.1:${port}` });
  const error = await failure(policy.status());
  assert.equal(error.code, "UNAVAILABLE");
  assert.match(String(error), /Nothing listens there/);
});

const HTTP1 = {
  "Node's": () => http.createServer((_, response) => response.end("hello")),
  // Some answer a version that they don't know with a page without a head.
  "one that answers HTTP/2 with a bare page": () =>
    net.createServer((socket) =>
      socket.once("data", (data) =>
        socket.end(`${/HTTP\/1/.test(String(data)) ? "HTTP/1.0 200 OK\r\n\r\n" : ""}<html>`),
      ),
    ),
};

for (const [name, make] of Object.entries(HTTP1)) {
  test(`an address that speaks HTTP/1: ${name}`, async () => {
    const server = make().listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    try {
      await using policy = new PolicyClient({ address: `127.0.0.1:${(server.address() as AddressInfo).port}` });
      for (const call of [() => policy.status(), () => policy.chat("Hi").text()]) {
        const error = await failure(call());
        assert.equal(error.reason, "HTTP1", String(error));
        assert.match(String(error), /speaks HTTP\/1, and gRPC needs HTTP\/2/);
        assert.equal(error.retryable, false);
      }
    } finally {
      if (server instanceof http.Server) server.closeAllConnections();
      server.close();
    }
  });
}

test("what a server of another make says without details stays what it is", async () => {
  await using server = await serve((router) =>
    router.service(PolicyService, {
      getPolicy: () => {
        throw new ConnectError("it broke", Code.Internal);
      },
    }),
  );
  const policy = new PolicyClient({ address: server.address });
  const error = await failure(policy.policy());
  assert.equal(error.code, "INTERNAL");
  assert.equal(error.reason, "INTERNAL");
  assert.equal(error.text, "it broke");
  policy.close();
  const closed = await failure(policy.policy());
  assert.equal(closed.code, "CANCELLED", String(closed));
  assert.equal((await failure(policy.chat("Hi").text())).code, "CANCELLED");
  assert.match(String(closed), /the client was closed/);
});

test("a connection that breaks in the middle of a call is worth another try", async () => {
  await using server = await serve((router) =>
    router.service(PolicyService, { getPolicy: () => new Promise(() => setTimeout(() => server.cut(), 20)) }),
  );
  await using policy = new PolicyClient({ address: server.address });
  const error = await failure(policy.policy());
  assert.equal(error.code, "UNAVAILABLE", String(error));
  assert.equal(error.retryable, true);
});

test("TLS against plain text", async () => {
  await using server = await serve((router) => router.service(ComponentService, {}));
  await using client = new ComponentClient({ address: server.address, tls: {} });
  const error = await failure(client.status());
  assert.equal(error.reason, "PLAIN_TEXT", String(error));
});

test("an address that serves something else", async () => {
  await using server = await serve((router) => router.service(TrainerService, {}));
  await using judge = new JudgeClient({ address: server.address });
  const error = await failure(judge.judge({ turn: {} }));
  assert.equal(error.code, "UNIMPLEMENTED");
  assert.match(String(error), /Another service may be behind the address/);
});

test("check tells another component, another contract and an older one", async () => {
  const status = { name: "trainer", contractVersion: "2.0" };
  await using server = await serve((router) => router.service(ComponentService, { getStatus: () => ({ status }) }));
  await using trainer = new TrainerClient({ address: server.address });
  await using judge = new JudgeClient({ address: server.address });
  const other = await failure(judge.check());
  assert.equal(other.reason, "WRONG_COMPONENT");
  assert.match(String(other), /"trainer" answers there, not "prm_judge"/);
  const major = await failure(trainer.check());
  assert.equal(major.reason, "CONTRACT_MISMATCH");
  assert.match(String(major), new RegExp(`contract 2\\.0, this client ${CONTRACT_VERSION.replace(".", "\\.")}`));
  for (const [contractVersion, same, warnings] of [
    ["", "1.0", 1],
    ["1.9", "1.9", 0],
  ] as const) {
    status.contractVersion = contractVersion;
    const report = await trainer.check();
    assert.equal(report.contractVersion, same);
    assert.equal(report.warnings.length, warnings);
  }
});

test("messages beyond the limit fail their call only", async () => {
  const long = "x".repeat(MAX_MESSAGE_BYTES + 1);
  let asked = 0;
  await using server = await serve((router) =>
    router.service(JudgeService, {
      judge: ({ transition }) => {
        asked += 1;
        const rationale = transition?.turn?.turnId === "long" ? long : "fine";
        return { judgement: { turnId: "t", votes: [{ judge: "j", rationale }] } };
      },
    }),
  );
  await using judge = new JudgeClient({ address: server.address });
  const sent = await failure(judge.judge({ turn: { turnId: "t", model: long } }, { timeoutMs: 3000 }));
  assert.equal(sent.code, "RESOURCE_EXHAUSTED", String(sent));
  const received = await failure(judge.judge({ turn: { turnId: "long" } }, { timeoutMs: 3000 }));
  assert.equal(received.code, "RESOURCE_EXHAUSTED", String(received));
  assert.equal((await judge.judge({ turn: { turnId: "t" } })).votes[0]?.rationale, "fine");
  assert.equal(asked, 2);
});

test("a deadline and a cancellation end the call at the server too", async () => {
  const ended: string[] = [];
  await using server = await serve((router) =>
    router.service(PolicyService, {
      getPolicy: async (_, { signal }) => {
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        ended.push("unary");
        throw new ConnectError("late", Code.Canceled);
      },
      chat: async function* (_, { signal }) {
        yield { event: { case: "start", value: { turnId: "t1" } } };
        yield { event: { case: "delta", value: { content: "one" } } };
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        ended.push("stream");
      },
    }),
  );
  await using policy = new PolicyClient({ address: server.address, timeoutMs: 100 });
  assert.equal((await failure(policy.policy())).code, "DEADLINE_EXCEEDED");
  await until(() => ended.length === 1);
  const stopper = new AbortController();
  const asked = policy.policy({ signal: stopper.signal, timeoutMs: 10_000 });
  setTimeout(() => stopper.abort(), 50);
  assert.equal((await failure(asked)).code, "CANCELLED");
  await until(() => ended.length === 2);
  const stream = policy.chat("Hi");
  for await (const piece of stream) {
    assert.equal(piece.content, "one");
    break;
  }
  assert.equal(stream.turnId, "t1");
  await until(() => ended.at(-1) === "stream");
  assert.equal((await failure(policy.chat("Hi", { timeoutMs: 100 }).text())).code, "DEADLINE_EXCEEDED");
});

test("a bearer key is sent, and not in plain text to another machine", async () => {
  let seen: string | null = null;
  await using server = await serve((router) =>
    router.service(ComponentService, {
      getStatus: (_, { requestHeader }) => {
        seen = requestHeader.get("authorization");
        return { status: { name: "trainer" } };
      },
    }),
  );
  await using client = new ComponentClient({ address: server.address, key: "secret" });
  await client.status();
  assert.equal(seen, "Bearer secret");
  assert.throws(() => new PolicyClient({ address: "10.0.0.9:50051", key: "secret" }), /not sent in plain text/);
  assert.throws(
    () => new PolicyClient({ address: "localhost" }),
    /address: "localhost" is not allowed: must be HOST:PORT/,
  );
  for (const key of ["sec ret\n", "", "schlüssel"]) {
    const refused = await failure((async () => new ComponentClient({ address: server.address, key }))());
    assert.equal(refused.violations[0]!.field, "key");
    assert.ok(key === "" || !String(refused).includes(key.slice(0, 4)), "the key is shown");
  }
});

test("options that can't be are refused by their name", async () => {
  await using server = await serve(() => {});
  const { address } = server;
  await using policy = new PolicyClient({ address });
  await using environment = new EnvironmentClient({ address });
  for (const [field, call] of [
    ["timeoutMs", () => policy.policy({ timeoutMs: 0 })],
    ["timeoutMs", () => policy.policy({ timeoutMs: Infinity })],
    ["timeoutMs", () => policy.chat("Hi", { timeoutMs: -1 }).text()],
    ["timeoutMs", async () => new PolicyClient({ address, timeoutMs: NaN })],
    ["exactVersion", async () => policy.chat("Hi", { exactVersion: 1.5 })],
    ["version", async () => policy.rollback(0.5)],
    ["token_ids", () => policy.score([1.5])],
    ["waitSeconds", () => environment.acquire("tool_call", { waitSeconds: NaN })],
    ["seconds", async () => environment.watchStats({ seconds: Infinity })],
  ] as const) {
    const refused = await failure((async () => await call())());
    assert.equal(refused.code, "INVALID_ARGUMENT", String(refused));
    assert.equal(refused.violations[0]!.field, field);
  }
  assert.equal(new PolicyClient({ address: undefined }).address, "127.0.0.1:50051"); // such as an unset variable
});
