import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { after, test } from "node:test";
import { EnvironmentClient, MeshError, sendTurns, tlsFromFolder, turnsOutbox } from "@openclaw-rl/client";
import { failure, folder, judge, OURS, Server, turn, until } from "./helpers.js";

test("killed at any moment and started again it loses nothing and does nothing twice", async () => {
  const data = folder();
  const next = await judge();
  const outbox = turnsOutbox();
  const count = 60;
  for (let i = 0; i < count; i++) outbox.put(turn(`t${i}`, [`q${i}`, "a"], { sessionId: `s${i}`, sessionDone: true }));
  const statuses = new Map<string, string>();
  for (let kills = 0; outbox.size > 0; kills++) {
    const server = await Server.start("--data", data, "--judge", next.address);
    await using environment = new EnvironmentClient({ address: server.address });
    const before = statuses.size;
    const sender = sendTurns(environment, outbox, {
      window: 3,
      batch: 1,
      onSettled: (id, status) => statuses.set(id, status),
    });
    await until(() => statuses.size >= Math.min(count, before + 20 + kills));
    await server.kill("SIGKILL");
    await sender.close();
  }
  const last = await Server.start("--data", data, "--judge", next.address);
  await until(() => new Set(next.got.map(({ turn }) => turn!.turnId)).size === count);
  await using environment = new EnvironmentClient({ address: last.address });
  await until(async () => (await environment.status()).outboxes[0]!.pending === 0n);
  assert.equal((await environment.status()).counters["transitions_sent"], BigInt(count));
  assert.equal([...statuses.values()].includes("rejected"), false);
  assert.equal(await last.kill("SIGTERM"), 0);
  next.close();
});

test("another mesh is refused on both sides, and nothing of it is taken or sent", async () => {
  const next = await judge();
  next.mesh = "mesh-b";
  const server = await Server.start("--data", folder(), "--judge", next.address);
  const { address } = server;
  const bring = async (mesh: string, component?: string, more = {}): Promise<string> => {
    await using environment = new EnvironmentClient({ address, mesh, ...(component ? { component } : {}) });
    const outbox = turnsOutbox();
    outbox.put(turn(`t-${mesh}-${component}`, ["q", "a"], { sessionDone: true, ...more }));
    return await new Promise((resolve) => {
      const sender = sendTurns(environment, outbox, {
        onSettled: (_, status, reason) => resolve(`${status} ${reason}`),
        onError: ({ reason, message }) => resolve(`${reason} ${message}`),
      });
      after(() => sender.close());
    });
  };
  assert.match(await bring("mesh-b", "policy_server"), /^WRONG_MESH .*env_server there is of the mesh mesh-a/);
  await using theirs = new EnvironmentClient({ address, mesh: "mesh-b", component: "policy_server" });
  assert.match(
    String(await failure(theirs.status())),
    /policy_server of the mesh mesh-b calls env_server of the mesh mesh-a/,
  );
  assert.match(await bring(""), /^WRONG_MESH .*send the metadata openclaw-mesh: mesh-a/);
  assert.match(await bring(OURS, "trainer"), /^WRONG_ROLE /);
  assert.match(await bring(OURS, "policy_server", { meshId: "mesh-c" }), /^rejected turn.mesh_id: .*mesh-c/);
  assert.match(await bring(OURS), /^accepted/);
  await using environment = new EnvironmentClient({ address });
  const wrong = async (): Promise<string> =>
    (await environment.status()).alarms.find(({ name }) => name === "wrong_mesh")?.message ?? "";
  await until(async () => /mesh-b, and mesh-a is expected/.test(await wrong())); // the judge's
  const told = await environment.status();
  assert.equal(told.meshId, OURS);
  assert.ok(told.gauges["foreign_calls_refused"]! >= 2, JSON.stringify(told.gauges)); // a client may have tried again
  assert.match(told.detail, /policy_server of the mesh mesh-b calls here/);
  assert.doesNotMatch(told.alarms.map(({ message }) => message).join(), /calls here/); // the fault is the caller's
  assert.equal(next.got.length, 0);
  next.mesh = OURS; // the right one is there again
  await until(() => next.got.length === 1);
  assert.equal(next.got[0]!.turn!.meshId, OURS);
  assert.equal(await server.kill("SIGTERM"), 0);
  next.close();
});

