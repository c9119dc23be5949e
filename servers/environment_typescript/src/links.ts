/** Where a turn belongs: its session, the turn that it continues, and its place among attempts at one request. */
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { TurnClass, TurnState, type Turn } from "@openclaw-rl/client/v1";
import type { Outline } from "./conversation.js";
import type { Row, Store } from "./store.js";

/** What a turn continues. */
export interface Link {
  parent: string;
  branch: string;
  main: Row | undefined;
  position: number; // of the main turn's response in the request
  known: number; // position of the last response that is here
  sideResponses: Set<string>;
}

/** What becomes of a turn. */
export interface Rank {
  state: TurnState;
  reason: string;
  keep: boolean;
  repeats: boolean; // an earlier turn has the same request
  replaces?: string; // id of the attempt that stood for the request until now
}

/** The session of the client's conversation that a turn continues; "" when it continues none. */
export function inferSession(store: Store, turn: Turn, its: Outline): string {
  for (const i of turn.client ? its.responses : []) {
    const sql = "SELECT session FROM turns WHERE client = ? AND response = ? ORDER BY seq DESC LIMIT 1";
    const row = store.get(sql, turn.client, its.digests[i]!);
    if (row) return row["session"] as string;
  }
  return "";
}

/** What a turn continues, within its session. */
export function link(store: Store, session: string, its: Outline): Link {
  const found: Link = { parent: "", branch: "", main: undefined, position: -1, known: -1, sideResponses: new Set() };
  for (const i of its.responses) {
    // Of turns with the same conversation: the one that is open, else one that was sent, else the latest.
    const sql = `SELECT id, class, branch, state FROM turns WHERE session = ? AND response = ?
      ORDER BY CASE state WHEN ${TurnState.OPEN} THEN 0 WHEN ${TurnState.SENT} THEN 1 WHEN ${TurnState.REJECTED} THEN 1
      ELSE 2 END, seq DESC`;
    const rows = store.all(sql, session, its.digests[i]!);
    if (rows.length === 0) continue;
    if (found.known < 0) {
      found.known = i;
      found.parent = rows[0]!["id"] as string;
      found.branch = rows[0]!["branch"] as string;
    }
    found.main = rows.find((row) => row["class"] === TurnClass.MAIN);
    if (found.main) {
      found.position = i;
      break;
    }
    found.sideResponses.add(its.digests[i]!);
  }
  return found;
}

/** Where a main turn stands among the attempts at its request. */
export function rank(store: Store, turn: Turn, its: Outline): Rank {
  const open: Rank = { state: TurnState.OPEN, reason: "", keep: true, repeats: false };
  const sql = `SELECT id, state, requested, choice FROM turns WHERE session = ? AND request = ? AND class = ${TurnClass.MAIN} ORDER BY seq`;
  const attempts = store.all(sql, turn.sessionId, its.request);
  const requested = milliseconds(turn.requestedAt);
  const standing = attempts.find((row) => row["state"] === TurnState.OPEN);
  if (standing) {
    const before = (standing["requested"] as number) - requested;
    const later = before > 0 || (before === 0 && (standing["choice"] as number) < turn.choiceIndex);
    if (later)
      return {
        ...open,
        state: TurnState.SUPERSEDED,
        reason: `turn ${standing["id"]} stands for the request`,
        repeats: true,
      };
    return { ...open, repeats: true, replaces: standing["id"] as string };
  }
  const sent = attempts.find((row) => requested > 0 && (row["requested"] as number) >= requested);
  if (!sent) return open;
  const reason = `turn ${sent["id"]} of the same request was sent already`;
  return { state: TurnState.SUPERSEDED, reason, keep: false, repeats: true };
}

/** The place of a turn that is no main one. */
export function outside(reason: string): Rank {
  return { state: TurnState.NOT_TRAINABLE, reason, keep: false, repeats: false };
}

/** Milliseconds since 1970, with their fraction; 0 for none. */
export function milliseconds(time: Timestamp | undefined): number {
  return time ? Number(time.seconds) * 1000 + time.nanos / 1e6 : 0;
}
