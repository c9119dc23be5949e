"""What happened, on its way to the environment server: one buffered local write per event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable

from google.protobuf.message import DecodeError

from openclaw_rl.privacy import Target, Tombstones
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, turn_pb2

log = logging.getLogger(__name__)

#: Bytes of events that are held in memory while the disk can't be written; beyond these the oldest are lost.
HELD_BYTES = 64 * 2**20
#: Seconds between two tries to write them.
RETRY_SECONDS = 1.0
#: Events that are written in one transaction then; a reply waits for one such at most.
_AT_ONCE = 50

#: The component's own table: counts that survive a restart.
SCHEMA = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"


class TurnRecorder:
    """Puts turns, feedback and session ends into the outbox, and keeps the component's counts.

    A full disk never stops the answers: what can't be written is held in memory, told in `problem`, and written by
    `run` once there is room.
    """

    def __init__(self, store: Database, outbox: Outbox, strict: bool = False, held_bytes: int = HELD_BYTES,
                 also: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """Args:
            strict: a write waits for the disk, so it is done on another thread.
            also: writes what else is to be kept, in the same transactions.
        """
        self._also = also
        self._store, self._outbox, self._strict, self._held_bytes = store, outbox, strict, held_bytes
        self._tombstones = Tombstones(store)
        self._counts = {"requests": 0, "failed": 0, "turns_recorded": 0}
        self._counts |= {row["name"]: row["value"] for row in store.query("SELECT name, value FROM counters", ())}
        self.lost = 0  #: events that were never written, since the start
        self._why = ""  # the last write failed; empty when it did not
        self._held: deque[tuple[str, bytes]] = deque()
        self._size = 0  # bytes held
        self._lock = threading.Lock()

    @property
    def problem(self) -> str:
        """What an operator should know: events that wait in memory, and why; or that were lost."""
        waiting = f"{len(self._held)} events wait in memory, and are lost if the process ends: {self._why}"
        lost = f"{self.lost} events were lost while the disk could not be written"
        return "; ".join([waiting] * bool(self._held) + [lost] * bool(self.lost))

    async def run(self) -> None:
        """Write what is held as soon as it can be. Never returns."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            if self._held:
                await asyncio.to_thread(self.retry)

    def retry(self) -> None:
        """Write what is held, as far as it can be."""
        if not self._held:
            return
        while self._held:
            with self._lock:
                some = list(self._held)[:_AT_ONCE]
                try:
                    self._write(some)
                except (MeshError, sqlite3.Error) as error:
                    self._why = str(error)
                    return
                for _, payload in some:
                    self._held.popleft()
                    self._size -= len(payload)
        log.warning("the disk can be written again; nothing waits in memory any more")

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

    def session_active(self, active: turn_pb2.SessionActive) -> None:
        """Record that a response of a session is still being made."""
        self._put(active.event_id, environment_pb2.PolicyEvent(session_active=active))

    def forgot(self, turn: turn_pb2.Turn) -> bool:
        """Whether the turn's session was forgotten after it was asked for."""
        return self._tombstones.cover(turn)

    def forget(self, target: Target) -> list[str]:
        """Delete a session's events, on disk and in memory, and let those go that are still to come.

        Returns:
            Ids of its turns.

        Raises:
            MeshError: the disk can't be written; all is as it was.
        """
        turns: set[str] = set()

        def meant(payload: bytes) -> bool:
            if not target.has_payload(environment_pb2.PolicyEvent, payload):
                return False
            with contextlib.suppress(DecodeError):
                turns.add(environment_pb2.PolicyEvent.FromString(payload).turn.turn_id)
            return True

        with self._lock:
            held = [entry for entry in self._held if not meant(entry[1])]
            with self._store.transaction() as db:
                self._outbox.forget(db, meant)
                turns.discard("")  # of other events
                self._tombstones.add(db, target.with_turns(turns))
            self._held, self._size = deque(held), sum(len(payload) for _, payload in held)
        return sorted(turns)

    def close(self) -> None:
        """Write the counts, and a last time what is held; the store is the caller's to close."""
        self.retry()
        try:
            self._write([])
        except (MeshError, sqlite3.Error):
            log.exception("counts of this run are not saved, and %d events are lost", len(self._held))

    def _put(self, event_id: str, event: environment_pb2.PolicyEvent, must: bool = False) -> None:
        entry = event_id, event.SerializeToString()
        with self._lock:
            if self._tombstones.cover(event):
                return
            try:
                if self._held and not must:  # in the order in which they happened, and no reply waits for a full disk
                    self._hold(entry)
                else:
                    self._write([entry])
            except (MeshError, sqlite3.Error) as error:
                if must:
                    raise
                self._why = str(error)
                log.error("events can't be written and wait in memory: %s", error)
                self._hold(entry)

    def _hold(self, entry: tuple[str, bytes]) -> None:
        self._held.append(entry)
        self._size += len(entry[1])
        while self._size > self._held_bytes:
            event_id, payload = self._held.popleft()
            self._size -= len(payload)
            self.lost += 1
            log.error("event %s is lost: too much waits in memory", event_id)

    def _write(self, entries: list[tuple[str, bytes]]) -> None:
        with self._store.transaction() as db:
            for event_id, payload in entries:
                self._outbox.put(event_id, payload, db=db)
            self._save_counts(db)
            if self._also is not None:
                self._also(db)

    def _save_counts(self, db: sqlite3.Connection) -> None:
        db.executemany("INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                       list(self._counts.items()))
