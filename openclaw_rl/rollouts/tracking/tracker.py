"""Session tracker: which turn continues which, and when a turn's next state is complete.

Every main turn gets its next state once, and goes out as a transition in the transaction that notes it. Rules:

- A request continues the turn whose conversation (request and response) is its longest prefix, within its session;
  one that continues none opens a branch of its own, and so does one whose context the client has changed.
- Attempts at one request (a client's retry, several choices) are one turn: the latest attempt, its first choice,
  stands for it until one of them is continued, which then is the one that counts. One that is continued as well was
  a conversation of its own.
- A turn that arrives before the one that it continues waits for it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from openclaw_rl.config import SessionAwareness
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy import Target, Tombstones
from openclaw_rl.rollouts.classification.trainability import Trainability
from openclaw_rl.rollouts.tracking import episode_table as episodes
from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.closing import TurnCloser
from openclaw_rl.rollouts.tracking.deadlines import Deadlines
from openclaw_rl.rollouts.tracking.effects import Effects
from openclaw_rl.rollouts.tracking.event_handler import EventHandler
from openclaw_rl.rollouts.tracking.forgetting import forget
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.inbox import Inbox
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.v1 import common_pb2, environment_pb2, turn_pb2
from openclaw_rl.v1.turn_pb2 import NextStateKind

logger = logging.getLogger(__name__)

#: Turn summaries kept.
KEEP_TURNS = 200_000
#: Episodes kept.
KEEP_EPISODES = 10_000
#: Seconds after a start in which no session times out, since turns may still be under way.
START_GRACE = 60.0
#: Sessions ended per transaction of `reap`.
REAP_BATCH = 100


class SessionTracker:
    """Keeps sessions in `store` (made with `tables.SCHEMA`) and puts transitions into `outbox`.

    Thread-safe. Everything survives a restart: it is in the store before an event is acknowledged.

    Args:
        mesh_id: of the mesh that the turns belong to; "" takes those of any.

    Attributes:
        quarantine: rejected events, and records that were damaged on disk.
        policy_version: the newest that a turn came from.
    """

    def __init__(self, store: Database, outbox: Outbox, journal: Journal, config: SessionAwareness,
                 mesh_id: str = "") -> None:
        self._store, self._outbox, self._journal = store, outbox, journal
        with store.transaction() as db:
            tables.add_missing_columns(db)
        self.quarantine = Quarantine(store, "events")
        self._tombstones = Tombstones(store)
        self._closer = TurnCloser(outbox, self.quarantine, journal)
        self._events = EventHandler(Inbox(store, "events"), self.quarantine, self._tombstones, self._closer, journal,
                                    config, mesh_id)
        self._deadlines = Deadlines(config.session_timeout)
        self._lock = threading.Lock()
        self.trainability = Trainability()
        self.counters: Counter[str] = Counter(
            {row["name"]: row["value"] for row in store.query("SELECT name, value FROM counters")})
        self.policy_version: int | None = store.query("SELECT max(version) AS version FROM turns")[0]["version"]
        self._restore_deadlines()

    def _restore_deadlines(self) -> None:
        now = time.time()
        idle = {row["id"]: now - row["active"]
                for row in self._store.query("SELECT id, active FROM sessions WHERE ended = 0")}
        with self._store.reading() as db:  # also those of whose session no turn has arrived
            idle.update({session: now - ended for session, ended in episodes.unclosed(db)})
        self._deadlines.restore(idle.items(), time.monotonic(), START_GRACE)

    @property
    def sessions_open(self) -> int:
        """Sessions that have not ended."""
        return len(self._deadlines)

    def handle(self, events: Sequence[environment_pb2.PolicyEvent]) -> list[common_pb2.Ack]:
        """Take events in one transaction: if one of them raises, none was taken.

        Returns:
            One answer for each, in order; everything that follows from an accepted event is then in the store.

        Raises:
            StorageError: the store can't be written.
        """
        with self._transaction() as (db, effects):
            return [self._events.handle(db, event, effects) for event in events]

    def end(self, session: str, kind: NextStateKind.ValueType = turn_pb2.NEXT_STATE_KIND_SESSION_ENDED) -> int:
        """End a session.

        Returns:
            Number of turns that got their next state by it.
        """
        return self._end_all([session], kind)

    def begin_episode(self, episode: episodes.EpisodeStart) -> None:
        """Begin an episode: the turns of its session are its steps, and only its end ends the session.

        Raises:
            StorageError: the store can't be written.
        """
        with self._lock, self._store.transaction() as db:
            episodes.begin(db, episode)

    def end_episode(self, episode_id: str, end: episodes.EpisodeEnd) -> bool:
        """End an episode. Its last turn gets its next state and the outcome, now or when its record arrives.

        Returns:
            False if no such episode is running.

        Raises:
            StorageError: the store can't be written.
        """
        with self._transaction() as (db, effects):
            row = episodes.end(db, episode_id, end)
            if row is not None:
                effects.counts["episodes_broken" if end.error else "episodes_done"] += 1
                self._closer.close_episode(db, row["session"], effects)
        return row is not None

    def break_off_episodes(self, error: str) -> int:
        """End all episodes of an earlier run of the component; returns their number."""
        with self._store.reading() as db:
            ids = episodes.running(db)
        return sum(self.end_episode(id, episodes.EpisodeEnd(time.time(), error=error)) for id in ids)

    def reap(self) -> int:
        """End the sessions that were idle for `session_timeout`; returns their number."""
        ended = 0
        while due := self._deadlines.due(time.monotonic(), REAP_BATCH):
            ended += self._time_out(due)
        return ended

    def _time_out(self, sessions: Sequence[str]) -> int:
        """End idle sessions. A damaged one does not keep the others open; it is retried later."""
        try:
            self._end_all(sessions, turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT)
        except StorageError:
            raise
        except Exception:
            if len(sessions) > 1:
                return sum(self._time_out([session]) for session in sessions)
            logger.exception("session %s can't be ended; will try again", sessions[0])
            self._deadlines.touch(sessions[0], time.monotonic())
            return 0
        return len(sessions)

    def prune(self, keep: int = KEEP_TURNS, keep_episodes: int = KEEP_EPISODES) -> int:
        """Delete turn summaries beyond `keep` and episodes beyond `keep_episodes`; returns the number of turns."""
        with self._lock, self._store.transaction() as db:
            episodes.prune(db, keep_episodes)
            return tables.prune(db, keep)

    async def forget(self, target: Target) -> tuple[Target, dict[str, int]]:
        """Delete a session's turns, and drop those that are still to come.

        Returns:
            The target with the ids of its turns, and how much was deleted, by kind.

        Raises:
            StorageError, OSError: the store or the journal can't be written.
        """
        def work() -> tuple[Target, dict[str, int]]:
            with self._lock:
                with self._store.transaction() as db:
                    known, removed, gone = forget(db, target, self._outbox, self.quarantine)
                    self._tombstones.add(db, known)
                if gone:
                    self._deadlines.drop(target.session_id)
            return known, removed | {"journal lines": self._journal.forget(target.session_id)}

        return await self._store.call(work)

    def rejected(self, db: sqlite3.Connection, turn_id: str, reason: str) -> None:
        """Note, in the caller's transaction, that the judge has rejected the turn's transition."""
        tables.settle(db, turn_id, tables.REJECTED, f"the judge refused it: {reason}")

    def _end_all(self, sessions: Sequence[str], kind: NextStateKind.ValueType) -> int:
        with self._transaction() as (db, effects):
            return sum(self._closer.end_session(db, session, kind, effects) for session in sessions)

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, Effects]]:
        """A transaction, and what is to follow from it once it is committed."""
        with self._lock:
            effects = Effects()
            with self._store.transaction() as db:
                yield db, effects
                tables.add_counters(db, effects.counts)
            self._apply(effects)

    def _apply(self, effects: Effects) -> None:
        self.counters.update(effects.counts)
        now = time.monotonic()
        for session, active in effects.alive.items():
            if active:
                self._deadlines.touch(session, now)
            else:
                self._deadlines.drop(session)
        if effects.classifications:
            self.policy_version = max(self.policy_version or 0, effects.version)
        for classification in effects.classifications:
            self.trainability.record(classification)
        for entry in effects.journal:
            entry()
