"""Tables of episodes and the statements on them. No decision is made here."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.rpc.errors import invalid
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1 import turn_pb2

SCHEMA = """
CREATE TABLE IF NOT EXISTS episodes(
    seq INTEGER PRIMARY KEY,            -- order of beginning
    id TEXT NOT NULL UNIQUE,
    run TEXT NOT NULL,
    grp TEXT NOT NULL,
    size INTEGER NOT NULL,              -- episodes of the group
    type TEXT NOT NULL,
    task TEXT NOT NULL,
    session TEXT NOT NULL UNIQUE,
    lease TEXT NOT NULL,
    no_train INTEGER NOT NULL,
    started REAL NOT NULL,              -- unix seconds
    version INTEGER,                    -- policy version of the first turn
    steps INTEGER NOT NULL DEFAULT 0,
    last_turn TEXT NOT NULL DEFAULT '', -- id of the last one that was complete
    ending BLOB,                        -- serialized NextState: what followed on it
    ended REAL,                         -- NULL while it runs
    outcome REAL,
    error TEXT NOT NULL DEFAULT '',
    detail TEXT NOT NULL DEFAULT '',
    closed INTEGER NOT NULL DEFAULT 0   -- its turns have their next states
);
CREATE INDEX IF NOT EXISTS episodes_run ON episodes(run);
CREATE INDEX IF NOT EXISTS episodes_open ON episodes(id) WHERE closed = 0;
-- Rewards that environments gave, by turn.
CREATE TABLE IF NOT EXISTS episode_rewards(
    turn TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    reward REAL NOT NULL
) WITHOUT ROWID;
"""

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000
#: Newest attempts at tasks of a type that their success rates are taken from.
_NEWEST = 2000


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """The facts of an episode at its start."""

    id: str
    run: str
    group: str
    group_size: int
    type: str
    task: str
    session: str
    lease: str
    no_train: bool
    started: float  #: unix seconds


@dataclass(frozen=True, slots=True)
class EpisodeEnd:
    """The end of an episode."""

    at: float  #: unix seconds
    outcome: float | None = None  #: None if it was aborted
    error: str = ""  #: why it was aborted
    detail: str = ""  #: the task's check in words


def success_rates(store: Database, type_name: str) -> dict[str, tuple[int, float]]:
    """Return the number and the mean outcome of the newest attempts to train on, by task. Blocks."""
    rows = store.query(
        "SELECT task, COUNT(*) AS tries, AVG(outcome) AS mean FROM (SELECT task, outcome FROM episodes WHERE type = ? "
        "AND outcome IS NOT NULL AND no_train = 0 ORDER BY seq DESC LIMIT ?) GROUP BY task", (type_name, _NEWEST))
    return {row["task"]: (row["tries"], row["mean"]) for row in rows}


def begin(db: sqlite3.Connection, episode: EpisodeStart) -> None:
    """Insert a running episode."""
    db.execute("INSERT INTO episodes(id, run, grp, size, type, task, session, lease, no_train, started) "
               "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
               (episode.id, episode.run, episode.group, episode.group_size, episode.type, episode.task,
                episode.session, episode.lease, episode.no_train, episode.started))


def answered(db: sqlite3.Connection, id: str, turn_id: str, steps: int, version: int) -> bool:
    """Record that response number `steps` is complete; False if the episode no longer exists."""
    return bool(db.execute("UPDATE episodes SET steps = ?, last_turn = ?, ending = NULL, "
                           "version = coalesce(version, ?) WHERE id = ? AND ended IS NULL",
                           (steps, turn_id, version, id)).rowcount)


def observed(db: sqlite3.Connection, id: str, messages: Sequence[turn_pb2.ChatMessage], reward: float | None) -> bool:
    """Record what followed the last response; False if the episode no longer exists."""
    ending = turn_pb2.NextState(messages=messages).SerializeToString()
    row = db.execute("UPDATE episodes SET ending = ? WHERE id = ? AND ended IS NULL RETURNING session, last_turn",
                     (ending, id)).fetchone()
    if row is not None and reward is not None:
        db.execute("INSERT OR REPLACE INTO episode_rewards VALUES(?, ?, ?)", (row["last_turn"], row["session"], reward))
    return row is not None


def end(db: sqlite3.Connection, id: str, ended: EpisodeEnd) -> sqlite3.Row | None:
    """Record the end of an episode; returns its row, None if it no longer exists or had ended before."""
    found: sqlite3.Row | None = db.execute(
        "UPDATE episodes SET ended = ?, outcome = ?, error = ?, detail = ? WHERE id = ? AND ended IS NULL RETURNING *",
        (ended.at, ended.outcome, ended.error, ended.detail, id)).fetchone()
    return found


def close(db: sqlite3.Connection, session: str) -> None:
    """Record that all turns have their next states, and delete what was kept for that."""
    db.execute("UPDATE episodes SET closed = 1, ending = NULL WHERE session = ?", (session,))
    db.execute("DELETE FROM episode_rewards WHERE session = ?", (session,))


def of_session(db: sqlite3.Connection, session: str) -> sqlite3.Row | None:
    """The episode whose turns are in a session."""
    found: sqlite3.Row | None = db.execute("SELECT * FROM episodes WHERE session = ?", (session,)).fetchone()
    return found


def running(db: sqlite3.Connection) -> list[str]:
    """Ids of running episodes."""
    return [row["id"] for row in db.execute("SELECT id FROM episodes WHERE closed = 0 AND ended IS NULL ORDER BY seq")]


def unclosed(db: sqlite3.Connection) -> list[tuple[str, float]]:
    """Sessions of ended episodes that wait for the record of their last turn, and when they ended."""
    return [(row["session"], row["ended"])
            for row in db.execute("SELECT session, ended FROM episodes WHERE closed = 0 AND ended NOT NULL")]


def reward(db: sqlite3.Connection, turn_id: str) -> float | None:
    """The environment's reward for a turn."""
    row = db.execute("SELECT reward FROM episode_rewards WHERE turn = ?", (turn_id,)).fetchone()
    return None if row is None else float(row["reward"])


