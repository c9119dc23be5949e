import assert from "node:assert/strict";
import { test } from "node:test";
import { create, fromBinary } from "@bufbuild/protobuf";
import {
  AckStatus,
  FeedbackSchema,
  ListTurnsRequestSchema,
  NextStateKind,
  SessionEndSchema,
  TransitionSchema,
  TurnClass,
  TurnState,
  type Transition,
} from "@openclaw-rl/client/v1";
import { ofTheStore } from "../src/faults.js";
import { SessionBook } from "../src/sessions.js";
import { DiskOutbox, Store } from "../src/store.js";
import * as views from "../src/views.js";
import { event, failure, folder, turn, until } from "./helpers.js";

class Rig {
  readonly store: Store;
  readonly outbox: DiskOutbox;
  readonly book: SessionBook;

  constructor(
    readonly data = folder(),
    timeoutMs = 300_000,
  ) {
    this.store = new Store(data);
    this.outbox = new DiskOutbox(this.store, (id, reason) => this.book.rejected(id, reason));
    this.book = new SessionBook(this.store, this.outbox, timeoutMs);
  }

  get sent(): Transition[] {
    return this.outbox.window(0, 1000, 2 ** 30).map(({ payload }) => fromBinary(TransitionSchema, payload));
  }

  /** What was sent, as "turn: texts of the next state". */
  get said(): string[] {
    return this.sent.map(
      ({ turn, nextState }) => `${turn!.turnId}: ${nextState!.messages.map((m) => m.content).join("|")}`,
    );
  }

  turns(more: object = {}) {
    return views.turns(this.store, create(ListTurnsRequestSchema, { pageSize: 100, ...more }));
  }

  state(id: string): TurnState {
    return this.turns({ turnIds: [id] }).turns[0]!.state;
  }
}

test("a request brings the next state of the turn that it continues, all of it", () => {
  const rig = new Rig();
  const [first] = rig.book.handle([turn("a", ["hi", "hello"])]);
  assert.equal(first!.status, AckStatus.ACCEPTED);
  assert.deepEqual(rig.said, []);
  const b = turn("b", ["hi", "hello", "more", "yes"]);
  const { value } = b.event as { value: { messages: { role: string; content: string }[] } };
  value.messages.splice(2, 0, { ...value.messages[2]!, role: "tool", content: "result" });
  rig.book.handle([b]);
  assert.deepEqual(rig.said, ["a: result|more"]);
  const [sent] = rig.sent;
  assert.equal(sent!.nextState!.kind, NextStateKind.CONTINUED);
  assert.equal(sent!.nextState!.nextTurnId, "b");
  assert.equal(sent!.turn!.turnClass, TurnClass.MAIN);
  assert.equal(sent!.turn!.branchId, "a");
  assert.equal(rig.state("a"), TurnState.SENT);
  assert.equal(rig.state("b"), TurnState.OPEN);
});

test("branches of a session don't answer one another, and a side turn is never sent", () => {
  const rig = new Rig();
  rig.book.handle([turn("a", ["one", "first"]), turn("x", ["two", "second"])]);
  rig.book.handle([
    turn("t", ["one", "first", "Write a title for this conversation", "Title"], { declaredType: "side" }),
  ]);
  rig.book.handle([turn("b", ["two", "second", "go on", "ok"]), turn("c", ["one", "first", "really?", "yes"])]);
  assert.deepEqual(rig.said, ["x: go on", "a: really?"]);
  const { session, turns } = views.session(rig.store, "s");
  assert.equal(session!.branches, 2);
  assert.equal(turns.find(({ turnId }) => turnId === "t")!.state, TurnState.NOT_TRAINABLE);
  assert.equal(turns.find(({ turnId }) => turnId === "c")!.parentTurnId, "a");
});

test("users whose sessions are named alike never meet", () => {
  const rig = new Rig();
  rig.book.handle([turn("a", ["hi", "hello"], { client: "k1:1" })]);
  rig.book.handle([turn("b", ["hi", "hello", "more", "yes"], { client: "k2:2" })]);
  assert.deepEqual(rig.said, []);
  rig.book.handle([turn("c", ["hi", "hello"], { client: "k3:3", sessionId: "" })]);
  rig.book.handle([turn("d", ["hi", "hello", "x", "y"], { client: "k4:4", sessionId: "" })]);
  rig.book.handle([turn("e", ["hi", "hello", "more", "yes"], { client: "k3:3", sessionId: "" })]);
  assert.deepEqual(rig.said, ["c: more"]);
});

