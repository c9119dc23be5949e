"""Groups of episodes and their episodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from openclaw_rl.storage.database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS episode_groups (
    group_id TEXT PRIMARY KEY, task TEXT NOT NULL, size INTEGER NOT NULL, heard_at REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'open', whole INTEGER NOT NULL DEFAULT 0, ready_at REAL);
CREATE INDEX IF NOT EXISTS unfinished_groups ON episode_groups (state) WHERE state <> 'closed';
CREATE TABLE IF NOT EXISTS episodes (
    episode_id TEXT PRIMARY KEY, group_id TEXT NOT NULL, ended INTEGER NOT NULL DEFAULT 0, outcome REAL,
    error TEXT NOT NULL DEFAULT '', steps INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS episodes_of_group ON episodes (group_id);
"""

#: Condition of the index: SQLite takes it only for a statement that has it.
_UNFINISHED = "state <> 'closed'"
#: Closed groups that are remembered, to tell samples that come late.
KEEP_GROUPS = 20_000


class GroupState(StrEnum):
    """State of a group."""

    OPEN = "open"  #: its episodes go on
    READY = "ready"  #: a step can take it
    CLOSED = "closed"  #: none of its samples waits any more


@dataclass(frozen=True, slots=True)
class Group:
    """Episodes of one task that were run together."""

    group_id: str
    task: str  #: TYPE/ID
    size: int  #: episodes
    heard_at: float  #: when the last sample came, seconds since the epoch
    state: GroupState
    whole: bool  #: it was settled with all episodes
    ready_at: float | None  #: seconds since the epoch


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of a group."""

    episode_id: str
    group_id: str
    ended: bool
    outcome: float | None  #: from 0 to 1; None: it has none yet, or never will
    error: str  #: why it was broken off; empty when it was not
    steps: int  #: that it had when it ended


class GroupTable:
    """Tables `episode_groups` and `episodes`. Any thread; methods that take `db` are part of the caller's transaction.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # Groups

    def add(self, db: sqlite3.Connection, group_id: str, task: str, size: int, at: float) -> None:
        """Keep a new group, heard of at `at`, seconds since the epoch."""
        db.execute("INSERT INTO episode_groups (group_id, task, size, heard_at) VALUES (?, ?, ?, ?)",
                   (group_id, task, size, at))

    def hear(self, db: sqlite3.Connection, group_id: str, at: float) -> None:
        """Open a group of which another sample came at `at`, seconds since the epoch."""
        db.execute("UPDATE episode_groups SET state = 'open', heard_at = ? WHERE group_id = ?", (at, group_id))

    def make_ready(self, db: sqlite3.Connection, group_id: str, whole: bool, at: float) -> None:
        """Let steps take a group. One that was ready before does not wait anew, or each late sample would put its step
        off."""
        db.execute("UPDATE episode_groups SET state = 'ready', whole = ?, ready_at = IFNULL(ready_at, ?) WHERE group_id"
                   " = ?", (whole, at, group_id))

    def close(self, db: sqlite3.Connection, group_id: str) -> None:
        """Close a group."""
        db.execute("UPDATE episode_groups SET state = 'closed' WHERE group_id = ?", (group_id,))

    def settle_again(self, db: sqlite3.Connection, group_id: str) -> None:
        """Open a group again if it is ready."""
        db.execute("UPDATE episode_groups SET state = 'open' WHERE group_id = ? AND state = 'ready'", (group_id,))

    def reopen(self, db: sqlite3.Connection, group_id: str) -> None:
        """Open a group as if it had never been settled."""
        db.execute("UPDATE episode_groups SET state = 'open', ready_at = NULL WHERE group_id = ?", (group_id,))

    def get(self, db: sqlite3.Connection, group_id: str) -> Group | None:
        """Return a group, or None."""
        return next(iter(_groups(db.execute("SELECT * FROM episode_groups WHERE group_id = ?", (group_id,)))), None)

    def open(self, db: sqlite3.Connection) -> list[Group]:
        """Return the open groups, in the order in which they came."""
        return _groups(db.execute(f"SELECT * FROM episode_groups WHERE state = 'open' AND {_UNFINISHED} ORDER BY"
                                  " rowid"))

    def ready(self, db: sqlite3.Connection) -> list[Group]:
        """Return the groups that a step can take, those first that are ready for longest."""
        return _groups(db.execute(f"SELECT * FROM episode_groups WHERE state = 'ready' AND {_UNFINISHED} ORDER BY"
                                  " ready_at, rowid"))

    def oldest_ready(self) -> float | None:
        """Return since when the first group is ready, seconds since the epoch."""
        at: float | None = self._database.query("SELECT MIN(ready_at) AS at FROM episode_groups WHERE state = 'ready'"
                                                f" AND {_UNFINISHED}")[0]["at"]
        return at

    # Episodes

    def add_episode(self, db: sqlite3.Connection, episode_id: str, group_id: str) -> None:
        """Keep an episode unless it is there."""
        db.execute("INSERT OR IGNORE INTO episodes (episode_id, group_id) VALUES (?, ?)", (episode_id, group_id))

    def end_episode(self, db: sqlite3.Connection, episode_id: str, outcome: float | None, error: str,
                    steps: int) -> None:
        """Note how an episode ended, the first time."""
        db.execute("UPDATE episodes SET ended = 1, outcome = ?, error = ?, steps = ? WHERE episode_id = ? AND NOT"
                   " ended", (outcome, error, steps, episode_id))

    def forget_episode(self, db: sqlite3.Connection, episode_id: str) -> None:
        """Delete what is known of an episode; it counts as broken off."""
        db.execute("UPDATE episodes SET ended = 1, outcome = NULL, error = 'forgotten', steps = 0 WHERE episode_id = ?",
                   (episode_id,))

    def episode(self, db: sqlite3.Connection, episode_id: str) -> Episode | None:
        """Return an episode, or None."""
        return next(iter(_episodes(db.execute("SELECT * FROM episodes WHERE episode_id = ?", (episode_id,)))), None)

    def episodes(self, db: sqlite3.Connection, group_id: str) -> list[Episode]:
        """Return the episodes of a group that are known."""
        return _episodes(db.execute("SELECT * FROM episodes WHERE group_id = ? ORDER BY rowid", (group_id,)))

    def count_episodes(self, db: sqlite3.Connection, group_id: str) -> int:
        """Count the episodes of a group that are known."""
        return int(db.execute("SELECT COUNT(*) FROM episodes WHERE group_id = ?", (group_id,)).fetchone()[0])

    def outcomes(self, db: sqlite3.Connection, groups: Collection[str]) -> list[float]:
        """Return the outcomes of all ended episodes of these groups."""
        marks = ",".join("?" * len(groups))
        return [row["outcome"] for row in db.execute("SELECT outcome FROM episodes WHERE outcome NOT NULL AND group_id"
                                                     f" IN ({marks})", list(groups))]

    def prune(self, db: sqlite3.Connection, keep: int = KEEP_GROUPS) -> None:
        """Delete the oldest closed groups beyond `keep`, and their episodes."""
        last = int(db.execute("SELECT IFNULL(MAX(rowid), 0) FROM episode_groups").fetchone()[0]) - keep
        old = "SELECT group_id FROM episode_groups WHERE rowid <= ? AND state = 'closed'"
        db.execute(f"DELETE FROM episodes WHERE group_id IN ({old})", (last,))
        db.execute("DELETE FROM episode_groups WHERE rowid <= ? AND state = 'closed'", (last,))


def _groups(rows: sqlite3.Cursor) -> list[Group]:
    return [Group(row["group_id"], row["task"], row["size"], row["heard_at"], GroupState(row["state"]),
                  bool(row["whole"]), row["ready_at"]) for row in rows.fetchall()]


def _episodes(rows: sqlite3.Cursor) -> list[Episode]:
    return [Episode(row["episode_id"], row["group_id"], bool(row["ended"]), row["outcome"], row["error"], row["steps"])
            for row in rows.fetchall()]
