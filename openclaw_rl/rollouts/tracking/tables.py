"""Tables of sessions and the statements on them. No decision is made here.

A turn that may still be sent to the judge keeps its payload (the serialized Turn); any other has only its summary and
the two digests by which a later request is found to continue or repeat it.

Statements that run with every turn name their index (INDEXED BY). Without statistics SQLite takes every index for
equally selective, so that an index added for a listing was once preferred for these, and each turn read all others.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from openclaw_rl.rollouts.tracking import episode_table as episodes
from openclaw_rl.rollouts.tracking.next_state import Outline, as_text
from openclaw_rl.storage.checksum import add_columns, crc, sound
from openclaw_rl.storage.salvage import Recovery
from openclaw_rl.v1 import environment_pb2, turn_pb2

logger = logging.getLogger(__name__)

SCHEMA = episodes.SCHEMA + """
CREATE TABLE IF NOT EXISTS sessions(
    id TEXT PRIMARY KEY,
    started REAL NOT NULL,              -- unix seconds, as are all times here
    active REAL NOT NULL,
    ended INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sessions_open ON sessions(active) WHERE ended = 0;
CREATE TABLE IF NOT EXISTS turns(
    seq INTEGER PRIMARY KEY,            -- order of arrival
    id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    class INTEGER NOT NULL,
    rule TEXT NOT NULL,
    version INTEGER NOT NULL,
    state INTEGER NOT NULL,
    reason TEXT NOT NULL,
    flaw TEXT NOT NULL,                 -- what is wrong with the response; empty when nothing is
    finished REAL NOT NULL,
    requested INTEGER NOT NULL,         -- nanoseconds
    choice INTEGER NOT NULL,
    request_text TEXT NOT NULL,
    response_text TEXT NOT NULL,
    parent TEXT NOT NULL,
    request BLOB NOT NULL,              -- digest of the request
    response BLOB NOT NULL,             -- digest of the conversation up to and with the response
    payload BLOB,
    crc INTEGER,                        -- of the payload; NULL in rows of before it was kept
    client TEXT NOT NULL DEFAULT '',    -- of the turn
    branch TEXT NOT NULL DEFAULT '',
    change TEXT NOT NULL DEFAULT '',    -- of the context
    instructions BLOB,                  -- digest of the system messages
    conversation BLOB,                  -- digest of the request without them, of main turns
    trail BLOB,                         -- digests of all messages; only until a main turn continues it
    episode BLOB,                       -- serialized EpisodeStep; NULL for a turn of no episode
    calls BLOB                          -- digest of the ids of its tool calls
);
CREATE INDEX IF NOT EXISTS turns_session ON turns(session);
CREATE INDEX IF NOT EXISTS turns_response ON turns(response, session);
CREATE INDEX IF NOT EXISTS turns_request ON turns(request, session);
CREATE INDEX IF NOT EXISTS turns_kept ON turns(session) WHERE payload IS NOT NULL;
-- Responses that a request refers to and that are not here (yet).
CREATE TABLE IF NOT EXISTS awaited(
    session TEXT NOT NULL,
    response BLOB NOT NULL,
    turn TEXT NOT NULL,                 -- that refers to it
    distance INTEGER NOT NULL,          -- messages from there to the end of the turn's request
    next_state BLOB NOT NULL,           -- serialized NextState that it brings
    crc INTEGER,                        -- of the next state
    PRIMARY KEY(session, response)
) WITHOUT ROWID;
-- Conversations of turns that came without a session id.
CREATE TABLE IF NOT EXISTS conversations(
    seq INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    response BLOB NOT NULL,
    session TEXT,                       -- of several the newest; NULL in rows of an older release
    UNIQUE(client, response)
);
CREATE TABLE IF NOT EXISTS feedback(
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    turn TEXT NOT NULL,
    payload BLOB NOT NULL,              -- serialized Feedback
    crc INTEGER
);
CREATE INDEX IF NOT EXISTS feedback_turn ON feedback(turn);
CREATE TABLE IF NOT EXISTS counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

#: What is here was taken, whatever became of the ids that were: an event that comes again is known.
RECOVERY = Recovery(repair=["INSERT OR IGNORE INTO inbox_events (id) SELECT id FROM turns",
                            "INSERT OR IGNORE INTO inbox_events (id) SELECT id FROM feedback"])

OPEN, SENT, NOT_TRAINABLE, SUPERSEDED, REJECTED = (
    environment_pb2.TURN_STATE_OPEN, environment_pb2.TURN_STATE_SENT, environment_pb2.TURN_STATE_NOT_TRAINABLE,
    environment_pb2.TURN_STATE_SUPERSEDED, environment_pb2.TURN_STATE_REJECTED)

#: Condition of main turns, as that of an index must be: without a parameter.
_MAIN = f"class = {turn_pb2.TURN_CLASS_MAIN}"
#: Characters of the texts in a summary.
EXCERPT = 200
#: Columns without the payload, which may be large.
SUMMARY = ("seq, id, session, class, rule, version, state, reason, flaw, finished, requested, choice, request_text, "
           "response_text, parent, request, response, client, branch, change, episode, calls, "
           "trail IS NOT NULL AS leaf")


def add_missing_columns(db: sqlite3.Connection) -> None:
    """Migrate the tables of an older release."""
    for table in ("turns", "awaited", "feedback"):
        add_columns(db, table, {"crc": "INTEGER"})
    text = "TEXT NOT NULL DEFAULT ''"
    add_columns(db, "turns", {"client": text, "branch": text, "change": text, "instructions": "BLOB",
                              "conversation": "BLOB", "trail": "BLOB", "episode": "BLOB", "calls": "BLOB"})
    db.execute("CREATE INDEX IF NOT EXISTS turns_conversation ON turns(conversation, session)")
    db.execute("CREATE INDEX IF NOT EXISTS turns_leaves ON turns(session) WHERE trail IS NOT NULL")
    db.execute("CREATE INDEX IF NOT EXISTS turns_class ON turns(class)")
    db.execute("CREATE INDEX IF NOT EXISTS turns_version ON turns(version, class)")
    db.execute(f"CREATE INDEX IF NOT EXISTS turns_main ON turns(session) WHERE {_MAIN}")


def touch_session(db: sqlite3.Connection, session: str, now: float) -> None:
    """Note activity in a session: it exists, and is open."""
    db.execute("INSERT INTO sessions VALUES(?1, ?2, ?2, 0) "
               "ON CONFLICT(id) DO UPDATE SET active = ?2, ended = 0", (session, now))


def still_active(db: sqlite3.Connection, session: str, now: float) -> bool:
    """Note that an open session is not idle; False if there is none, or it has ended."""
    return bool(db.execute("UPDATE sessions SET active = ? WHERE id = ? AND ended = 0", (now, session)).rowcount)


def add_turn(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline, *, state: int, reason: str, flaw: str,
             parent: str, payload: bytes | None, change: str = "") -> None:
    """Insert a turn whose class and branch are decided."""
    main = turn.turn_class == turn_pb2.TURN_CLASS_MAIN
    db.execute(
        "INSERT INTO turns(id, session, class, rule, version, state, reason, flaw, finished, requested, choice, "
        "request_text, response_text, parent, request, response, payload, crc, client, branch, change, instructions, "
        "conversation, trail, episode, calls) "
        "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (turn.turn_id, turn.session_id, turn.turn_class, turn.class_reason, turn.policy_version, state, reason, flaw,
         turn.finished_at.ToNanoseconds() / 1e9, turn.requested_at.ToNanoseconds(), turn.choice_index,
         as_text(outline.messages[-1:])[:EXCERPT], as_text([turn.response])[:EXCERPT], parent, outline.request,
         outline.response, payload, None if payload is None else crc(payload), turn.client, turn.branch_id, change,
         outline.instructions, outline.conversation if main else None, outline.trail if main else None,
         turn.episode.SerializeToString() if turn.HasField("episode") else None, outline.calls))


