"""Samples, their fates, and the content of those that may still be trained on."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from openclaw_rl.storage.checksum import add_columns, crc
from openclaw_rl.storage.database import Database
from openclaw_rl.training.buffer.backlog import StepLimits
from openclaw_rl.training.tables.reasons import Drop, DropReason, Fate

SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    seq INTEGER PRIMARY KEY, turn_id TEXT NOT NULL UNIQUE, fate TEXT NOT NULL, version INTEGER,
    reason TEXT NOT NULL DEFAULT '', score INTEGER, hinted INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    accepted_at REAL NOT NULL, payload BLOB, session TEXT NOT NULL DEFAULT '', sampled_from INTEGER,
    branch TEXT NOT NULL DEFAULT '', crc INTEGER, content INTEGER,
    again INTEGER NOT NULL DEFAULT 0, group_id TEXT, episode_id TEXT, step INTEGER, votes REAL, step_reward REAL,
    reward REAL, advantage REAL);
CREATE INDEX IF NOT EXISTS pending ON samples (score, hinted, accepted_at) WHERE fate = 'pending';
CREATE INDEX IF NOT EXISTS content ON samples (version) WHERE fate = 'trained' AND payload NOT NULL;
"""
#: Columns of a step of an episode, NULL of turns of users.
EPISODE_COLUMNS = {"group_id": "TEXT", "episode_id": "TEXT", "step": "INTEGER", "votes": "REAL", "step_reward": "REAL",
                   "reward": "REAL", "advantage": "REAL"}
#: Columns that files of earlier releases lack. What is not known of their samples limits nothing.
_NEW_COLUMNS = {"session": "TEXT NOT NULL DEFAULT ''", "sampled_from": "INTEGER", "branch": "TEXT NOT NULL DEFAULT ''",
                "crc": "INTEGER", "content": "INTEGER", "again": "INTEGER NOT NULL DEFAULT 0", **EPISODE_COLUMNS}
#: On columns that files of earlier releases get first.
_INDEXES = ("CREATE INDEX IF NOT EXISTS samples_of_group ON samples (group_id, episode_id, step) WHERE group_id NOT"
            " NULL", "CREATE INDEX IF NOT EXISTS pending_of ON samples (sampled_from) WHERE fate = 'pending'")
#: The samples that wait. The index is named since SQLite would rather read all fates than sort what waits.
_PENDING = "samples INDEXED BY pending WHERE fate = 'pending'"

#: Trained samples whose content is kept.
_CONTENT = "fate = 'trained' AND payload NOT NULL"
#: Trained samples with a hint whose content is kept for replay: the newest ones. So few that a user who changes his
#: mind has the old wish out of them after some complaints.
REPLAY_POOL = 16

#: Columns that a status is made of: not the payload, which may be large.
_STATUS = "turn_id, fate, version, reason, score, accepted_at, advantage"

#: Settled samples (id, fate, reason, version) that are kept. A sample can come again only while its sender lacks an
#: acknowledgement, and the judge knows the last 200,000 turns that it sent; so a fate that is deleted is never needed
#: to tell a duplicate. At 570 bytes each (measured, index and gaps included) they take 170 MB.
KEEP_FATES = 300_000


@dataclass(frozen=True, slots=True)
class NewSample:
    """A row to insert."""

    turn_id: str
    drop: Drop | None  #: why it is dropped at once; None: it is pending
    score: int | None  #: None of a failed judgement
    hinted: bool
    payload: bytes  #: kept while it is pending
    session: str
    branch: str
    sampled_from: int | None  #: oldest version that sampled a token; None: not limited by staleness
    content: int  #: `content_key` of the message as it came


@dataclass(frozen=True, slots=True)
class PendingCount:
    """Samples of users' turns that wait for a step."""

    total: int
    signal: int  #: those that a step can learn from, of one session and of one branch at most as many as it takes
    oldest_signal: float | None  #: when the oldest of those was accepted, seconds since the epoch
    held: int = 0  #: those that the next step can't take, since it takes enough others of their sessions or branches


