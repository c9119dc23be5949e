"""The judge's file: transitions that wait, judgements made, samples for the trainer, counters.

A transition's arrival is one transaction with its id in the inbox; its judgement is one transaction that takes it out
of the queue, keeps the judgement, counts it and puts the sample into the outbox. So a killed judge goes on where it
was.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from openclaw_rl.privacy import Target, Tombstones
from openclaw_rl.privacy.target import seconds
from openclaw_rl.storage.checksum import add_columns, content_key, crc, sound
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.inbox import Inbox
from openclaw_rl.storage.outbox import Found, Outbox
from openclaw_rl.storage.quarantine import Quarantine, forget_rows
from openclaw_rl.storage.salvage import Recovery
from openclaw_rl.v1 import turn_pb2

T = TypeVar("T")

#: Judgements that are kept for ListJudgements; older ones are forgotten.
KEEP_JUDGEMENTS = 50_000
_PRUNE_EVERY = 1_000

COUNTERS = ("transitions", "judgements", "votes", "votes_failed", "judgements_failed", "positive", "negative",
            "neutral")

SCHEMA = """
CREATE TABLE IF NOT EXISTS transitions (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL, received REAL NOT NULL, payload BLOB NOT NULL,
  crc INTEGER);
CREATE TABLE IF NOT EXISTS judgements (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, turn_id TEXT NOT NULL UNIQUE, payload BLOB NOT NULL, crc INTEGER,
  session TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
#: What is here was taken, whatever became of the ids that were: a transition that comes again is known.
RECOVERY = Recovery(repair=["INSERT OR IGNORE INTO inbox_transitions (id) SELECT turn_id FROM transitions",
                            "INSERT OR IGNORE INTO inbox_transitions (id) SELECT turn_id FROM judgements"])


class JudgeQueue:
    """Transitions in, samples out."""

    def __init__(self, database: Database, samples: Outbox, keep: int = KEEP_JUDGEMENTS) -> None:
        """`database` must have been made with `SCHEMA`; `keep`: judgements that stay."""
        self._database, self._samples, self._keep = database, samples, keep
        self._inbox = Inbox(database, "transitions")
        self.quarantine = Quarantine(database, "transitions")
        self._tombstones = Tombstones(database)
        with database.transaction() as db:
            for table in ("transitions", "judgements"):
                add_columns(db, table, {"crc": "INTEGER"})
            add_columns(db, "judgements", {"session": "TEXT NOT NULL DEFAULT ''"})
        self._since_pruned = 0
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self.counters.update({row["name"]: row["value"] for row in database.query("SELECT name, value FROM counters")})
        self.waiting: int = database.query("SELECT COUNT(*) AS n FROM transitions")[0]["n"]
        with database.reading() as db:
            #: When the transition arrived that has waited longest; Unix, seconds.
            self.oldest_received = self._received(db)

    async def call(self, work: Callable[..., T], *args: Any) -> T:
        """Run a function that uses this queue, for an event loop, which nothing here may block."""
        return await self._database.call(work, *args)

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        """Run a function that only reads, for an event loop."""
        return await self._database.read(work, *args)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """One transaction; what it changed in the counters is seen after its commit."""
        with self._database.transaction() as db:
            batch = Batch(db, self._inbox, self._samples, self.quarantine)
            yield batch
            db.executemany("INSERT INTO counters (name, value) VALUES (?, ?) "
                           "ON CONFLICT (name) DO UPDATE SET value = value + excluded.value", batch.counts.items())
            self._since_pruned += batch.counts["judgements"]
            if self._since_pruned >= _PRUNE_EVERY:
                self._since_pruned = 0
                db.execute("DELETE FROM judgements WHERE seq <= (SELECT MAX(seq) FROM judgements) - ?", (self._keep,))
            oldest = self._received(db) if batch.waiting else self.oldest_received
        self.counters.update(batch.counts)
        self.waiting += batch.waiting
        self.oldest_received = oldest

    @staticmethod
    def _received(db: sqlite3.Connection) -> float | None:
        row = db.execute("SELECT received FROM transitions ORDER BY seq LIMIT 1").fetchone()
        return None if row is None else float(row[0])

    def forgot(self, transition: turn_pb2.Transition) -> bool:
        """Whether the transition's session was forgotten after its turn was asked for."""
        return self._tombstones.cover(transition)

    def find_samples(self, target: Target) -> Found:
        """Look for a session's samples, before `forget`. Blocks."""
        return self._samples.find(lambda payload: target.has_payload(turn_pb2.Sample, payload))

    def forget(self, target: Target, samples: Found | None = None) -> tuple[Target, dict[str, int]]:
        """Delete what there is of a session, and let the rest go that is still to come. Blocks.

        Returns:
            The target with the ids of its turns, and how much was deleted, by kind.
        """
        def meant(kind: type[Message]) -> Callable[[bytes], bool]:
            return lambda payload: target.has_payload(kind, payload)

        with self._database.transaction() as db:
            waiting = forget_rows(db, "transitions", meant(turn_pb2.Transition), id="turn_id")
            sent = self._samples.forget(db, meant(turn_pb2.Sample), samples)
            refused = self.quarantine.forget(db, meant(turn_pb2.Transition))
            target = target.with_turns([*waiting, *sent])
            rows = db.execute("SELECT turn_id, payload FROM judgements WHERE session = ?", (target.session_id,))
            judged = [row["turn_id"] for row in rows if _made_before(row["payload"], target.before)]
            target = target.with_turns(judged)
            gone = sum(db.execute("DELETE FROM judgements WHERE turn_id = ?", (turn_id,)).rowcount
                       for turn_id in target.turn_ids)
            self._tombstones.add(db, target)
            oldest = self._received(db)
        self.waiting -= len(waiting)
        self.oldest_received = oldest
        return target, {"transitions": len(waiting), "samples": len(sent), "set aside": refused, "judgements": gone}

    def oldest(self, limit: int, without: Iterable[int] = ()) -> list[tuple[int, float]]:
        """Numbers and times of arrival (Unix, seconds) of the transitions that have waited longest."""
        taken = set(without)
        rows = self._database.query("SELECT seq, received FROM transitions ORDER BY seq LIMIT ?", (limit + len(taken),))
        return [(row["seq"], row["received"]) for row in rows if row["seq"] not in taken][:limit]

    def load(self, seq: int) -> tuple[str, turn_pb2.Transition | None]:
        """A waiting transition: its turn's id, and None when its bytes on disk are damaged.

        Raises:
            KeyError: it does not wait any more.
        """
        rows = self._database.query("SELECT turn_id, payload, crc FROM transitions WHERE seq = ?", (seq,))
        if not rows:
            raise KeyError(seq)
        row = rows[0]
        if not sound(row["payload"], row["crc"]):
            return row["turn_id"], None
        try:
            return row["turn_id"], turn_pb2.Transition.FromString(row["payload"])
        except DecodeError:
            return row["turn_id"], None

    def judgements(self, turn_ids: Sequence[str]) -> list[turn_pb2.Judgement]:
        """The judgements that there are, in the order of the ids."""
        if not turn_ids:
            return []
        marks = ",".join("?" * len(turn_ids))
        rows = self._database.query(f"SELECT turn_id, payload, crc FROM judgements WHERE turn_id IN ({marks})",
                                 tuple(turn_ids))
        found = {row["turn_id"]: row["payload"] for row in rows if sound(row["payload"], row["crc"])}
        return [turn_pb2.Judgement.FromString(found[id]) for id in dict.fromkeys(turn_ids) if id in found]


class Batch:
    """The steps of one transaction."""

    def __init__(self, db: sqlite3.Connection, inbox: Inbox, samples: Outbox, quarantine: Quarantine) -> None:
        self._db, self._inbox, self._samples, self._quarantine = db, inbox, samples, quarantine
        self.counts: Counter[str] = Counter()
        self.waiting = 0

    def accept(self, transition: turn_pb2.Transition) -> bool:
        """Note that the transition is here; False when it was before.

        Raises:
            IdConflict: another one of this turn was.
        """
        if not self._inbox.accept(self._db, transition.turn.turn_id, content_key(transition)):
            return False
        self.counts["transitions"] += 1
        return True

    def wait(self, transition: turn_pb2.Transition) -> None:
        """Put an accepted transition into the queue."""
        payload = transition.SerializeToString()
        self._db.execute("INSERT INTO transitions (turn_id, received, payload, crc) VALUES (?, ?, ?, ?)",
                         (transition.turn.turn_id, time.time(), payload, crc(payload)))
        self.waiting += 1

    def judged(self, transition: turn_pb2.Transition, judgement: turn_pb2.Judgement, seq: int | None = None) -> bool:
        """Keep a judgement and send the sample on; `seq`: of the transition in the queue, if it waited there. False
        when it isn't there any more: it was forgotten, and nothing is kept."""
        if seq is not None and not self.drop(seq):
            return False
        turn_id = transition.turn.turn_id
        payload = judgement.SerializeToString()
        self._db.execute("INSERT OR REPLACE INTO judgements (turn_id, payload, crc, session) VALUES (?, ?, ?, ?)",
                         (turn_id, payload, crc(payload), transition.turn.session_id))
        sample = turn_pb2.Sample(transition=transition, judgement=judgement)
        self._samples.put(turn_id, sample.SerializeToString(), db=self._db)
        self.counts["judgements"] += 1
        self.counts["votes"] += len(judgement.votes)
        self.counts["votes_failed"] += sum(1 for vote in judgement.votes if vote.error)
        fate = "judgements_failed" if judgement.failed else ("neutral", "positive", "negative")[judgement.score]
        self.counts[fate] += 1
        return True

    def refuse(self, transition: turn_pb2.Transition, reason: str) -> None:
        """Keep a transition that is not taken where a person can look."""
        self._quarantine.keep(self._db, transition.turn.turn_id, reason, transition.SerializeToString())

    def damaged(self, seq: int) -> tuple[turn_pb2.Transition, turn_pb2.Judgement]:
        """Take a transition whose bytes are damaged out of the queue and keep them aside. Its turn gets a judgement
        that failed, so that it has a fate: what is left of it, and that judgement."""
        turn_id, payload = self._db.execute("SELECT turn_id, payload FROM transitions WHERE seq = ?", (seq,)).fetchone()
        why = "its transition on the judge's disk is damaged"
        self._quarantine.keep(self._db, turn_id, why, payload)
        transition = turn_pb2.Transition(turn=turn_pb2.Turn(turn_id=turn_id, turn_class=turn_pb2.TURN_CLASS_MAIN))
        judgement = turn_pb2.Judgement(turn_id=turn_id, failed=True, votes=[turn_pb2.Vote(error=why)])
        judgement.judged_at.GetCurrentTime()
        self.judged(transition, judgement, seq)
        return transition, judgement

    def drop(self, seq: int) -> bool:
        """Take a transition out of the queue; whether it was there."""
        there = self._db.execute("DELETE FROM transitions WHERE seq = ?", (seq,)).rowcount > 0
        self.waiting -= there
        return there


def _made_before(payload: bytes, moment: float) -> bool:
    """Whether a judgement was made before a moment (seconds since the epoch); a damaged one was."""
    try:
        return seconds(turn_pb2.Judgement.FromString(payload).judged_at) < moment
    except DecodeError:
        return True