def turn(db: sqlite3.Connection, turn_id: str) -> sqlite3.Row | None:
    """The summary of a turn."""
    found: sqlite3.Row | None = db.execute(f"SELECT {SUMMARY} FROM turns WHERE id = ?", (turn_id,)).fetchone()
    return found


def payload(db: sqlite3.Connection, turn_id: str) -> tuple[bytes | None, bool, str]:
    """The serialized Turn while it is kept, whether it is intact, and the turn's present branch."""
    row = db.execute("SELECT payload, crc, branch FROM turns WHERE id = ?", (turn_id,)).fetchone()
    return (row["payload"], sound(row["payload"], row["crc"]), row["branch"]) if row else (None, False, "")


def answered(db: sqlite3.Connection, session: str, responses: Sequence[bytes]) -> list[sqlite3.Row]:
    """The session's turns with one of these response digests, oldest first."""
    return db.execute(f"SELECT {SUMMARY} FROM turns INDEXED BY turns_response WHERE response IN "
                      f"({','.join('?' * len(responses))}) AND session = ? ORDER BY seq",
                      (*responses, session)).fetchall()


def attempts(db: sqlite3.Connection, session: str, request: bytes) -> list[sqlite3.Row]:
    """The session's main turns with this request, oldest first."""
    return db.execute(f"SELECT {SUMMARY} FROM turns INDEXED BY turns_request WHERE request = ? AND session = ? AND "
                      f"{_MAIN} ORDER BY seq", (request, session)).fetchall()