test("leases: capacity, waiting, steps done once, actions checked, taken back", async () => {
  const server = await Server.start("--data", folder(), "--judge", "127.0.0.1:1", "--capacity", "1");
  await using environment = new EnvironmentClient({ address: server.address });
  const lease = await environment.acquire("tool_call", { leaseId: "one", renew: false });
  assert.equal((await environment.acquire("tool_call", { leaseId: "one", renew: false })).id, "one");
  assert.equal((await failure(lease.step({ name: "f" }))).reason, "NOT_RESET");
  const full = await failure(environment.acquire("tool_call"));
  assert.equal(full.code, "RESOURCE_EXHAUSTED");
  assert.ok(full.retryAfter! > 0);
  const { goal, tools } = await lease.reset("library-renew");
  assert.match(goal, /Renew the loan/);
  assert.deepEqual(
    tools.map(({ name }) => name),
    ["renew_loan", "submit"],
  );
  const bad = await failure(lease.step({ name: "renew_loan", arguments: { title: "Dune", days: 99 } }));
  assert.equal(bad.violations[0]!.field, "action_json");
  const action = { name: "renew_loan", arguments: { title: "Dune", days: 14 } };
  const { observation } = await lease.step(action);
  assert.equal(JSON.parse(observation!.json).text, "Dune is due in 14 days.");
  lease.steps = 0; // the answer was lost: the same step again
  assert.equal((await lease.step(action)).observation!.json, observation!.json);
  lease.steps = 0;
  assert.equal((await failure(lease.step({ name: "submit" }))).reason, "STEP_OUT_OF_ORDER");
  lease.steps = 1;
  assert.equal((await lease.step({ name: "submit" })).done, true);
  assert.equal((await failure(lease.step({ name: "submit" }))).reason, "EPISODE_OVER");
  assert.equal((await lease.evaluate()).outcome, 1);
  const seen = environment.watchLease("one", { seconds: 0.1 });
  assert.match(JSON.parse((await seen.next()).value!.view!.json).text, /renew_loan/);
  const waiting = environment.acquire("tool_call", { leaseId: "two", waitSeconds: 30, ttlSeconds: 1, renew: false });
  await until(async () => (await environment.environments())[0]!.waiting === 1);
  await lease.release();
  assert.equal((await waiting).id, "two");
  assert.equal((await seen.next()).value?.ended, true);
  assert.equal((await failure(environment.acquire("tool_call", { leaseId: "one" }))).reason, "LEASE_ENDED");
  await until(async () => (await environment.leases()).length === 0); // nobody renews it
  assert.equal((await failure(environment.acquire("gui"))).code, "NOT_FOUND");
  const unknown = await failure(environment.runEpisodes({ type: "tool_call" }).next());
  assert.equal(unknown.code, "UNIMPLEMENTED");
  const watched = environment.watchStats({ reconnect: false, seconds: 60 });
  await watched.next();
  const ended = failure(watched.next());
  assert.equal(await server.kill("SIGTERM"), 0);
  assert.equal((await ended).code, "UNAVAILABLE");
  assert.ok((await ended).retryAfter! > 0);
});

test("bad options end it with 2 and say what is allowed", async () => {
  const server = new Server("--capacity", "many");
  assert.equal(await server.exit, 2);
  assert.match(server.output, /--capacity many: must be a whole number/);
  const data = folder();
  const first = await Server.start("--data", data, "--judge", "127.0.0.1:1");
  const second = new Server("--listen", "127.0.0.1:0", "--data", data);
  assert.equal(await second.exit, 2);
  assert.match(second.output, /another process uses it/);
  assert.equal(await first.kill("SIGTERM"), 0);
});

const openssl = (() => {
  try {
    execFileSync("openssl", ["version"]);
    return false;
  } catch {
    return "needs the program openssl";
  }
})();

/** A CA and certificates as `openclaw-rl init` makes them. */
function certificates(): string {
  const made = folder();
  const ssl = (...args: string[]): void => void execFileSync("openssl", args, { cwd: made, stdio: "ignore" });
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  ssl("req", "-x509", ...key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "1", "-subj", "/CN=mesh CA");
  for (const [name, mesh, role] of [
    ["env_server", "m1", "env_server"],
    ["operator", "m1", "operator"],
    ["policy_server", "m1", "policy_server"],
    ["stranger", "m2", "policy_server"],
  ] as const) {
    const names = `URI:spiffe://${mesh}/${role},DNS:${role}.openclaw-rl.internal`;
    writeFileSync(`${made}/${name}.ext`, `subjectAltName=${names}\nextendedKeyUsage=serverAuth,clientAuth\n`);
    ssl("req", "-new", ...key, "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", `/CN=${role}`);
    ssl("x509", "-req", "-in", `${name}.csr`, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", `${name}.ext`, "-out", `${name}.crt`); // prettier-ignore
  }
  return made;
}

test("with certificates only the policy server may bring turns", { skip: openssl }, async () => {
  const certs = certificates();
  const server = await Server.start("--data", folder(), "--judge", "127.0.0.1:1", "--certs", certs);
  const bring = async (name: string): Promise<MeshError | "accepted"> => {
    await using environment = new EnvironmentClient({ address: server.address, tls: tlsFromFolder(certs, name) });
    const outbox = turnsOutbox();
    outbox.put(turn("a", ["hi", "hello"]));
    return await new Promise((resolve) => {
      const sender = sendTurns(environment, outbox, {
        onError: (error) => (void sender.close(), resolve(error)),
        onSettled: () => (void sender.close(), resolve("accepted")),
      });
    });
  };
  const operator = await bring("operator");
  assert.ok(operator instanceof MeshError && operator.reason === "WRONG_ROLE", String(operator));
  const stranger = await bring("stranger");
  assert.ok(stranger instanceof MeshError && stranger.reason === "FOREIGN_MESH", String(stranger));
  assert.equal(await bring("policy_server"), "accepted");
  await using environment = new EnvironmentClient({ address: server.address, tls: tlsFromFolder(certs) });
  assert.equal((await environment.status()).secure, true);
  assert.equal((await environment.session("s")).turns.length, 1);
  const { ca } = tlsFromFolder(certs);
  await using nobody = new EnvironmentClient({
    address: server.address,
    tls: { ca: ca!, serverName: "env_server.openclaw-rl.internal" },
  });
  assert.equal((await failure(nobody.status())).reason, "CERTIFICATE_REFUSED");
  await using plain = new EnvironmentClient({ address: server.address });
  assert.equal((await failure(plain.status())).reason, "TLS_NEEDED");
  await environment.drain(1);
  assert.equal(await server.exit, 0);
});
