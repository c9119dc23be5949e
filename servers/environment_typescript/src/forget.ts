/** What is deleted: sessions on request, and what is too old. */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { PolicyEvent } from "@openclaw-rl/client/v1";
import type { Store } from "./store.js";

/** Delete the oldest summaries of turns that are settled, beyond so many. */
export function prune(store: Store, keep: number): void {
  const old = `SELECT id FROM turns WHERE payload IS NULL AND seq <= (SELECT max(seq) FROM turns) - ${keep}`;
  store.run(`DELETE FROM feedback WHERE turn IN (${old})`);
  if (store.run(`DELETE FROM turns WHERE id IN (${old})`) === 0) return;
  store.run("DELETE FROM sessions WHERE ended = 1 AND id NOT IN (SELECT session FROM turns)");
  store.run("DELETE FROM awaited WHERE session NOT IN (SELECT id FROM sessions)");
}

/** Delete a session's turns that were asked for before a time, and remember to let those go that are still to come. */
export function forget(
  store: Store,
  session: string,
  turnIds: string[],
  before: number,
): { turnIds: string[]; removed: Record<string, bigint> } {
  const known = store.all("SELECT id FROM turns WHERE session = ? AND requested < ?", session, before);
  const ids = [...new Set([...turnIds, ...known.map((row) => row["id"] as string)])];
  const removed: Record<string, bigint> = {};
  const count = (kind: string, rows: number): void => {
    if (rows > 0) removed[kind] = (removed[kind] ?? 0n) + BigInt(rows);
  };
  for (const id of ids) {
    count("turns", store.run("DELETE FROM turns WHERE id = ?", id));
    count("transitions", store.run("DELETE FROM outbox WHERE id = ?", id));
    count("set aside", store.run("DELETE FROM rejected WHERE id = ?", id));
    count("feedback", store.run("DELETE FROM feedback WHERE turn = ?", id));
    store.run("DELETE FROM awaited WHERE turn = ?", id);
  }
  count("feedback", store.run("DELETE FROM feedback WHERE session = ?", session));
  if (!store.get("SELECT 1 FROM turns WHERE session = ? LIMIT 1", session)) {
    store.run("DELETE FROM sessions WHERE id = ?", session);
    store.run("DELETE FROM awaited WHERE session = ?", session);
  }
  const remember =
    "INSERT INTO forgotten VALUES (?, ?) ON CONFLICT (session) DO UPDATE SET before = max(before, excluded.before)";
  store.run(remember, session, before);
  return { turnIds: ids, removed };
}

/** Whether an event is of what was forgotten. */
export function isForgotten(store: Store, { event }: PolicyEvent): boolean {
  if (event.case === undefined) return false;
  const at =
    event.case === "turn" ? event.value.requestedAt : event.case === "feedback" ? event.value.givenAt : undefined;
  const row = store.get("SELECT before FROM forgotten WHERE session = ?", event.value.sessionId);
  return row !== undefined && at !== undefined && timestampMs(at) < (row["before"] as number);
}