def answering(db: sqlite3.Connection, session: str, conversations: Sequence[bytes]) -> list[sqlite3.Row]:
    """The session's main turns that may still be sent and have one of these conversations in their request, oldest
    first, with their payloads."""
    marks = ",".join("?" * len(conversations))
    return db.execute(f"SELECT {SUMMARY}, conversation, payload, crc FROM turns INDEXED BY turns_conversation WHERE "
                      f"conversation IN ({marks}) AND session = ? AND payload IS NOT NULL ORDER BY seq",
                      (*conversations, session)).fetchall()


def leaves(db: sqlite3.Connection, session: str, limit: int) -> list[sqlite3.Row]:
    """The session's latest main turns that no main turn continues, the newest first, with their trails."""
    return db.execute(f"SELECT {SUMMARY}, trail FROM turns INDEXED BY turns_leaves WHERE session = ? AND trail IS NOT "
                      "NULL ORDER BY seq DESC LIMIT ?", (session, limit)).fetchall()


def latest(db: sqlite3.Connection, session: str, limit: int) -> list[sqlite3.Row]:
    """Instructions and answers of the session's latest main turns, the newest first."""
    return db.execute(f"SELECT instructions, response_text FROM turns INDEXED BY turns_main WHERE session = ? AND "
                      f"{_MAIN} ORDER BY seq DESC LIMIT ?", (session, limit)).fetchall()


def continued(db: sqlite3.Connection, turn_id: str) -> None:
    """Note that a main turn continues this one."""
    db.execute("UPDATE turns SET trail = NULL WHERE id = ?", (turn_id,))


def open_turns(db: sqlite3.Connection, session: str) -> list[str]:
    """Ids of the session's turns without a next state, oldest first."""
    return [row["id"] for row in db.execute("SELECT id FROM turns INDEXED BY turns_kept WHERE session = ? AND payload "
                                            "IS NOT NULL AND state = ? ORDER BY seq", (session, OPEN))]


def steps(db: sqlite3.Connection, session: str) -> int:
    """Number of recorded steps of an episode."""
    found: int = db.execute("SELECT count(DISTINCT episode) FROM turns WHERE session = ?", (session,)).fetchone()[0]
    return found


