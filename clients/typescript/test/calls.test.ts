import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { CONTRACT_VERSION, EnvironmentClient, JudgeClient, MeshError, PolicyClient } from "../src/index.js";
import { EnvironmentService, JudgeService, PolicyService } from "../src/v1.js";
import { failure, serve, until } from "./fake.js";

test("the contract's version is that of protos/VERSION", () => {
  assert.equal(CONTRACT_VERSION, readFileSync(new URL("../../../protos/VERSION", import.meta.url), "utf8").trim());
});

test("each RPC of the contract is wrapped or reachable by `raw`", async () => {
  await using policy = new PolicyClient();
  await using environment = new EnvironmentClient();
  for (const [raw, service] of [
    [policy.raw, PolicyService],
    [environment.raw, EnvironmentService],
  ] as const) {
    for (const { localName } of service.methods) assert.equal(typeof raw[localName as keyof typeof raw], "function");
  }
});

test("a chat tells session, version and the whole message", async () => {
  const asked: unknown[] = [];
  await using server = await serve((router) =>
    router.service(PolicyService, {
      chat: async function* (request) {
        asked.push(request);
        yield { event: { case: "start", value: { turnId: "t1", sessionId: "s1", policyVersion: 7n } } };
        yield { event: { case: "delta", value: { content: "Hel" } } };
        yield { event: { case: "delta", value: { content: "lo" } } };
        if (request.turn?.noRecord) return; // breaks off
        yield {
          event: {
            case: "end",
            value: { generation: { completionTokens: 2 }, message: { role: "assistant", content: "Hello" } },
          },
        };
      },
    }),
  );
  await using policy = new PolicyClient({ address: server.address });
  const stream = policy.chat("Hi", { sessionId: "s1", exactVersion: 7, tools: [{ name: "f" }], metadata: { a: "b" } });
  let text = "";
  for await (const { content } of stream) text += content;
  assert.equal(text, "Hello");
  assert.equal(stream.turnId, "t1");
  assert.equal(stream.sessionId, "s1");
  assert.equal(stream.policyVersion, 7n);
  assert.equal(stream.end?.completionTokens, 2);
  const [request] = asked as { turn: { exactVersion: bigint }; messages: { role: string }[]; tools: unknown[] }[];
  assert.equal(request?.turn.exactVersion, 7n);
  assert.equal(request?.messages[0]?.role, "user");
  assert.equal(request?.tools.length, 1);
  const broken = await failure(policy.chat("Hi", { noRecord: true }).text());
  assert.equal(broken.code, "UNAVAILABLE");
  assert.match(String(broken), /the answer broke off/);
});

test("a watch connects again by itself until its caller ends it", async () => {
  let streams = 0;
  const ended: number[] = [];
  await using server = await serve((router) =>
    router.service(JudgeService, {
      watchJudgements: async function* (_, { signal }) {
        const number = ++streams;
        if (number === 2) throw new MeshError({ code: "UNAVAILABLE", message: "stopping" }).toConnectError();
        yield { sessionId: `s${number}` };
        if (number === 1) return;
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        ended.push(number);
      },
    }),
  );
  await using judge = new JudgeClient({ address: server.address });
  const breaks: MeshError[] = [];
  const seen: string[] = [];
  for await (const { sessionId } of judge.watchJudgements({ onBreak: (error) => breaks.push(error) })) {
    seen.push(sessionId);
    if (seen.length === 2) break;
  }
  assert.deepEqual(seen, ["s1", "s3"]);
  assert.equal(breaks.length, 2);
  await until(() => ended.length === 1);
  const stopper = new AbortController();
  const watched = (async () => {
    for await (const _ of judge.watchJudgements({ signal: stopper.signal })) stopper.abort();
  })();
  await watched;
  await until(() => ended.length === 2);
  streams = 1;
  const once = failure(
    (async () => {
      for await (const _ of judge.watchJudgements({ reconnect: false }));
    })(),
  );
  assert.equal((await once).code, "UNAVAILABLE");
});

