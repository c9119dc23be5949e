import assert from "node:assert/strict";
import { test } from "node:test";
import { EnvironmentClient, MAX_MESSAGE_BYTES, MeshError, sendTurns, turnsOutbox } from "../src/index.js";
import { AckStatus, EnvironmentService, type PolicyEvent, type RecordTurnsResponse } from "../src/v1.js";
import { eventId } from "../src/outbox.js";
import { serve, until } from "./fake.js";

type Acks = { id: string; status: AckStatus; reason?: string }[];

/** An environment server that answers as `answer` says; undefined breaks the stream. */
function receiver(answer: (events: PolicyEvent[]) => Acks | undefined) {
  return serve((router) =>
    router.service(EnvironmentService, {
      recordTurns: async function* (requests): AsyncGenerator<RecordTurnsResponse> {
        for await (const { events } of requests) {
          const acks = answer(events);
          if (!acks) throw new MeshError({ code: "UNAVAILABLE", message: "cut", retryAfter: 0.01 }).toConnectError();
          if (acks.length > 0) yield { acks } as unknown as RecordTurnsResponse;
        }
      },
    }),
  );
}

const turn = (turnId: string, sessionId = "s") => ({ event: { case: "turn" as const, value: { turnId, sessionId } } });
const accept = (events: PolicyEvent[]): Acks => events.map((e) => ({ id: eventId(e), status: AckStatus.ACCEPTED }));

test("what a cut left unanswered is sent again, in order, until all is acknowledged", async () => {
  const stored = new Map<string, number>();
  let streams = 0;
  await using server = await receiver((events) => {
    if (events.some((event) => stored.has(eventId(event)))) streams += 1;
    for (const event of events) stored.set(eventId(event), (stored.get(eventId(event)) ?? 0) + 1);
    if (Math.random() < 0.5 && stored.size < 95) return undefined; // stored, and the acknowledgement is lost
    return events.map((e) => ({
      id: eventId(e),
      status: stored.get(eventId(e)) === 1 ? AckStatus.ACCEPTED : AckStatus.DUPLICATE,
    }));
  });
  await using environment = new EnvironmentClient({ address: server.address });
  const outbox = turnsOutbox();
  const settled: string[] = [];
  for (let i = 0; i < 100; i++) outbox.put(turn(`t${i}`));
  await using sender = sendTurns(environment, outbox, { window: 10, batch: 4, onSettled: (id) => settled.push(id) });
  await sender.flush();
  assert.deepEqual(
    settled,
    Array.from({ length: 100 }, (_, i) => `t${i}`),
  );
  assert.deepEqual([...stored.keys()], settled);
  assert.ok(streams > 0, "nothing was sent twice: the test has cut nothing");
  assert.equal(sender.delivered, 100);
});

test("a server that comes back gets what waited, and new messages go at once", async () => {
  const outbox = turnsOutbox();
  let server = await receiver(accept);
  const port = Number(server.address.split(":")[1]);
  await using environment = new EnvironmentClient({ address: server.address });
  await using sender = sendTurns(environment, outbox);
  outbox.put(turn("a"));
  await sender.flush();
  assert.equal(sender.connected, true);
  await server.close();
  outbox.put(turn("b"));
  await until(() => sender.lastError !== undefined);
  const got: string[] = [];
  const { address } = await (async () => {
    server = await serve(
      (router) =>
        router.service(EnvironmentService, {
          recordTurns: async function* (requests) {
            for await (const { events } of requests) {
              got.push(...events.map(eventId));
              yield { acks: accept(events) } as unknown as RecordTurnsResponse;
            }
          },
        }),
      port,
    );
    return server;
  })();
  assert.equal(address, environment.address);
  await sender.flush();
  outbox.put(turn("c"));
  await sender.flush();
  assert.deepEqual(got, ["b", "c"]);
  await server.close();
});

test("rejected ones are told and are no obstacle", async () => {
  await using server = await receiver((events) =>
    events.map((e) =>
      eventId(e) === "bad"
        ? { id: "bad", status: AckStatus.REJECTED, reason: "it is bad" }
        : { id: eventId(e), status: AckStatus.ACCEPTED },
    ),
  );
  await using environment = new EnvironmentClient({ address: server.address });
  const outbox = turnsOutbox();
  const told: string[] = [];
  for (const id of ["a", "bad", "b"]) outbox.put(turn(id));
  outbox.put({ event: { case: "turn", value: { turnId: "huge", model: "x".repeat(MAX_MESSAGE_BYTES) } } });
  outbox.put(turn("c"));
  assert.throws(() => outbox.put(turn("")), /id of the message's own/);
  await using sender = sendTurns(environment, outbox, { onSettled: (id, status) => told.push(`${id} ${status}`) });
  await sender.flush();
  assert.deepEqual(told.sort(), ["a accepted", "b accepted", "bad rejected", "c accepted", "huge rejected"]);
  assert.deepEqual(outbox.rejected.map(({ id }) => id).sort(), ["bad", "huge"]);
  assert.match(outbox.rejected.find(({ id }) => id === "huge")!.reason, /bytes, more than/);
});

test("a receiver that never acknowledges is reported, and connected to again", async () => {
  let streams = 0;
  await using server = await serve((router) =>
    router.service(EnvironmentService, {
      recordTurns: async function* (requests) {
        streams += 1;
        for await (const _ of requests);
      },
    }),
  );
  await using environment = new EnvironmentClient({ address: server.address });
  const outbox = turnsOutbox();
  outbox.put(turn("a"));
  const errors: MeshError[] = [];
  await using sender = sendTurns(environment, outbox, { ackTimeoutMs: 50, onError: (error) => errors.push(error) });
  await until(() => streams > 1 && errors.length > 1);
  assert.equal(errors[0]?.reason, "NO_ACK", String(errors[0]));
  assert.match(String(errors[0]), /RecordTurns at .*no acknowledgement of a for 0.05 s/);
  assert.equal(outbox.size, 1);
  assert.equal(sender.delivered, 0);
});

test("an acknowledgement of what was never sent is a protocol error", async () => {
  await using server = await receiver(() => [{ id: "another", status: AckStatus.ACCEPTED }]);
  await using environment = new EnvironmentClient({ address: server.address });
  const outbox = turnsOutbox();
  outbox.put(turn("a"));
  const errors: MeshError[] = [];
  await using _ = sendTurns(environment, outbox, { onError: (error) => errors.push(error) });
  await until(() => errors.length > 0);
  assert.equal(errors[0]?.reason, "FOREIGN_ACK");
  assert.match(String(errors[0]), /acknowledged "another", which was never sent/);
  assert.equal(outbox.size, 1);
});