def last_main_turn(db: sqlite3.Connection, session: str) -> sqlite3.Row | None:
    """The session's newest main turn that is not superseded."""
    found: sqlite3.Row | None = db.execute(
        f"SELECT {SUMMARY} FROM turns INDEXED BY turns_main WHERE session = ? AND {_MAIN} AND state <> ? "
        "ORDER BY seq DESC LIMIT 1", (session, SUPERSEDED)).fetchone()
    return found


def settle(db: sqlite3.Connection, turn_id: str, state: int, reason: str, *, continued: bool = False) -> None:
    """Put a turn into a state in which its payload is no longer needed.

    Args:
        continued: a main turn continues it, see `continued`.
    """
    gone = "payload = NULL, trail = NULL" if continued else "payload = NULL"
    db.execute(f"UPDATE turns SET state = ?, reason = ?, {gone} WHERE id = ?", (state, reason, turn_id))


def supersede(db: sqlite3.Connection, turn_id: str, reason: str) -> None:
    """Note that another attempt replaced a turn; its payload stays, since it may still be the one continued."""
    db.execute("UPDATE turns SET state = ?, reason = ? WHERE id = ?", (SUPERSEDED, reason, turn_id))


def set_parent(db: sqlite3.Connection, session: str, turn_id: str, parent: str, branch: str) -> None:
    """Note what a turn continues; the branch that it had opened joins its parent's."""
    db.execute("UPDATE turns SET parent = ? WHERE id = ?", (parent, turn_id))
    db.execute("UPDATE turns SET branch = ? WHERE session = ? AND branch = ?", (branch, session, turn_id))


def drop_rivals(db: sqlite3.Connection, winner: str, reason: str, keep: bool) -> None:
    """Supersede the other attempts at the winner's request.

    Args:
        keep: they may still be sent until the session ends; else it is for good.
    """
    rivals = db.execute("SELECT id FROM turns INDEXED BY turns_request WHERE (request, session) = "
                        "(SELECT request, session FROM turns WHERE id = ?) AND id <> ? AND payload IS NOT NULL",
                        (winner, winner)).fetchall()
    if rivals:  # rarely: a search costs a third of what an UPDATE without a match does
        db.executemany("UPDATE turns SET state = ?, reason = ?, trail = NULL, payload = CASE WHEN ? THEN payload END "
                       "WHERE id = ?", [(SUPERSEDED, reason, keep, row["id"]) for row in rivals])


def await_response(db: sqlite3.Connection, session: str, response: bytes, turn_id: str, distance: int,
                   next_state: bytes) -> None:
    """Note that a turn refers to a missing response; of several turns the nearest counts."""
    db.execute("INSERT INTO awaited(session, response, turn, distance, next_state, crc) VALUES(?, ?, ?, ?, ?, ?) ON "
               "CONFLICT(session, response) DO UPDATE SET turn = excluded.turn, distance = excluded.distance, "
               "next_state = excluded.next_state, crc = excluded.crc WHERE excluded.distance < distance",
               (session, response, turn_id, distance, next_state, crc(next_state)))


def take_awaited(db: sqlite3.Connection, session: str, response: bytes) -> sqlite3.Row | None:
    """Take the turn that waits for this response, if any."""
    found: sqlite3.Row | None = db.execute(
        "SELECT turn, next_state, crc FROM awaited WHERE session = ? AND response = ?", (session, response)).fetchone()
    if found is not None:  # rarely: a search costs a third of what a DELETE without a match does
        db.execute("DELETE FROM awaited WHERE session = ? AND response = ?", (session, response))
    return found


