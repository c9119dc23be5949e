"""What happened, on its way to the environment server: one buffered local write per event."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

from openclaw_rl.delivery.outbox import Outbox
from openclaw_rl.delivery.store import Store
from openclaw_rl.mesh.errors import MeshError
from openclaw_rl.v1 import environment_pb2, turn_pb2

log = logging.getLogger(__name__)

#: The component's own table: counts that survive a restart.
SCHEMA = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"


class TurnRecorder:
    """Puts turns, feedback and session ends into the outbox, and keeps the component's counts.

    A full disk never stops the answers: the turn is lost then, counted in `failed` and told in `problem`.
    """

    def __init__(self, store: Store, outbox: Outbox, strict: bool = False) -> None:
        """Args: strict: a write waits for the disk, so it is done on another thread."""
        self._store, self._outbox, self._strict = store, outbox, strict
        self._counts = {"requests": 0, "failed": 0, "turns_recorded": 0}
        self._counts |= {row["name"]: row["value"] for row in store.query("SELECT name, value FROM counters", ())}
        self.lost = 0  #: events that could not be written since the start
        self.problem = ""  #: why the last write failed; empty when it did not

    @property
    def counters(self) -> dict[str, int]:
        """Counts by name."""
        return dict(self._counts)

    def count(self, name: str) -> None:
        """Count; it gets to disk with the next event."""
        self._counts[name] = self._counts.get(name, 0) + 1

    async def turn(self, turn: turn_pb2.Turn) -> None:
        """Record a turn; it is in the outbox when this returns."""
        if self._strict:
            await asyncio.to_thread(self.turn_now, turn)
        else:
            self.turn_now(turn)

    def turn_now(self, turn: turn_pb2.Turn) -> None:
        """The same without awaiting, for a request that is being cancelled."""
        self.count("turns_recorded")
        self._put(turn.turn_id, environment_pb2.PolicyEvent(turn=turn))

    def feedback(self, feedback: turn_pb2.Feedback) -> None:
        """Record feedback.

        Raises:
            MeshError: it can't be written.
        """
        self._put(feedback.feedback_id, environment_pb2.PolicyEvent(feedback=feedback), must=True)

    def session_end(self, end: turn_pb2.SessionEnd) -> None:
        """Record the end of a session."""
        self._put(end.event_id, environment_pb2.PolicyEvent(session_end=end))

    def close(self) -> None:
        """Write the counts; the store is the caller's to close."""
        try:
            with self._store.transaction() as db:
                self._save_counts(db)
        except (MeshError, sqlite3.Error):
            log.exception("counts of this run are not saved")

    def _put(self, event_id: str, event: environment_pb2.PolicyEvent, must: bool = False) -> None:
        payload = event.SerializeToString()
        try:
            with self._store.transaction() as db:
                self._outbox.put(event_id, payload, db=db)
                self._save_counts(db)
        except (MeshError, sqlite3.Error) as error:
            self.lost += 1
            self.problem = f"{self.lost} events could not be written: {error}"
            log.error("event %s is lost: %s", event_id, error)
            if must:
                raise
        else:
            self.problem = ""

    def _save_counts(self, db: sqlite3.Connection) -> None:
        db.executemany("INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                       list(self._counts.items()))
