import assert from "node:assert/strict";
import { test } from "node:test";
import { EnvironmentClient, MESH_VARIABLE, named, sendTurns, turnsOutbox } from "../src/index.js";
import { AckStatus, ComponentService, EnvironmentService } from "../src/v1.js";
import { eventId } from "../src/outbox.js";
import { failure, serve, until } from "./fake.js";

/** An environment server of the mesh that `of` says now. */
async function environmentOf(of: () => string) {
  const seen: string[] = [];
  const callers: object[] = [];
  const fake = await serve(
    (router) => {
      router.service(ComponentService, {
        getStatus: (_, { requestHeader }) => {
          callers.push(named(requestHeader));
          return { status: { name: "env_server" } };
        },
        watchStats: async function* () {
          yield {};
        },
      });
      router.service(EnvironmentService, {
        recordTurns: async function* (requests) {
          for await (const { events } of requests) {
            seen.push(...events.map(eventId));
            yield { acks: events.map((event) => ({ id: eventId(event), status: AckStatus.ACCEPTED })) };
          }
        },
      });
    },
    0,
    (): Record<string, string> => (of() ? { "openclaw-mesh": of(), "openclaw-component": "env_server" } : {}),
  );
  return { fake, seen, callers };
}

test("an answer of another mesh is not taken", async () => {
  let mesh = "mesh-b";
  const { fake, callers } = await environmentOf(() => mesh);
  await using _ = fake;
  const { address } = fake;
  await using ours = new EnvironmentClient({ address, mesh: "mesh-a", component: "prm_judge", reconnect: false });
  const error = await failure(ours.status());
  assert.equal(error.reason, "WRONG_MESH");
  assert.match(error.message, /env_server there is of the mesh mesh-b, and mesh-a is expected/);
  assert.deepEqual(callers.at(-1), { mesh: "mesh-a", component: "prm_judge" });
  for (const mesh of ["", "mesh-b"]) {
    await using other = new EnvironmentClient({ address, mesh });
    assert.equal((await other.status()).name, "env_server");
  }
  mesh = ""; // of contract 1.0
  assert.equal((await ours.status()).name, "env_server");
});

test("the variable names the mesh", async () => {
  const { fake } = await environmentOf(() => "mesh-b");
  await using _ = fake;
  process.env[MESH_VARIABLE] = "mesh-a";
  try {
    await using client = new EnvironmentClient({ address: fake.address });
    assert.equal((await failure(client.status())).reason, "WRONG_MESH");
  } finally {
    delete process.env[MESH_VARIABLE];
  }
});

test("nothing is sent to another mesh, and what waits goes to the right one", async () => {
  let mesh = "mesh-b";
  const { fake, seen } = await environmentOf(() => mesh);
  await using _ = fake;
  await using environment = new EnvironmentClient({ address: fake.address, mesh: "mesh-a" });
  const outbox = turnsOutbox();
  outbox.put({ event: { case: "turn", value: { turnId: "t1" } } });
  const reasons: string[] = [];
  await using sender = sendTurns(environment, outbox, { onError: ({ reason }) => reasons.push(reason) });
  await until(() => reasons.length > 1);
  assert.deepEqual(new Set(reasons), new Set(["WRONG_MESH"]));
  assert.equal(sender.connected, false);
  assert.deepEqual(seen, []);
  mesh = "mesh-a";
  await sender.flush();
  assert.deepEqual(seen, ["t1"]);
});
