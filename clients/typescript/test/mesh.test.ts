/** Against a real mesh, and real bad peers, where the variables say that there are some. */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { readFileSync } from "node:fs";
import {
  ComponentClient,
  EnvironmentClient,
  JudgeClient,
  MeshError,
  PolicyClient,
  sendTurns,
  tlsFromFolder,
  TrainerClient,
  turnsOutbox,
  type RingOptions,
} from "../src/index.js";
import { FinishReason } from "../src/v1.js";
import { failure, until } from "./fake.js";

const PREFIX = "OPENCLAW_RL_TEST_";

/** A test that needs variables; without them it is skipped, and says so. */
function needing<N extends string>(name: string, variables: N[], work: (values: Record<N, string>) => Promise<void>) {
  const missing = variables.filter((variable) => !process.env[PREFIX + variable]);
  const skip = missing.length > 0 && `needs ${missing.map((variable) => PREFIX + variable).join(", ")}`;
  const values = Object.fromEntries(variables.map((v) => [v, process.env[PREFIX + v] ?? ""])) as Record<N, string>;
  test(name, { skip }, () => work(values));
}

const sampling = { maxTokens: 8, temperature: 0.7, seed: 1n };

needing("a session is chatted, judged by feedback, and listed", ["POLICY", "ENVIRONMENT"], async (at) => {
  await using policy = new PolicyClient({ address: at.POLICY, timeoutMs: 60_000 });
  await using environment = new EnvironmentClient({ address: at.ENVIRONMENT });
  assert.equal((await policy.check()).status.name, "policy_server");
  assert.equal(await policy.healthy("openclaw_rl.v1.PolicyService"), true);
  const sessionId = `ts-${randomUUID()}`;
  const stream = policy.chat("Say a word.", { sessionId, turnType: "main", sampling });
  let pieces = 0;
  for await (const _ of stream) pieces += 1;
  assert.ok(pieces > 0);
  assert.equal(stream.sessionId, sessionId);
  assert.ok(stream.turnId && stream.policyVersion !== undefined && stream.end!.completionTokens > 0);
  assert.ok(await policy.feedback({ turnId: stream.turnId, score: 1, comment: "from TypeScript" }));
  const deadline = Date.now() + 60_000;
  for (;;) {
    const turns = [];
    for await (const turn of environment.turns({ sessionId })) turns.push(turn);
    if (turns.length === 1) {
      assert.equal(turns[0]!.turnId, stream.turnId);
      break;
    }
    assert.ok(Date.now() < deadline, "the turn is not listed after a minute");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  await environment.endSession(sessionId);
  assert.equal((await environment.session(sessionId)).session?.ended, true);
});

needing("tokens are generated and scored, and a version is exact or refused", ["POLICY"], async (at) => {
  await using policy = new PolicyClient({ address: at.POLICY, timeoutMs: 60_000 });
  const stream = policy.generate([1, 2, 3, 4], { sampling });
  const ids = (await stream.tokens()).map(({ id }) => id);
  assert.ok(ids.length > 0 && stream.end!.finishReason !== FinishReason.UNSPECIFIED);
  const scored = await policy.score([1, 2, 3, 4, ...ids]);
  assert.equal(scored.logprobs.length, 3 + ids.length);
  const { state } = await policy.policy();
  const text = policy.chat("Hi", { exactVersion: state!.activeVersion, noRecord: true, sampling });
  await text.text();
  assert.equal(text.policyVersion, state!.activeVersion);
  const refused = await failure(policy.chat("Hi", { minVersion: state!.highestVersion + 1000n, sampling }).text());
  assert.equal(refused.code, "FAILED_PRECONDITION");
  assert.notEqual(refused.reason, refused.code);
  const bad = await failure(policy.chat([], {}).text());
  assert.equal(bad.code, "INVALID_ARGUMENT");
  assert.equal(bad.violations[0]?.field, "messages");
});

needing("versions are watched, pinned, unpinned and rolled back", ["POLICY", "TRAINER"], async (at) => {
  await using policy = new PolicyClient({ address: at.POLICY, timeoutMs: 60_000 });
  await using trainer = new TrainerClient({ address: at.TRAINER });
  await using watched = policy.watchPolicy();
  assert.equal((await watched.next()).value?.state?.pinned, false);
  const pinned = await policy.pin(undefined, { reason: "a test" });
  assert.equal(pinned.pinned, true);
  assert.equal((await watched.next()).value?.state?.pinned, true);
  const unpinned = await policy.unpin();
  assert.equal(unpinned.pinned, false);
  assert.equal((await policy.rollback(unpinned.activeVersion)).activeVersion, unpinned.activeVersion);
  const unknown = await failure(policy.rollback(987_654));
  assert.equal(unknown.reason, "VERSION_UNKNOWN");
  for await (const version of trainer.versions()) {
    const { manifest } = await trainer.version(version.manifest!.version);
    assert.equal(manifest?.digest, version.manifest!.digest);
    break;
  }
  assert.equal((await failure(trainer.version(987_654))).code, "NOT_FOUND");
});

needing("stats are watched, and the watch ends when it is left", ["JUDGE"], async (at) => {
  await using judge = new JudgeClient({ address: at.JUDGE });
  let seen = 0;
  for await (const { status } of judge.watchStats({ seconds: 0.1 })) {
    assert.equal(status?.name, "prm_judge");
    if (++seen === 2) break;
  }
});

needing("a transition is judged", ["JUDGE"], async (at) => {
  await using judge = new JudgeClient({ address: at.JUDGE });
  const judgement = await judge.judge({
    turn: {
      turnId: "ts1",
      messages: [{ role: "user", content: "What is 2 + 2?" }],
      response: { role: "assistant", content: "5" },
    },
    nextState: { messages: [{ role: "user", content: "That is wrong, it is 4. Do it again." }] },
  });
  assert.equal(judgement.score, -1);
  const bad = await failure(judge.judge({}));
  assert.equal(bad.code, "INVALID_ARGUMENT", String(bad));
  assert.ok(bad.violations.length > 0);
});

needing("a live session answers twice", ["ENVIRONMENT"], async (at) => {
  await using environment = new EnvironmentClient({ address: at.ENVIRONMENT });
  await using session = environment.interact({ turnType: "main", sampling, sessionDone: true });
  const first = await session.turn("Say a word.");
  const second = await session.turn("Another one.");
  assert.equal(second.sessionId, first.sessionId);
  assert.equal(second.messages.length, 3);
});

needing("an environment is leased from acquire to release", ["ENVIRONMENT"], async (at) => {
  await using environment = new EnvironmentClient({ address: at.ENVIRONMENT });
  assert.ok((await environment.environments()).some(({ type }) => type === "tool_call"));
  const [task] = await environment.tasks("tool_call");
  await using lease = await environment.acquire("tool_call", { waitSeconds: 30, ttlSeconds: 30 });
  const opening = await lease.reset(task!.taskId, { seed: 1 });
  assert.ok(opening.goal && opening.tools.length > 1);
  const bad = await failure(lease.step({ name: "no_such_function" }));
  assert.equal(bad.code, "INVALID_ARGUMENT");
  assert.equal((await lease.step({ name: "submit" })).done, true);
  assert.equal((await lease.evaluate()).outcome, 0);
  await lease.release();
  const ended = await failure(environment.acquire("tool_call", { leaseId: lease.id }));
  assert.equal(ended.reason, "LEASE_ENDED");
});

needing("an address of another component is told", ["TRAINER"], async (at) => {
  await using policy = new PolicyClient({ address: at.TRAINER });
  assert.equal((await failure(policy.check())).reason, "WRONG_COMPONENT");
  const wrong = await failure(policy.policy());
  assert.equal(wrong.code, "UNIMPLEMENTED");
  assert.match(String(wrong), /Another service may be behind the address/);
});

const transition = {
  turn: { turnId: "t", messages: [{ role: "user", content: "Hi" }], response: { role: "assistant", content: "Hello" } },
  nextState: { messages: [{ role: "user", content: "Thank you." }] },
};

needing("mutual TLS: an operator may, another role and a stranger may not", ["SECURE_JUDGE", "CERTS"], async (at) => {
  const address = at.SECURE_JUDGE;
  {
    await using judge = new JudgeClient({ address, tls: tlsFromFolder(at.CERTS) });
    assert.equal((await judge.judge(transition)).turnId, "t");
    assert.equal((await judge.status()).secure, true);
  }
  {
    await using judge = new JudgeClient({ address, tls: tlsFromFolder(at.CERTS, "policy_server") });
    const refused = await failure(judge.judge(transition));
    assert.equal(refused.code, "PERMISSION_DENIED", String(refused));
    assert.equal(refused.reason, "WRONG_ROLE");
  }
  {
    await using judge = new JudgeClient({ address });
    assert.equal((await failure(judge.status())).reason, "TLS_NEEDED");
  }
  {
    await using judge = new JudgeClient({ address, tls: { ca: readFileSync(`${at.CERTS}/ca.crt`) } });
    const refused = await failure(judge.status());
    assert.equal(refused.code, "FAILED_PRECONDITION", String(refused));
  }
  {
    const tls = { ...tlsFromFolder(at.CERTS), serverName: "trainer.openclaw-rl.internal" };
    await using judge = new JudgeClient({ address, tls });
    assert.equal((await failure(judge.status())).reason, "CERTIFICATE_NAME");
  }
});

needing(
  "bearer keys open what their scopes say",
  ["SECURE_KEYS", "CERTS", "KEY_CHAT", "KEY_READ"],
  async ({ SECURE_KEYS: address, CERTS, KEY_CHAT, KEY_READ }) => {
    const tls = { ca: readFileSync(`${CERTS}/ca.crt`) };
    await using chat = new JudgeClient({ address, tls, key: KEY_CHAT });
    assert.equal((await chat.judge(transition)).turnId, "t");
    await using read = new JudgeClient({ address, tls, key: KEY_READ });
    assert.equal((await read.status()).name, "prm_judge");
    const refused = await failure(read.judge(transition));
    assert.equal(refused.code, "PERMISSION_DENIED");
    assert.equal(refused.reason, "WRONG_SCOPE");
    await using unknown = new JudgeClient({ address, tls, key: "not-a-key-of-this-mesh" });
    assert.equal((await failure(unknown.status())).code, "UNAUTHENTICATED");
  },
);

needing("HTTP/1 is told", ["HTTP1"], async (at) => {
  await using policy = new PolicyClient({ address: at.HTTP1 });
  assert.equal((await failure(policy.status())).reason, "HTTP1");
});

needing("the next major version of the contract is told", ["NEXT_MAJOR"], async (at) => {
  await using client = new ComponentClient({ address: at.NEXT_MAJOR });
  const error = await failure(client.check());
  assert.equal(error.reason, "CONTRACT_MISMATCH");
  assert.match(String(error), /contract 2\.0, this client 1\./);
});

/** Ten turns on their way to a receiver, until `done`; gives what went wrong. */
async function carry(address: string, options: RingOptions, done: (delivered: number, errors: MeshError[]) => boolean) {
  await using environment = new EnvironmentClient({ address });
  const outbox = turnsOutbox();
  const prefix = `ts-${randomUUID()}`;
  for (let i = 0; i < 10; i++) {
    outbox.put({ event: { case: "turn", value: { turnId: `${prefix}-${i}`, sessionId: prefix } } });
  }
  const errors: MeshError[] = [];
  await using sender = sendTurns(environment, outbox, { ...options, onError: (error) => errors.push(error) });
  await until(() => done(sender.delivered, errors), 60);
  return { errors, delivered: sender.delivered, waiting: outbox.size };
}

needing("a receiver that never acknowledges is told", ["NEVER_ACKS"], async (at) => {
  const { errors, waiting } = await carry(at.NEVER_ACKS, { ackTimeoutMs: 500 }, (_, e) => e.length > 0);
  assert.equal(errors[0]?.reason, "NO_ACK");
  assert.equal(waiting, 10);
});

needing("a receiver that acknowledges others is told", ["ACKS_OTHERS"], async (at) => {
  const { errors, waiting } = await carry(at.ACKS_OTHERS, { ackTimeoutMs: 5000 }, (_, e) => e.length > 0);
  assert.equal(errors[0]?.reason, "FOREIGN_ACK", String(errors[0]));
  assert.equal(waiting, 10);
});

needing("all is acknowledged in the end, whatever is cut", ["CUTS"], async (at) => {
  const { errors, delivered } = await carry(at.CUTS, { window: 4, batch: 1 }, (count) => count === 10);
  assert.equal(delivered, 10);
  assert.ok(errors.length > 0, "nothing was cut");
});