def forget(db: sqlite3.Connection, session: str) -> int:
    """Delete the episode of a session; returns the number of episodes, one or none."""
    db.execute("DELETE FROM episode_rewards WHERE session = ?", (session,))
    return db.execute("DELETE FROM episodes WHERE session = ?", (session,)).rowcount


def prune(db: sqlite3.Connection, keep: int) -> None:
    """Delete the oldest episodes beyond `keep`, except those with turns still to be closed."""
    db.execute("DELETE FROM episodes WHERE closed = 1 AND seq <= (SELECT max(seq) - ? FROM episodes)", (keep,))


def message(row: sqlite3.Row) -> pb.Episode:
    """Convert a row to a message."""
    result = pb.Episode(
        episode_id=row["id"], run_id=row["run"], group_id=row["grp"], type=row["type"], task_id=row["task"],
        session_id=row["session"], lease_id=row["lease"], steps=row["steps"], done=row["ended"] is not None,
        outcome=row["outcome"], error=row["error"], detail=row["detail"], policy_version=row["version"],
        no_train=bool(row["no_train"]))
    result.started_at.FromNanoseconds(int(row["started"] * 1e9))
    if row["ended"] is not None:
        result.ended_at.FromNanoseconds(int(row["ended"] * 1e9))
    return result


def page(store: Database, request: pb.ListEpisodesRequest) -> pb.ListEpisodesResponse:
    """List a page of episodes, newest first.

    Raises:
        MeshError: the page's size or token is not allowed.
    """
    if not 0 <= request.page_size <= LARGEST_PAGE:
        raise invalid("page_size", request.page_size, f"from 0 to {LARGEST_PAGE}; 0 means {DEFAULT_PAGE}")
    token = request.page_token
    if token and not (token.isascii() and token.isdecimal() and len(token) <= 18):
        raise invalid("page_token", token, "next_page_token of an earlier answer")
    size = request.page_size or DEFAULT_PAGE
    conditions, params = ["seq < ?"], [int(token or 2**62)]
    for column, value in (("run", request.run_id), ("type", request.type)):
        if value:
            conditions.append(f"{column} = ?")
            params.append(value)  # type: ignore[arg-type]
    rows = store.query(f"SELECT * FROM episodes WHERE {' AND '.join(conditions)} ORDER BY seq DESC LIMIT ?",
                       (*params, size + 1))
    return pb.ListEpisodesResponse(episodes=map(message, rows[:size]),
                                   next_page_token=str(rows[size - 1]["seq"]) if len(rows) > size else "")