class SampleTable:
    """Table `samples`. Any thread; methods that take `db` are part of the caller's transaction.

    Args:
        database: the trainer's.
        signal: SQL condition of a user's sample that the algorithm learns from, beside staying close to the base model.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database, signal: str) -> None:
        self._database, self._signal = database, signal
        #: The same of any sample: of an episode's, its group decides.
        self._learnable = f"group_id NOT NULL OR {signal}"
        with database.transaction() as db:
            add_columns(db, "samples", _NEW_COLUMNS)
            # A sample without a session is one of its own; the same of a branch.
            for name in ("session", "branch"):
                db.execute(f"UPDATE samples INDEXED BY pending SET {name} = turn_id WHERE {name} = '' AND fate ="
                           " 'pending'")
            for statement in _INDEXES:
                db.execute(statement)

    # As samples come

    def insert(self, db: sqlite3.Connection, sample: NewSample) -> bool:
        """Insert a sample; return False when there is one of its id already."""
        return db.execute(
            "INSERT OR IGNORE INTO samples (turn_id, fate, reason, score, hinted, accepted_at, payload, session,"
            " sampled_from, branch, crc, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (sample.turn_id, Fate.DROPPED if sample.drop else Fate.PENDING, str(sample.drop or ""), sample.score,
             sample.hinted, time.time(), None if sample.drop else sample.payload, sample.session, sample.sampled_from,
             sample.branch, crc(sample.payload), sample.content)).rowcount > 0

    def insert_dropped(self, db: sqlite3.Connection, turn_id: str, drop: Drop) -> bool:
        """Keep the fate of a sample and nothing else of it; return False when there is one of its id already."""
        return db.execute("INSERT OR IGNORE INTO samples (turn_id, fate, reason, hinted, accepted_at) VALUES (?, ?, ?,"
                          " 0, ?)", (turn_id, Fate.DROPPED, str(drop), time.time())).rowcount > 0

    def content(self, db: sqlite3.Connection, turn_id: str) -> int | None:
        """Return the `content_key` of a sample that is there, where it is known."""
        row = db.execute("SELECT content FROM samples WHERE turn_id = ?", (turn_id,)).fetchone()
        return None if row is None else row["content"]

    def join_group(self, db: sqlite3.Connection, turn_id: str, group_id: str, episode_id: str, step: int,
                   votes: float | None, step_reward: float | None) -> None:
        """Note which step of which episode a sample is, and what was thought of it."""
        db.execute("UPDATE samples SET group_id = ?, episode_id = ?, step = ?, votes = ?, step_reward = ? WHERE turn_id"
                   " = ?", (group_id, episode_id, step, votes, step_reward, turn_id))

    # Fates

    def drop(self, db: sqlite3.Connection, turn_ids: Iterable[str], drop: Drop) -> list[str]:
        """Drop pending samples; return the turns of those that were."""
        return [turn_id for turn_id in turn_ids if db.execute(
            "UPDATE samples SET fate = 'dropped', reason = ?, payload = NULL WHERE turn_id = ? AND fate = 'pending'",
            (str(drop), turn_id)).rowcount]

    def train(self, db: sqlite3.Connection, turn_id: str, version: int) -> bool:
        """Note that a version was trained on a sample; return False when it was not pending. Its content stays until
        the version is deleted, for a rebuild without other turns."""
        return db.execute("UPDATE samples SET fate = 'trained', version = ? WHERE turn_id = ? AND fate = 'pending'",
                          (version, turn_id)).rowcount > 0

    def attempt(self, db: sqlite3.Connection, turn_ids: Sequence[str], limit: int) -> list[str]:
        """Count a step that begins on samples; return those that had `limit` attempts before."""
        marks = _marks(turn_ids)
        worn = [row["turn_id"] for row in db.execute(
            f"SELECT turn_id FROM samples WHERE turn_id IN ({marks}) AND attempts >= ?", (*turn_ids, limit))]
        db.execute(f"UPDATE samples SET attempts = attempts + 1 WHERE turn_id IN ({marks})", turn_ids)
        return worn

    def undo_attempt(self, db: sqlite3.Connection, turn_ids: Iterable[str]) -> None:
        """Take an attempt back."""
        db.executemany("UPDATE samples SET attempts = attempts - 1 WHERE turn_id = ? AND attempts > 0",
                       [(turn_id,) for turn_id in turn_ids])

    def set_advantages(self, db: sqlite3.Connection, values: Mapping[str, tuple[float, float | None]]) -> None:
        """Keep advantage and reward of samples, by turn."""
        db.executemany("UPDATE samples SET advantage = ?, reward = ? WHERE turn_id = ?",
                       [(advantage, reward, turn_id) for turn_id, (advantage, reward) in values.items()])

    def pend_again(self, db: sqlite3.Connection, versions: Collection[int], *, rebuild: bool = True
                   ) -> tuple[int, int, int]:
        """Make the samples of versions that were taken back pending again.

        Args:
            rebuild: at once, however stale they are; else they wait as they did before.

        Returns:
            How many there are, how many of these a step can learn from, and how many others can't come back since their
            content is gone.
        """
        trained = f"fate = 'trained' AND version IN ({_marks(versions)})"
        there, signals, lost = db.execute(
            f"SELECT COUNT(payload), COUNT(payload) FILTER (WHERE {self._learnable}), COUNT(*) - COUNT(payload) FROM"
            f" samples WHERE {trained}", list(versions)).fetchone()
        now = ", sampled_from = NULL, again = 1" if rebuild else ""
        db.execute(f"UPDATE samples SET fate = 'pending', version = NULL, attempts = 0{now} WHERE {trained} AND payload"
                   " NOT NULL", list(versions))
        return there, signals, lost

    def is_of(self, db: sqlite3.Connection, version: int, turn_id: str) -> bool:
        """Whether a turn's fate is this version."""
        row = db.execute("SELECT version FROM samples WHERE turn_id = ? AND fate = 'trained'", (turn_id,)).fetchone()
        return row is not None and row["version"] == version

    # Deleting

    def erase(self, db: sqlite3.Connection, seq: int, drop: Drop) -> None:
        """Delete all of a sample but its id, by which one that comes again is known."""
        self._leave_group(db, seq)
        db.execute("UPDATE samples SET fate = 'dropped', reason = ?, version = NULL, score = NULL, hinted = 0, payload"
                   " = NULL, session = '', branch = '', sampled_from = NULL, crc = NULL, content = NULL WHERE seq = ?",
                   (str(drop), seq))

    def _leave_group(self, db: sqlite3.Connection, seq: int) -> None:
        columns = ", ".join(f"{name} = NULL" for name in EPISODE_COLUMNS)
        db.execute(f"UPDATE samples SET {columns} WHERE seq = ?", (seq,))

    def prune(self, db: sqlite3.Connection, keep: int = KEEP_FATES) -> int:
        """Delete the oldest fates beyond `keep`; return how many. What is pending stays, and the counts too, which are
        kept by themselves; a version's manifest names its turns for ever."""
        return db.execute("DELETE FROM samples WHERE seq <= (SELECT MAX(seq) FROM samples) - ? AND fate <> 'pending'",
                          (keep,)).rowcount

    def prune_content(self, db: sqlite3.Connection, kept: Collection[int]) -> None:
        """Delete the content of trained samples, but for those of the versions that are kept, which can be rebuilt, and
        the newest ones with a hint, which are replayed."""
        db.execute(f"UPDATE samples SET payload = NULL WHERE {_CONTENT} AND version NOT IN ({_marks(kept)}) AND seq NOT"
                   f" IN (SELECT seq FROM samples WHERE {_CONTENT} AND hinted AND group_id IS NULL ORDER BY seq DESC"
                   " LIMIT ?)", [*kept, REPLAY_POOL])

    def replayable(self, versions: Collection[int]) -> list[sqlite3.Row]:
        """Return turn, payload and CRC of the newest users' samples with a hint that these versions were trained on,
        oldest first, as far as their content is kept."""
        return self._database.query(
            f"SELECT turn_id, payload, crc FROM samples INDEXED BY content WHERE {_CONTENT} AND hinted AND group_id IS"
            f" NULL AND version IN ({_marks(versions)}) ORDER BY seq DESC LIMIT ?", [*versions, REPLAY_POOL])[::-1]

    def lose_content(self, db: sqlite3.Connection, turn_ids: Iterable[str]) -> None:
        """Delete the content of trained samples."""
        db.executemany(f"UPDATE samples SET payload = NULL WHERE {_CONTENT} AND turn_id = ?",
                       [(turn_id,) for turn_id in turn_ids])

    # Reading: samples of users

    def pending(self, per_session: int, per_branch: int) -> PendingCount:
        """Count the samples of users' turns that wait.

        Args:
            per_session: samples of one session that a step takes.
            per_branch: the same of one branch.
        """
        row = self._database.query(
            "SELECT IFNULL(SUM(total), 0) AS total, IFNULL(SUM(MIN(signals, :session)), 0) AS signal, MIN(oldest) AS"
            " oldest, IFNULL(SUM(total - MIN(takes, :session)), 0) AS held FROM (SELECT SUM(count) AS total,"
            " SUM(MIN(count, :branch)) AS takes, SUM(MIN(signals, :branch)) AS signals, MIN(oldest) AS oldest FROM"
            f" (SELECT session, COUNT(*) AS count, COUNT(*) FILTER (WHERE {self._signal}) AS signals, MIN(accepted_at)"
            f" FILTER (WHERE {self._signal}) AS oldest FROM {_PENDING} AND group_id IS NULL"
            " GROUP BY session, branch) GROUP BY session)", {"session": per_session, "branch": per_branch})[0]
        return PendingCount(row["total"], row["signal"], row["oldest"], row["held"])

    def waiting(self) -> list[sqlite3.Row]:
        """Return session, branch, sampled_from and count of users' samples that the algorithm learns from."""
        return self._database.query(f"SELECT session, branch, sampled_from, COUNT(*) AS count FROM {_PENDING} AND"
                                    f" group_id IS NULL AND ({self._signal}) GROUP BY session, branch, sampled_from")

    def next_batch(self, limits: StepLimits, limit: int, *, signal: bool) -> list[sqlite3.Row]:
        """Return turn, payload and CRC of the samples that a step takes next.

        Args:
            limits: of one session and of one branch; those with a signal first. And the order, else oldest first.
            limit: samples at most.
            signal: those that the algorithm learns from; else the neutral ones.
        """
        order, within = ("-seq" if newest else "seq" for newest in (limits.newest, limits.newest_of_session))
        return self._database.query(
            f"WITH ranked AS (SELECT seq, session, NOT ({self._signal}) AS neutral, ROW_NUMBER() OVER (PARTITION BY"
            f" session, branch ORDER BY NOT ({self._signal}), {within}) AS in_branch FROM {_PENDING} AND"
            " group_id IS NULL), taken AS (SELECT seq AS place, neutral AS kind, ROW_NUMBER() OVER"
            f" (PARTITION BY session ORDER BY neutral, {within}) AS in_session FROM ranked WHERE in_branch <= ?) SELECT"
            " turn_id, payload, crc FROM samples JOIN taken ON seq = place WHERE in_session <= ? AND kind = ? ORDER BY"
            f" {order} LIMIT ?", (limits.per_branch, limits.per_session, not signal, limit))

    def neutral(self) -> list[tuple[str, float]]:
        """Return turn and time of acceptance (seconds since the epoch) of the neutral samples, newest first."""
        return [(row["turn_id"], row["accepted_at"]) for row in self._database.query(
            f"SELECT turn_id, accepted_at FROM {_PENDING} AND group_id IS NULL AND NOT ({self._signal}) ORDER BY seq"
            " DESC")]

    def oldest_of_users(self) -> float | None:
        """Return when the oldest sample that waits was accepted, seconds since the epoch."""
        at: float | None = self._database.query(f"SELECT MIN(accepted_at) AS at FROM {_PENDING} AND group_id IS NULL"
                                                )[0]["at"]
        return at

    def pending_of_users(self, db: sqlite3.Connection) -> list[str]:
        """Return the turns of users that wait."""
        return _turns(db.execute(f"SELECT turn_id FROM {_PENDING} AND group_id IS NULL"))

    # Reading: all samples

    def rebuilding(self) -> int:
        """Count the samples with a signal that are pending again since the version that they trained was taken back."""
        return int(self._database.query(f"SELECT COUNT(*) AS n FROM {_PENDING} AND again AND"
                                        f" ({self._learnable})")[0]["n"])

    def newest(self, limit: int) -> list[tuple[Fate, DropReason, bool]]:
        """Return fate, reason and whether the algorithm learns from it, of the newest samples."""
        rows = self._database.query(f"SELECT fate, reason, IFNULL({self._learnable}, 0) AS signal FROM samples ORDER BY"
                                    " seq DESC LIMIT ?", (limit,))
        return [(Fate(row["fate"]), DropReason.parse(row["reason"]), bool(row["signal"])) for row in rows]

    def statuses(self, turn_ids: Sequence[str]) -> list[sqlite3.Row]:
        """Return turn_id, fate, version, reason, score, accepted_at and advantage of these turns, in this order,
        unknown ones left out; of all pending ones when none are given."""
        if not turn_ids:
            return self._database.query(f"SELECT {_STATUS} FROM {_PENDING} ORDER BY seq")
        found = {row["turn_id"]: row for row in self._database.query(
            f"SELECT {_STATUS} FROM samples WHERE turn_id IN ({_marks(turn_ids)})", list(turn_ids))}
        return [found[turn_id] for turn_id in turn_ids if turn_id in found]

    def sampled_from(self, db: sqlite3.Connection) -> list[int]:
        """Return the versions that pending samples are of, ascending."""
        following = ("SELECT MIN(sampled_from) FROM samples INDEXED BY pending_of WHERE fate = 'pending' AND"
                     " sampled_from > ?")
        found: list[int] = []
        while (version := db.execute(following, (found[-1] if found else -1,)).fetchone()[0]) is not None:
            found.append(version)
        return found

    def pending_of_version(self, db: sqlite3.Connection, version: int) -> list[str]:
        """Return the turns of pending samples of a version."""
        return _turns(db.execute("SELECT turn_id FROM samples INDEXED BY pending_of WHERE fate = 'pending' AND"
                                 " sampled_from = ?", (version,)))

    def of_session(self, db: sqlite3.Connection, session: str) -> list[sqlite3.Row]:
        """Return turn_id, accepted_at and payload of a session's samples."""
        return db.execute("SELECT turn_id, accepted_at, payload FROM samples WHERE session = ?", (session,)).fetchall()

    def row(self, db: sqlite3.Connection, turn_id: str) -> sqlite3.Row | None:
        """Return all columns of a sample, or None."""
        found: sqlite3.Row | None = db.execute("SELECT * FROM samples WHERE turn_id = ?", (turn_id,)).fetchone()
        return found

    # Reading: samples of groups of episodes

    def in_group(self, db: sqlite3.Connection, group_id: str) -> list[sqlite3.Row]:
        """Return all columns of a group's samples."""
        return db.execute("SELECT * FROM samples WHERE group_id = ?", (group_id,)).fetchall()

    def ready_in_group(self, group_id: str) -> list[sqlite3.Row]:
        """Return turn, payload, CRC, advantage and reward of what waits in a group, by episode and step."""
        return self._database.query("SELECT turn_id, payload, crc, advantage, reward FROM samples WHERE group_id = ?"
                                    " AND fate = 'pending' ORDER BY episode_id, step", (group_id,))

    def pending_in_group(self, db: sqlite3.Connection, group_id: str) -> list[str]:
        """Return the turns that wait in a group."""
        return _turns(db.execute("SELECT turn_id FROM samples WHERE group_id = ? AND fate = 'pending'", (group_id,)))

    def pending_in_episode(self, db: sqlite3.Connection, group_id: str, episode_id: str) -> list[str]:
        """Return the turns that wait in an episode."""
        return _turns(db.execute("SELECT turn_id FROM samples WHERE group_id = ? AND episode_id = ? AND fate ="
                                 " 'pending'", (group_id, episode_id)))

    def steps(self, db: sqlite3.Connection, group_id: str, episode_id: str) -> int:
        """Count the steps of an episode that came, whatever became of them."""
        return int(db.execute("SELECT COUNT(*) FROM samples WHERE group_id = ? AND episode_id = ?",
                              (group_id, episode_id)).fetchone()[0])

    def is_taken(self, db: sqlite3.Connection, group_id: str, episode_id: str, step: int, turn_id: str) -> bool:
        """Return whether another turn is this step of an episode."""
        return db.execute("SELECT 1 FROM samples WHERE group_id = ? AND episode_id = ? AND step = ? AND turn_id <> ?",
                          (group_id, episode_id, step, turn_id)).fetchone() is not None

    def any_in_group(self, db: sqlite3.Connection, group_id: str, fate: Fate) -> bool:
        """Return whether a sample of a group has a fate."""
        return db.execute("SELECT 1 FROM samples WHERE group_id = ? AND fate = ? LIMIT 1",
                          (group_id, fate)).fetchone() is not None

    def oldest_version(self, db: sqlite3.Connection, group_id: str) -> int | None:
        """Return the oldest version that a sample which waits in a group is of."""
        found: int | None = db.execute("SELECT MIN(sampled_from) FROM samples WHERE group_id = ? AND fate = 'pending'",
                                       (group_id,)).fetchone()[0]
        return found

    def groups_of(self, turn_ids: Sequence[str]) -> list[str]:
        """Return the groups of these turns."""
        return [row["group_id"] for row in self._database.query(
            f"SELECT DISTINCT group_id FROM samples WHERE turn_id IN ({_marks(turn_ids)}) AND group_id NOT NULL",
            list(turn_ids))]

    def groups_of_versions(self, db: sqlite3.Connection, versions: Collection[int]) -> list[str]:
        """Return the groups with a pending sample of one of these versions."""
        if not versions:
            return []
        return [row["group_id"] for row in db.execute(
            "SELECT DISTINCT group_id FROM samples INDEXED BY pending_of WHERE fate = 'pending' AND group_id NOT NULL"
            f" AND sampled_from IN ({_marks(versions)})", list(versions))]

    def groups_trained(self, db: sqlite3.Connection, versions: Collection[int]) -> list[str]:
        """Return the groups that these versions were trained on, as far as their samples can come again."""
        if not versions:
            return []
        return [row["group_id"] for row in db.execute(
            "SELECT DISTINCT group_id FROM samples INDEXED BY content WHERE fate = 'trained' AND payload NOT NULL AND"
            f" group_id NOT NULL AND version IN ({_marks(versions)})", list(versions))]


def _marks(values: Collection[object]) -> str:
    return ",".join("?" * len(values))


def _turns(rows: Iterable[sqlite3.Row]) -> list[str]:
    return [row["turn_id"] for row in rows]