test("of a retry's attempts one is sent: the latest, or the one that is continued", () => {
  const rig = new Rig();
  rig.book.handle([turn("a1", ["hi", "hello"]), turn("a2", ["hi", "good day"])]);
  assert.equal(rig.state("a1"), TurnState.SUPERSEDED);
  rig.book.handle([turn("b", ["hi", "hello", "more", "yes"])]);
  assert.deepEqual(rig.said, ["a1: more"]);
  assert.equal(rig.state("a2"), TurnState.SUPERSEDED);
  rig.book.end("s");
  assert.deepEqual(
    rig.sent.map(({ turn }) => turn!.turnId),
    ["a1", "b"],
  );
});

test("a turn that comes before the one that it continues waits for it", () => {
  const rig = new Rig();
  rig.book.handle([turn("b", ["hi", "hello", "more", "yes"])]);
  rig.book.handle([turn("a", ["hi", "hello"])]);
  assert.deepEqual(rig.said, ["a: more"]);
  const b = rig.turns({ turnIds: ["b"] }).turns[0]!;
  assert.equal(b.parentTurnId, "a");
  assert.equal(b.branchId, "a");
});

test("feedback closes a turn, whenever it comes, unless a stranger gives it", () => {
  const rig = new Rig();
  const feedback = (feedbackId: string, turnId: string, client: string) =>
    event({ case: "feedback", value: create(FeedbackSchema, { feedbackId, turnId, score: 1, client }) });
  rig.book.handle([turn("a", ["hi", "hello"]), feedback("f1", "a", "other:1"), feedback("f2", "late", "k:9")]);
  assert.deepEqual(rig.said, []);
  rig.book.handle([feedback("f3", "a", "k:2"), turn("late", ["ho", "hello"])]);
  assert.deepEqual(
    rig.sent.map(({ turn, nextState }) => [turn!.turnId, nextState!.kind, nextState!.feedback.length]),
    [
      ["a", NextStateKind.FEEDBACK, 1],
      ["late", NextStateKind.FEEDBACK, 1],
    ],
  );
});

test("sessions end when told, with a turn, or after a time", async () => {
  const rig = new Rig(folder(), 200);
  rig.book.handle([
    turn("a", ["1", "x"]),
    event({ case: "sessionEnd", value: create(SessionEndSchema, { eventId: "e", sessionId: "s" }) }),
  ]);
  rig.book.handle([turn("b", ["2", "x"], { sessionId: "s2", sessionDone: true })]);
  rig.book.handle([turn("c", ["3", "x"], { sessionId: "s3" })]);
  await until(() => rig.book.reap() > 0);
  assert.deepEqual(
    rig.sent.map(({ turn, nextState }) => [turn!.turnId, nextState!.kind]),
    [
      ["a", NextStateKind.SESSION_ENDED],
      ["b", NextStateKind.SESSION_ENDED],
      ["c", NextStateKind.SESSION_TIMEOUT],
    ],
  );
  assert.equal(views.session(rig.store, "s").session!.ended, true);
});

test("what can't be taken is refused with a reason, and is no obstacle", () => {
  const rig = new Rig();
  const acks = rig.book.handle([
    turn("a", ["hi", "hello"]),
    event({ case: undefined } as never),
    turn("", ["hi", "hello"]),
    turn("x".repeat(300), ["hi", "hello"]),
    turn("bad\n", ["hi", "hello"]),
    event({ case: "feedback", value: create(FeedbackSchema, { feedbackId: "f", score: 2, turnId: "a" }) }),
    turn("a", ["another", "content"]),
    turn("b", ["ho", "hello"]),
  ]);
  assert.deepEqual(
    acks.map(({ status }) => AckStatus[status]),
    ["ACCEPTED", "REJECTED", "REJECTED", "REJECTED", "REJECTED", "REJECTED", "REJECTED", "ACCEPTED"],
  );
  assert.match(acks[5]!.reason, /score is 2: must be from -1 to \+1/);
  assert.match(acks[6]!.reason, /another content; the first one stands/);
});

