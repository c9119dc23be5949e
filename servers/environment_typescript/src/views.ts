/** What the book of sessions tells when asked. */
import { create, fromBinary } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { invalid } from "@openclaw-rl/client";
import {
  FeedbackSchema,
  GetSessionResponseSchema,
  ListTurnsResponseSchema,
  TurnClass,
  TurnState,
  TurnSummarySchema,
  type GetSessionResponse,
  type ListTurnsRequest,
  type ListTurnsResponse,
  type TurnSummary,
} from "@openclaw-rl/client/v1";
import { notFound } from "./faults.js";
import type { Row, Store } from "./store.js";

const DEFAULT_PAGE = 200;
const LARGEST_PAGE = 1000;
const SESSION_TURNS = 5000;

/** What is kept of a session. */
export function sessionRow(store: Store, id: string): Row {
  if (!id) throw invalid("session_id", "", "the id of a session");
  const row = store.get("SELECT * FROM sessions WHERE id = ?", id);
  if (!row) throw notFound("session", id, "ListTurns tells the sessions that there are");
  return row;
}

export function session(store: Store, id: string): GetSessionResponse {
  const row = sessionRow(store, id);
  const figures = store.get(
    `SELECT count(*) AS turns, count(DISTINCT branch) AS branches FROM turns WHERE session = ? AND state <> ${TurnState.SUPERSEDED}`,
    id,
  )!;
  const turns = store.all("SELECT * FROM turns WHERE session = ? ORDER BY seq DESC LIMIT ?", id, SESSION_TURNS);
  const feedback = store.all(
    "SELECT payload FROM feedback WHERE turn IN (SELECT id FROM turns WHERE session = ?) ORDER BY turn, seq",
    id,
  );
  return create(GetSessionResponseSchema, {
    session: {
      sessionId: id,
      startedAt: timestampFromMs(row["started"] as number),
      lastActiveAt: timestampFromMs(row["active"] as number),
      ended: row["ended"] === 1,
      turns: figures["turns"] as number,
      branches: figures["branches"] as number,
    },
    turns: turns.reverse().map(summary),
    feedback: feedback.map((one) => fromBinary(FeedbackSchema, one["payload"] as Uint8Array)),
  });
}

/** A page of turns, newest first. Turns that are asked for by their ids come whatever became of them. */
export function turns(store: Store, request: ListTurnsRequest): ListTurnsResponse {
  check(request);
  const size = request.pageSize || DEFAULT_PAGE;
  const conditions = ["seq < ?"];
  const values: (string | number)[] = [request.pageToken ? Number(request.pageToken) : Number.MAX_SAFE_INTEGER];
  const only = (condition: string, ...more: (string | number)[]): void => {
    conditions.push(condition);
    values.push(...more);
  };
  if (request.sessionId) only("session = ?", request.sessionId);
  if (request.turnIds.length > 0) only(`id IN (${marks(request.turnIds)})`, ...request.turnIds);
  else if (!request.includeSuperseded) only(`state <> ${TurnState.SUPERSEDED}`);
  if (request.turnClasses.length > 0) only(`class IN (${marks(request.turnClasses)})`, ...request.turnClasses);
  if (request.policyVersion !== undefined) only("version = ?", Number(request.policyVersion));
  if (request.text) {
    const pattern = `%${request.text.replace(/[\\%_]/g, "\\$&")}%`;
    only("(request_text LIKE ? ESCAPE '\\' OR response_text LIKE ? ESCAPE '\\')", pattern, pattern);
  }
  const rows = store.all(
    `SELECT * FROM turns WHERE ${conditions.join(" AND ")} ORDER BY seq DESC LIMIT ?`,
    ...values,
    size + 1,
  );
  return create(ListTurnsResponseSchema, {
    turns: rows.slice(0, size).map(summary),
    nextPageToken: rows.length > size ? String(rows[size - 1]!["seq"]) : "",
  });
}

function check(request: ListTurnsRequest): void {
  const { turnIds, sessionId, pageSize, pageToken, turnClasses } = request;
  if (turnIds.length > LARGEST_PAGE)
    throw invalid("turn_ids", `${turnIds.length} turns`, `at most ${LARGEST_PAGE} turns`);
  if (turnIds.length > 0 && sessionId) throw invalid("session_id", sessionId, "left out beside turn_ids");
  if (pageSize < 0 || pageSize > LARGEST_PAGE) {
    throw invalid("page_size", pageSize, `from 0 to ${LARGEST_PAGE}; 0 means ${DEFAULT_PAGE}`);
  }
  if (pageToken && !/^[0-9]{1,15}$/.test(pageToken)) {
    throw invalid("page_token", pageToken, "next_page_token of an earlier answer");
  }
  const known = [TurnClass.MAIN, TurnClass.SIDE, TurnClass.UNKNOWN];
  const strange = turnClasses.find((one) => !known.includes(one));
  if (strange !== undefined) throw invalid("turn_classes", strange, "main, side or unknown");
}

function marks(items: unknown[]): string {
  return items.map(() => "?").join(", ");
}

function summary(row: Row): TurnSummary {
  return create(TurnSummarySchema, {
    turnId: row["id"] as string,
    sessionId: row["session"] as string,
    turnClass: row["class"] as TurnClass,
    classReason: row["rule"] as string,
    policyVersion: BigInt(row["version"] as number),
    state: row["state"] as TurnState,
    reason: row["reason"] as string,
    finishedAt: timestampFromMs(row["finished"] as number),
    requestText: row["request_text"] as string,
    responseText: row["response_text"] as string,
    parentTurnId: row["parent"] as string,
    branchId: row["branch"] as string,
    flaw: row["flaw"] as string,
  });
}
