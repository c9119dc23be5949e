/**
 * The book of sessions: which turn continues which, and when a turn's next state is complete.
 *
 * Every main turn gets its next state once, and goes to the outbox as a transition in the transaction that notes it. A
 * request continues the turn whose conversation is its longest prefix, within its session; one that continues none
 * opens a branch. Attempts at one request (a retry, several choices) are one turn: the latest stands for it until one of
 * them is continued. A turn that comes before the one that it continues waits for it.
 */
import { randomUUID } from "node:crypto";
import { clone, create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { timestampNow } from "@bufbuild/protobuf/wkt";
import { eventId } from "@openclaw-rl/client";
import {
  AckSchema,
  AckStatus,
  FeedbackSchema,
  FinishReason,
  NextStateKind,
  NextStateSchema,
  PolicyEventSchema,
  SessionSource,
  TransitionSchema,
  TurnClass,
  TurnSchema,
  TurnState,
  type Ack,
  type Feedback,
  type NextState,
  type PolicyEvent,
  type Turn,
} from "@openclaw-rl/client/v1";
import { classify } from "./classify.js";
import { asText, keyOf, messagesBehind, outline, type Outline } from "./conversation.js";
import { ofTheStore } from "./faults.js";
import { forget, isForgotten, prune } from "./forget.js";
import { inferSession, link, milliseconds, outside, rank, type Link, type Rank } from "./links.js";
import { refusal } from "./refusal.js";
import type { DiskOutbox, Store } from "./store.js";

const KEEP_TURNS = 200_000;
const START_GRACE_MS = 60_000; // after a start no session times out at once: what was said may be under way
const MOST_AWAITED = 8;
const CLASS_WORDS = { [TurnClass.MAIN]: "main", [TurnClass.SIDE]: "side", [TurnClass.UNKNOWN]: "unknown" } as const;
const CLOSED_BY: Partial<Record<NextStateKind, string>> = {
  [NextStateKind.FEEDBACK]: "feedback was given",
  [NextStateKind.SESSION_ENDED]: "the session ended",
  [NextStateKind.SESSION_TIMEOUT]: "the session timed out",
};
const FLAWS: Partial<Record<FinishReason, string>> = {
  [FinishReason.CANCELLED]: "the client cut the response off",
  [FinishReason.ERROR]: "the engine failed",
  [FinishReason.LENGTH]: "the response stopped at the token limit",
};

export class SessionBook {
  private readonly startedAt = Date.now();

  constructor(
    private readonly store: Store,
    private readonly outbox: DiskOutbox,
    private readonly timeoutMs: number,
    private readonly mesh = "",
  ) {}

  /** Take events, in one transaction, and answer each once all that follows from it is on disk. */
  handle(events: PolicyEvent[]): Ack[] {
    try {
      return this.changing(() => events.map((event) => this.take(event)));
    } catch (error) {
      if (ofTheStore(error)) throw error; // nothing is wrong with the message: it is to be sent again
      if (events.length > 1) return events.flatMap((event) => this.handle([event]));
      const incident = randomUUID();
      console.error(`incident ${incident} with message ${eventId(events[0]!)}:`, error);
      return [refused(eventId(events[0]!), `the receiver failed on it; its log has more under incident ${incident}`)];
    }
  }

  /** End a session; gives the number of turns that got their next state by it. */
  end(session: string): number {
    return this.changing(() => this.endWith(session, NextStateKind.SESSION_ENDED));
  }

  /** End the sessions in which nothing came for the session time-out. */
  reap(): number {
    const now = Date.now();
    if (now - this.startedAt < Math.min(START_GRACE_MS, this.timeoutMs)) return 0;
    const due = this.store.all(
      "SELECT id FROM sessions WHERE ended = 0 AND active < ? LIMIT 100",
      now - this.timeoutMs,
    );
    if (due.length === 0) return 0;
    this.changing(() => due.forEach((row) => this.endWith(row["id"] as string, NextStateKind.SESSION_TIMEOUT)));
    return due.length;
  }

  /** The judge has refused a turn's transition; within the outbox's transaction. */
  rejected(id: string, reason: string): void {
    this.settle(id, TurnState.REJECTED, `the judge refused it: ${reason}`);
  }

  /** Delete the oldest summaries of turns that are settled, beyond so many. */
  prune(keep = KEEP_TURNS): void {
    this.changing(() => prune(this.store, keep));
  }

  /** Delete a session's turns that were asked for before a time, and let those go that are still to come. */
  forget(session: string, turnIds: string[], before: number): ReturnType<typeof forget> {
    const result = this.changing(() => forget(this.store, session, turnIds, before));
    this.store.checkpoint();
    return result;
  }

  private changing<T>(work: () => T): T {
    const result = this.store.transaction(work);
    this.outbox.wake();
    return result;
  }

  private take(event: PolicyEvent): Ack {
    const id = eventId(event);
    const problem = refusal(event, id, this.mesh);
    if (problem) return refused(id, problem);
    if (isForgotten(this.store, event)) return create(AckSchema, { id, status: AckStatus.ACCEPTED });
    const taken = this.store.accept(id, toBinary(PolicyEventSchema, event));
    if (taken === "known") return create(AckSchema, { id, status: AckStatus.DUPLICATE });
    if (taken === "forged") {
      return refused(id, "this id was used before, for a message with another content; the first one stands");
    }
    const { event: of } = event;
    if (of.case === "turn")
      this.turn(clone(TurnSchema, of.value)); // a copy: a batch that fails is handled again as it came
    else if (of.case === "feedback") this.feedback(of.value);
    else if (of.case === "sessionEnd") this.endWith(of.value.sessionId, NextStateKind.SESSION_ENDED);
    else if (of.case === "sessionActive") {
      this.store.run("UPDATE sessions SET active = ? WHERE id = ? AND ended = 0", Date.now(), of.value.sessionId);
    }
    return create(AckSchema, { id, status: AckStatus.ACCEPTED });
  }

  private turn(turn: Turn): void {
    turn.meshId ||= this.mesh;
    const its = outline(turn);
    if (!turn.sessionId) {
      const session = inferSession(this.store, turn, its);
      turn.sessionSource = session ? SessionSource.INFERRED : SessionSource.NEW;
      turn.sessionId = session || `session_${randomUUID().replaceAll("-", "")}`;
    }
    const session = turn.sessionId;
    const where = link(this.store, session, its);
    const { turnClass, rule } = classify(turn);
    turn.turnClass = turnClass;
    turn.classReason = rule;
    delete turn.episode; // none that is run here: see classify
    const main = turnClass === TurnClass.MAIN;
    const word = CLASS_WORDS[turnClass as TurnClass.MAIN];
    const place = main ? rank(this.store, turn, its) : outside(`${word} turns are not trained on`);
    if (place.replaces) this.settleKeeping(place.replaces, `turn ${turn.turnId}, a later attempt, took its place`);
    turn.branchId = where.branch || turn.turnId;
    this.insert(turn, its, where, place);
    if (place.repeats) this.store.count("retries");
    else for (const name of [`turns_${word}`, "total_interactions"]) this.store.count(name);
    if (main) {
      this.giveNextState(turn, its, where);
      this.awaitMissing(turn, its, where);
    }
    this.takeWaiting(turn, its);
    if (place.keep && this.feedbackOn(turn.turnId, turn.client).length > 0)
      this.close(turn.turnId, NextStateKind.FEEDBACK);
    if (turn.sessionDone) this.endWith(session, NextStateKind.SESSION_ENDED);
  }

  private insert(turn: Turn, its: Outline, link: Link, rank: Rank): void {
    const now = Date.now();
    const last = turn.messages.at(-1);
    const response = turn.response ? asText([turn.response]) : "";
    const flaw = [FLAWS[turn.finishReason], response.trim() ? undefined : "the response is empty"]
      .filter(Boolean)
      .join("; ");
    this.store.run(
      `INSERT INTO turns (id, session, client, branch, parent, class, rule, version, state, reason, requested, choice,
        finished, request, response, request_text, response_text, flaw, payload)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
      turn.turnId, turn.sessionId, turn.client, turn.branchId, link.parent, turn.turnClass, turn.classReason,
      Number(turn.policyVersion), rank.state, rank.reason, milliseconds(turn.requestedAt), turn.choiceIndex,
      Math.floor(milliseconds(turn.finishedAt)) || now, its.request, its.response, cut(last ? asText([last]) : ""), cut(response), flaw,
      rank.keep ? toBinary(TurnSchema, turn) : null,
    ); // prettier-ignore
    this.store.run(
      "INSERT INTO sessions (id, started, active) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET active = ?, ended = 0",
      turn.sessionId, now, now, now,
    ); // prettier-ignore
  }

  private giveNextState(turn: Turn, its: Outline, { main, position, sideResponses }: Link): void {
    if (!main) return;
    const behind = messagesBehind(turn.messages, position, its.digests, sideResponses);
    if (behind.length > 0) this.close(main["id"] as string, NextStateKind.CONTINUED, behind, turn.turnId);
  }

  /** Note the responses that the request has and that are not here: their turns may still come. */
  private awaitMissing(turn: Turn, its: Outline, { known }: Link): void {
    for (const i of its.responses.filter((i) => i > known).slice(0, MOST_AWAITED)) {
      const messages = messagesBehind(turn.messages, i);
      if (messages.length === 0) continue;
      const state = create(NextStateSchema, { kind: NextStateKind.CONTINUED, messages, nextTurnId: turn.turnId });
      const sql = "INSERT OR IGNORE INTO awaited VALUES (?, ?, ?, ?)";
      this.store.run(sql, turn.sessionId, its.digests[i]!, turn.turnId, toBinary(NextStateSchema, state));
    }
  }

  /** When a turn that continues this one came before it: link them, and take the next state from there. */
  private takeWaiting(turn: Turn, its: Outline): void {
    const { store } = this;
    const row = store.get("SELECT * FROM awaited WHERE session = ? AND response = ?", turn.sessionId, its.response);
    if (!row) return;
    store.run("DELETE FROM awaited WHERE session = ? AND response = ?", turn.sessionId, its.response);
    const follower = row["turn"] as string;
    store.run("UPDATE turns SET parent = ? WHERE id = ?", turn.turnId, follower);
    store.run("UPDATE turns SET branch = ? WHERE session = ? AND branch = ?", turn.branchId, turn.sessionId, follower);
    if (turn.turnClass !== TurnClass.MAIN) return;
    const { messages } = fromBinary(NextStateSchema, row["next_state"] as Uint8Array);
    this.close(turn.turnId, NextStateKind.CONTINUED, messages, follower);
  }

  private feedback(feedback: Feedback): void {
    const { store } = this;
    const row = feedback.turnId
      ? store.get("SELECT id, session, client FROM turns WHERE id = ?", feedback.turnId)
      : store.get(`SELECT id, session, client FROM turns WHERE session = ? AND class = ${TurnClass.MAIN}
          AND state <> ${TurnState.SUPERSEDED} ORDER BY seq DESC LIMIT 1`, feedback.sessionId); // prettier-ignore
    if (row && stranger(row["client"] as string, feedback.client)) {
      console.warn(`feedback ${feedback.feedbackId} on turn ${row["id"]} is ignored: it was given with another key`);
      store.count("feedback_ignored");
      return;
    }
    const turnId = (row?.["id"] as string | undefined) ?? feedback.turnId;
    const session = (row?.["session"] as string | undefined) ?? feedback.sessionId;
    const sql = "INSERT OR IGNORE INTO feedback (id, turn, session, client, payload) VALUES (?, ?, ?, ?, ?)";
    store.run(sql, feedback.feedbackId, turnId, session, feedback.client, toBinary(FeedbackSchema, feedback));
    if (row) this.close(turnId, NextStateKind.FEEDBACK);
  }

  private feedbackOn(turnId: string, client: string): Feedback[] {
    return this.store
      .all("SELECT client, payload FROM feedback WHERE turn = ? ORDER BY seq", turnId)
      .filter((row) => !stranger(client, row["client"] as string))
      .map((row) => fromBinary(FeedbackSchema, row["payload"] as Uint8Array));
  }

  private endWith(session: string, kind: NextStateKind): number {
    const sql = `SELECT id FROM turns WHERE session = ? AND state = ${TurnState.OPEN} ORDER BY seq`;
    const closed = this.store.all(sql, session).filter((row) => this.close(row["id"] as string, kind)).length;
    this.store.run("UPDATE sessions SET ended = 1 WHERE id = ?", session);
    return closed;
  }

  /** Send a turn with its next state to the judge; false when it was sent before, or can't be any more. */
  private close(turnId: string, kind: NextStateKind, messages: NextState["messages"] = [], nextTurnId = ""): boolean {
    const { store } = this;
    const row = store.get("SELECT payload, branch, session, request FROM turns WHERE id = ?", turnId);
    if (!row?.["payload"]) return false;
    const turn = fromBinary(TurnSchema, row["payload"] as Uint8Array);
    turn.branchId = row["branch"] as string;
    const feedback = this.feedbackOn(turnId, turn.client);
    const nextState = { kind, messages, feedback, nextTurnId, observedAt: timestampNow() };
    const transition = create(TransitionSchema, { turn, nextState });
    this.outbox.put(turnId, turn.sessionId, toBinary(TransitionSchema, transition));
    this.settle(turnId, TurnState.SENT, CLOSED_BY[kind] ?? `continued by turn ${nextTurnId}`);
    const rivals = `UPDATE turns SET state = ${TurnState.SUPERSEDED}, reason = ?, payload = NULL
      WHERE session = ? AND request = ? AND id <> ? AND payload IS NOT NULL`;
    store.run(rivals, `turn ${turnId} of the same request was sent`, row["session"]!, row["request"]!, turnId);
    store.count("transitions_sent");
    return true;
  }

  private settle(id: string, state: TurnState, reason: string): void {
    this.store.run("UPDATE turns SET state = ?, reason = ?, payload = NULL WHERE id = ?", state, reason, id);
  }

  /** Another attempt stands for the request; this one may still be the one that is continued. */
  private settleKeeping(id: string, reason: string): void {
    this.store.run("UPDATE turns SET state = ?, reason = ? WHERE id = ?", TurnState.SUPERSEDED, reason, id);
  }
}

/** Whether two clients are known to have shown different API keys. */
function stranger(client: string, other: string): boolean {
  const [one, two] = [keyOf(client), keyOf(other)];
  return one !== "" && two !== "" && one !== two;
}

function cut(text: string): string {
  return [...text.slice(0, 400)].slice(0, 200).join("");
}

function refused(id: string, reason: string): Ack {
  return create(AckSchema, { id, status: AckStatus.REJECTED, reason });
}