def end_session(db: sqlite3.Connection, session: str) -> None:
    """Mark a session as ended, and drop what waits in it."""
    db.execute("UPDATE sessions SET ended = 1 WHERE id = ?", (session,))
    db.execute("UPDATE turns INDEXED BY turns_kept SET payload = NULL WHERE session = ? AND payload IS NOT NULL AND "
               "state = ?", (session, SUPERSEDED))
    db.execute("DELETE FROM awaited WHERE session = ?", (session,))


def remember_conversation(db: sqlite3.Connection, client: str, response: bytes, session: str) -> None:
    """Note the session of a conversation without an id; of several the newest counts."""
    db.execute("INSERT INTO conversations(client, response, session) VALUES(?, ?, ?) ON CONFLICT(client, response) "
               "DO UPDATE SET session = excluded.session", (client, response, session))


def conversation(db: sqlite3.Connection, client: str, response: bytes) -> sqlite3.Row | None:
    """The noted conversation."""
    found: sqlite3.Row | None = db.execute(
        "SELECT session FROM conversations WHERE client = ? AND response = ?",
        (client, response)).fetchone()
    return found


def add_feedback(db: sqlite3.Connection, feedback: turn_pb2.Feedback, turn_id: str) -> None:
    """Insert feedback; the turn may not have arrived yet."""
    payload = feedback.SerializeToString()
    db.execute("INSERT OR IGNORE INTO feedback(id, turn, payload, crc) VALUES(?, ?, ?, ?)",
               (feedback.feedback_id, turn_id, payload, crc(payload)))


def feedback_on(db: sqlite3.Connection, turn_id: str) -> list[turn_pb2.Feedback]:
    """All readable feedback on a turn, in order of arrival."""
    feedback = []
    for row in db.execute("SELECT id, payload, crc FROM feedback WHERE turn = ? ORDER BY seq", (turn_id,)):
        try:
            if not sound(row["payload"], row["crc"]):
                raise DecodeError("its checksum differs")
            feedback.append(turn_pb2.Feedback.FromString(row["payload"]))
        except (DecodeError, TypeError):
            logger.error("feedback %s on turn %s is damaged and left out", row["id"], turn_id)
    return feedback


def add_counters(db: sqlite3.Connection, counts: Mapping[str, int]) -> None:
    """Add to the counters."""
    db.executemany("INSERT INTO counters VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value",
                   counts.items())


def prune(db: sqlite3.Connection, keep: int) -> int:
    """Delete the oldest summaries beyond `keep` and what belongs to them; turns that may still be sent stay.

    Returns:
        Number of deleted turns.
    """
    border = db.execute("SELECT coalesce(max(seq), 0) - ? FROM turns", (keep,)).fetchone()[0]
    deleted = db.execute("DELETE FROM turns WHERE seq <= ? AND payload IS NULL", (border,)).rowcount
    if deleted:
        db.execute("DELETE FROM sessions WHERE ended = 1 AND NOT EXISTS "
                   "(SELECT 1 FROM turns WHERE session = sessions.id)")
    for table in ("feedback", "conversations"):
        db.execute(f"DELETE FROM {table} WHERE seq <= (SELECT max(seq) - ? FROM {table})", (keep,))
    return deleted


def summary(row: sqlite3.Row) -> environment_pb2.TurnSummary:
    """Convert a row to a message."""
    fields: dict[str, Any] = {
        "turn_id": row["id"], "session_id": row["session"], "turn_class": row["class"], "class_reason": row["rule"],
        "policy_version": row["version"], "state": row["state"], "reason": row["reason"],
        "request_text": row["request_text"], "response_text": row["response_text"], "parent_turn_id": row["parent"],
        "branch_id": row["branch"], "flaw": row["flaw"], "context_change": row["change"]}
    result = environment_pb2.TurnSummary(**fields)
    result.finished_at.FromNanoseconds(int(row["finished"] * 1e9))
    if row["episode"] is not None:
        with contextlib.suppress(DecodeError):  # damaged on disk
            result.episode.ParseFromString(row["episode"])
    return result