test("a lease is renewed by itself, numbers its steps, and is given back", async () => {
  const calls: string[] = [];
  const soon = () => timestampFromMs(Date.now() + 1000);
  await using server = await serve((router) =>
    router.service(EnvironmentService, {
      acquire: ({ leaseId }) => ({ leaseId, expiresAt: soon() }),
      renew: () => {
        calls.push("renew");
        return { expiresAt: soon() };
      },
      reset: () => ({ goal: "do it" }),
      step: ({ step, actionJson }) => {
        calls.push(`step ${step} ${actionJson}`);
        return { done: step === 2n };
      },
      release: () => {
        calls.push("release");
        return {};
      },
    }),
  );
  await using environment = new EnvironmentClient({ address: server.address });
  {
    await using lease = await environment.acquire("tool_call", { ttlSeconds: 1 });
    assert.equal((await lease.reset("task")).goal, "do it");
    assert.equal((await lease.step({ name: "f", arguments: { a: 1 } })).done, false);
    assert.equal((await lease.step({ name: "g" })).done, true);
    await until(() => calls.filter((call) => call === "renew").length >= 2);
    const renewed = lease.renew();
    await lease.release();
    await renewed;
    const closed = await failure((async () => lease.step({ name: "f" }))());
    assert.equal(closed.reason, "LEASE_CLOSED");
  }
  assert.deepEqual(
    calls.filter((call) => call.startsWith("step")),
    ['step 1 {"name":"f","arguments":{"a":1}}', 'step 2 {"name":"g","arguments":{}}'],
  );
  assert.equal(calls.at(-1), "release");
});

test("a lease is given back that was granted as its caller went away, unless its id is the caller's", async () => {
  const released: string[] = [];
  await using server = await serve((router) =>
    router.service(EnvironmentService, {
      acquire: async ({ leaseId }) => {
        await new Promise((resolve) => setTimeout(resolve, 300));
        return { leaseId, expiresAt: timestampFromMs(Date.now() + 60_000) };
      },
      release: ({ leaseId }) => {
        released.push(leaseId);
        return {};
      },
    }),
  );
  await using environment = new EnvironmentClient({ address: server.address });
  const own = await failure(environment.acquire("tool_call", { leaseId: "mine", timeoutMs: 50 }));
  const made = await failure(environment.acquire("tool_call", { timeoutMs: 50 }));
  assert.deepEqual([own.code, made.code], ["DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"]);
  await until(() => released.length > 0);
  assert.match(released.join(), /^lease_[0-9a-f-]+$/);
});

test("a lease is renewed in time whatever the server's clock says", async () => {
  let renewals = 0;
  await using server = await serve((router) =>
    router.service(EnvironmentService, {
      acquire: ({ leaseId }) => ({ leaseId, expiresAt: timestampFromMs(Date.now() + 2 ** 42) }),
      renew: () => {
        renewals += 1;
        return { expiresAt: timestampFromMs(Date.now() + 2 ** 42) };
      },
      release: () => ({}),
    }),
  );
  await using environment = new EnvironmentClient({ address: server.address });
  await using lease = await environment.acquire("tool_call", { ttlSeconds: 1 });
  await until(() => renewals > 1);
  assert.equal(lease.lost, undefined);
});

test("a live session goes both ways", async () => {
  const sessions: string[] = [];
  let closed = false;
  await using server = await serve((router) =>
    router.service(EnvironmentService, {
      interact: async function* (requests) {
        for await (const { turn, messages } of requests) {
          if (turn) sessions.push(turn.sessionId);
          const content = `you said ${messages.at(-1)?.content}`;
          yield { event: { case: "content", value: content } };
          yield { event: { case: "turn", value: { response: { content } } } };
        }
        closed = true;
      },
    }),
  );
  await using environment = new EnvironmentClient({ address: server.address });
  {
    await using session = environment.interact({ sessionId: "s1" });
    const texts: string[] = [];
    for await (const text of session.say("one")) texts.push(text);
    assert.deepEqual(texts, ["you said one"]);
    assert.equal((await session.turn("two")).response?.content, "you said two");
  }
  assert.deepEqual(sessions, ["s1"]);
  assert.equal(closed, true);
});

test("rollback without a version goes to the one before the active one", async () => {
  const asked: (bigint | undefined)[] = [];
  const state = { activeVersion: 5n, keptVersions: [2n, 4n, 5n] };
  await using server = await serve((router) =>
    router.service(PolicyService, {
      getPolicy: () => ({ state }),
      activateVersion: ({ version, pin }) => {
        asked.push(version);
        return { state: { ...state, activeVersion: version ?? 5n, pinned: pin ?? false } };
      },
    }),
  );
  await using policy = new PolicyClient({ address: server.address });
  assert.equal((await policy.rollback()).activeVersion, 4n);
  assert.equal((await policy.pin()).pinned, true);
  assert.equal((await policy.unpin()).pinned, false);
  assert.deepEqual(asked, [4n, undefined, undefined]);
  state.keptVersions = [5n];
  assert.equal((await failure(policy.rollback())).reason, "VERSION_UNKNOWN");
});