test("everything survives a restart, and a known id changes nothing", () => {
  const rig = new Rig();
  const a = turn("a", ["hi", "hello"]);
  rig.book.handle([a, turn("b", ["hi", "hello", "more", "yes"])]);
  rig.store.close();
  const again = new Rig(rig.data);
  assert.equal(again.book.handle([a])[0]!.status, AckStatus.DUPLICATE);
  assert.deepEqual(again.said, ["a: more"]);
  again.outbox.settle([{ id: "a", status: AckStatus.REJECTED, reason: "no" }]);
  assert.equal(again.state("a"), TurnState.REJECTED);
  assert.equal(again.outbox.size, 0);
  again.book.handle([turn("c", ["hi", "hello", "more", "yes", "and", "so"])]);
  assert.deepEqual(again.said, ["b: and"]);
});

test("a forgotten session leaves nothing, and what was under way is not taken in", () => {
  const rig = new Rig();
  rig.book.handle([turn("a", ["hi", "hello"]), turn("b", ["hi", "hello", "more", "yes"])]);
  rig.book.handle([turn("o", ["other", "x"], { sessionId: "other" })]);
  const { turnIds, removed } = rig.book.forget("s", [], Date.now());
  assert.deepEqual(turnIds.sort(), ["a", "b"]);
  assert.equal(removed["turns"], 2n);
  assert.equal(removed["transitions"], 1n);
  rig.book.handle([turn("late", ["hi", "hello"])]); // asked for in 2023
  assert.deepEqual(
    rig.turns().turns.map(({ turnId }) => turnId),
    ["o"],
  );
  assert.throws(() => views.session(rig.store, "s"), /there is no session "s"/);
});

test("a turn that a full disk has no room for is not rejected, and is taken once there is room", () => {
  const rig = new Rig();
  rig.book.handle([turn("a", ["hi", "hello"])]);
  const pages = (most: number) => rig.store.all(`PRAGMA max_page_count = ${most}`);
  pages(1); // none beyond those that there are
  const large = ["b", "c"].map((id) => turn(id, ["x".repeat(100_000), "answer"], { sessionId: "t" }));
  assert.throws(() => rig.book.handle(large), /full/);
  assert.throws(
    () => rig.book.handle([large[1]!]),
    (error) => ofTheStore(error)?.reason === "DISK_FULL",
  );
  assert.equal(rig.turns().turns.length, 1);
  pages(1_000_000);
  assert.deepEqual(
    rig.book.handle(large).map(({ status }) => status),
    [AckStatus.ACCEPTED, AckStatus.ACCEPTED],
  );
});

test("old summaries are deleted, and what is open stays", () => {
  const rig = new Rig();
  rig.book.handle([turn("open", ["hi", "hello"])]);
  for (let i = 0; i < 5; i++)
    rig.book.handle([turn(`t${i}`, [`q${i}`, "a"], { sessionId: `s${i}`, sessionDone: true })]);
  rig.book.prune(2);
  const left = rig.turns().turns.map(({ turnId }) => turnId);
  assert.deepEqual(left, ["t4", "t3", "open"]);
  assert.throws(() => views.session(rig.store, "s0"), /there is no session "s0"/);
  assert.equal(rig.sent.length, 5);
});

test("turns are listed page by page and by filter", async () => {
  const rig = new Rig();
  for (let i = 0; i < 7; i++)
    rig.book.handle([turn(`t${i}`, [`question ${i}`, "answer"], { policyVersion: BigInt(i % 2) })]);
  const seen: string[] = [];
  for (let pageToken = "", pages = 0; pages === 0 || pageToken; pages++) {
    const page = rig.turns({ pageSize: 3, pageToken });
    seen.push(...page.turns.map(({ turnId }) => turnId));
    pageToken = page.nextPageToken;
  }
  assert.deepEqual(seen, ["t6", "t5", "t4", "t3", "t2", "t1", "t0"]);
  assert.equal(rig.turns({ policyVersion: 1n }).turns.length, 3);
  assert.equal(rig.turns({ text: "QUESTION 4" }).turns[0]!.turnId, "t4");
  assert.equal(rig.turns({ text: "%" }).turns.length, 0);
  assert.equal(rig.turns({ turnClasses: [TurnClass.SIDE] }).turns.length, 0);
  const bad = await failure((async () => rig.turns({ pageSize: 2000 }))());
  assert.equal(bad.violations[0]!.field, "page_size");
});
