"""Record what happened, on its way to the environment server: one buffered local write per event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import islice

from google.protobuf.message import DecodeError

from openclaw_rl.privacy import Target, Tombstones
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, turn_pb2

logger = logging.getLogger(__name__)

#: Bytes of events that are held in memory while the disk can't be written; beyond these the oldest are lost.
HELD_BYTES = 64 * 2**20
#: Seconds between two tries to write them.
RETRY_SECONDS = 1.0
#: Events that are written in one transaction then.
_AT_ONCE = 50

#: The component's own table: counts that survive a restart.
SCHEMA = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"

_Entry = tuple[str, bytes]  # id of an event, and the event


class TurnRecorder:
    """Puts turns, feedback and session ends into the outbox, and keeps the component's counts. Any thread; writing is
    the database's writer thread's work, and no method but `retry`, `forget` and `close` waits for it.

    A full disk never stops the answers: what can't be written is held in memory, told in `problem`, and written by
    `run` once there is room.
    """

    def __init__(self, database: Database, outbox: Outbox, held_bytes: int = HELD_BYTES,
                 also: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """Args: also: writes what else is to be kept, in the same transactions."""
        self._also = also
        self._database, self._outbox, self._held_bytes = database, outbox, held_bytes
        self._tombstones = Tombstones(database)
        self._counts = {"requests": 0, "failed": 0, "turns_recorded": 0}
        self._counts |= {row["name"]: row["value"] for row in database.query("SELECT name, value FROM counters")}
        self.lost = 0  #: events that were never written, since the start
        self._why = ""  # the last write failed; empty when it did not
        self._held: deque[_Entry] = deque()
        self._size = 0  # bytes held
        self._lock = threading.Lock()  # of the two; never held while something is written

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
        """Write what is held, as far as it can be. Blocks."""
        if not self._held:
            return
        while some := self._first():
            try:
                self._database.submit(partial(self._write, some)).result()
            except (MeshError, sqlite3.Error) as error:
                self._why = str(error)
                return
            self._drop(some)
        logger.warning("the disk can be written again; nothing waits in memory any more")

    @property
    def counters(self) -> dict[str, int]:
        """Counts by name."""
        return dict(self._counts)

    def count(self, name: str) -> None:
        """Count; it gets to disk with the next event."""
        self._counts[name] = self._counts.get(name, 0) + 1

    async def turn(self, turn: turn_pb2.Turn) -> None:
        """Record a turn; it is in the outbox, or held in memory, when this returns."""
        with contextlib.suppress(MeshError, sqlite3.Error):  # it is held
            await asyncio.wrap_future(self.turn_now(turn))

    def turn_now(self, turn: turn_pb2.Turn) -> Future[None]:
        """Begin to record a turn without awaiting it, for a request that is being cancelled."""
        self.count("turns_recorded")
        return self._record(turn.turn_id, environment_pb2.PolicyEvent(turn=turn))

    async def feedback(self, feedback: turn_pb2.Feedback) -> None:
        """Record feedback.

        Raises:
            MeshError: it can't be written.
        """
        await asyncio.wrap_future(
            self._record(feedback.feedback_id, environment_pb2.PolicyEvent(feedback=feedback), must=True))

    def session_end(self, end: turn_pb2.SessionEnd) -> None:
        """Record the end of a session."""
        self._record(end.event_id, environment_pb2.PolicyEvent(session_end=end))

    def session_active(self, active: turn_pb2.SessionActive) -> None:
        """Record that a response of a session is still being made."""
        self._record(active.event_id, environment_pb2.PolicyEvent(session_active=active))

    def forgot(self, turn: turn_pb2.Turn) -> bool:
        """Whether the turn's session was forgotten after it was asked for."""
        return self._tombstones.cover(turn)

    def forget(self, target: Target) -> list[str]:
        """Delete a session's events, on disk and in memory, and let those go that are still to come. Blocks.

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

        def delete(db: sqlite3.Connection) -> None:
            self._outbox.forget(db, meant, found)
            turns.discard("")  # of other events
            self._tombstones.add(db, target.with_turns(turns))

        with self._lock:
            held = list(self._held)
        gone = {id(entry) for entry in held if meant(entry[1])}
        found = self._outbox.find(meant)
        self._database.submit(delete).result()
        with self._lock:  # what was held since then is covered by the tombstones
            self._held = deque(entry for entry in self._held if id(entry) not in gone)
            self._size = sum(len(payload) for _, payload in self._held)
        return sorted(turns)

    def close(self) -> None:
        """Write the counts, and a last time what is held; the database is the caller's to close. Blocks."""
        self.retry()
        try:
            self._database.submit(partial(self._write, [])).result()
        except (MeshError, sqlite3.Error) as error:
            logger.error("counts of this run are not saved, and %d events are lost: %s", len(self._held), error)

    def _record(self, event_id: str, event: environment_pb2.PolicyEvent, must: bool = False) -> Future[None]:
        """Begin to write an event. When that fails it is held, unless it `must` be written."""
        done: Future[None] = Future()
        done.set_result(None)
        if self._tombstones.cover(event):
            return done
        entry = event_id, event.SerializeToString()
        if self._held and not must:  # in the order in which they happened, and no reply waits for a full disk
            self._hold(entry)
            return done

        def written(future: Future[None]) -> None:
            error = future.exception()
            if isinstance(error, (MeshError, sqlite3.Error)):
                self._why = str(error)
                logger.error("events can't be written and wait in memory: %s", error)
                self._hold(entry)

        future = self._database.submit(partial(self._write, [entry]))
        if not must:
            future.add_done_callback(written)
        return future

    def _hold(self, entry: _Entry) -> None:
        with self._lock:
            self._held.append(entry)
            self._size += len(entry[1])
            while self._size > self._held_bytes:
                event_id, payload = self._held.popleft()
                self._size -= len(payload)
                self.lost += 1
                logger.error("event %s is lost: too much waits in memory", event_id)

    def _first(self) -> list[_Entry]:
        with self._lock:
            return list(islice(self._held, _AT_ONCE))

    def _drop(self, written: list[_Entry]) -> None:
        """Drop what was written, as far as it is still there."""
        names = set(map(id, written))
        with self._lock:
            while self._held and id(self._held[0]) in names:
                self._size -= len(self._held.popleft()[1])

    def _write(self, entries: list[_Entry], db: sqlite3.Connection) -> None:
        for event_id, payload in entries:
            if not self._tombstones.cover_payload(environment_pb2.PolicyEvent, payload):  # forgotten meanwhile
                self._outbox.put(event_id, payload, db=db)
        db.executemany("INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                       list(self._counts.items()))
        if self._also is not None:
            self._also(db)
