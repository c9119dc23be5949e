"""Messages on disk that wait for the next component. An event loop uses `fetch`, `acknowledge` and `refuse`."""

from __future__ import annotations

import itertools
import logging
import re
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from openclaw_rl.storage.database import Database
from openclaw_rl.storage.quarantine import forget_rows, trim
from openclaw_rl.v1 import common_pb2, component_pb2

logger = logging.getLogger(__name__)

#: Rejected messages that are kept, and their bytes; beyond these the oldest go.
KEEP_REJECTED, KEEP_REJECTED_BYTES = 10_000, 256 * 2**20
#: Messages that are looked at together for those to be forgotten.
_FIND_AT_ONCE = 64


class Row(NamedTuple):
    """One message."""

    seq: int  #: grows with every put while the process lives
    id: str
    payload: bytes


class Found(NamedTuple):
    """Messages that were looked for."""

    ids: list[str]
    upto: int  #: the last `seq` that was looked at


class Outbox:
    """The messages of one hop, oldest first. All methods may be called from any thread; one process, one such object.

    Args:
        database: where they are kept.
        name: of the stream, such as "turns"; one database may hold several.
        on_rejected: called with id and reason of each message that is set aside, in the transaction that does it: its
            connection comes first, and what is written there is kept with it or not at all.

    Attributes:
        connected, last_error: the stream's state, kept by the sender.
        last_rejected: when a message was last set aside, in seconds since the epoch.
    """

    def __init__(self, database: Database, name: str,
                 on_rejected: Callable[[sqlite3.Connection, str, str], None] | None = None) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"name of an outbox: {name!r}; allowed are lower-case letters, digits and _")
        self.name = name
        self.connected = False
        self.last_error = ""
        self._database = database
        self._table = f"outbox_{name}"
        self._on_rejected = on_rejected
        self._listener: Callable[[], None] | None = None
        self._counts = threading.Lock()
        self._delivered = 0
        with database.transaction() as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._table} (seq INTEGER PRIMARY KEY, "
                       "id TEXT NOT NULL UNIQUE, created REAL NOT NULL, crc INTEGER NOT NULL, payload BLOB NOT NULL)")
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._table}_rejected (seq INTEGER PRIMARY KEY, "
                       "id TEXT NOT NULL UNIQUE, rejected REAL NOT NULL, reason TEXT NOT NULL, payload BLOB NOT NULL)")
            # Not SQLite's own numbers: those begin anew when the table is empty, or cost a page with each commit.
            last = db.execute(f"SELECT COALESCE(MAX(seq), 0) FROM {self._table}").fetchone()[0]
            self._numbers = itertools.count(last + 1)
            self._oldest = self._created(db)
            # Counted once here and kept up with each commit: counting is slow when much waits.
            self._pending, self._bytes = db.execute(
                f"SELECT COUNT(*), COALESCE(SUM(LENGTH(payload)), 0) FROM {self._table}").fetchone()
            self._rejected, self.last_rejected = db.execute(
                f"SELECT COUNT(*), MAX(rejected) FROM {self._table}_rejected").fetchone()

    def put(self, id: str, payload: bytes, db: sqlite3.Connection | None = None) -> None:
        """Add a message; nothing happens when one of this id waits already.

        Args:
            db: connection of the caller's open transaction, which the message then joins.

        Raises:
            StorageError: it could not be stored.
        """
        if db is None:
            with self._database.transaction() as db:
                self._insert(db, id, payload)
        else:
            self._insert(db, id, payload)

    def _insert(self, db: sqlite3.Connection, id: str, payload: bytes) -> None:
        now = time.time()
        done = db.execute(f"INSERT INTO {self._table} (seq, id, created, crc, payload) VALUES (?, ?, ?, ?, ?) "
                          "ON CONFLICT (id) DO NOTHING", (next(self._numbers), id, now, zlib.crc32(payload), payload))
        if done.rowcount:
            self._database.after_commit(lambda: self._added(len(payload), now))

    def _added(self, size: int, created: float) -> None:
        with self._counts:
            self._pending += 1
            self._bytes += size
            self._oldest = created if self._oldest is None else self._oldest
        if self._listener is not None:
            self._listener()

    def _removed(self, messages: int, size: int, oldest: float | None) -> None:
        with self._counts:
            self._pending -= messages
            self._bytes -= size
            self._oldest = oldest

    def _created(self, db: sqlite3.Connection) -> float | None:
        """When the oldest message was put."""
        row = db.execute(f"SELECT created FROM {self._table} ORDER BY seq LIMIT 1").fetchone()
        return None if row is None else float(row[0])

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` after each commit that added a message, from the thread that committed it."""
        self._listener = listener

    def window(self, after: int, limit: int, max_bytes: int) -> list[Row]:
        """The next messages behind `seq` number `after`: at most `limit`, at most `max_bytes` together (but one at
        least). A row whose payload is damaged is set aside instead."""
        rows: list[Row] = []
        damaged: list[str] = []
        size = 0
        with self._database.reading() as db:
            cursor = db.execute(f"SELECT seq, id, crc, payload FROM {self._table} WHERE seq > ? ORDER BY seq LIMIT ?",
                                (after, limit))
            for seq, id, crc, payload in cursor:
                if not isinstance(payload, bytes) or zlib.crc32(payload) != crc:
                    damaged.append(id)
                    continue
                size += len(payload)
                if rows and size > max_bytes:
                    break
                rows.append(Row(seq, id, payload))
            cursor.close()
        if damaged:
            self.set_aside(damaged, "the row in the outbox is damaged")
            return rows or self.window(after, limit, max_bytes)
        return rows

    async def fetch(self, after: int, limit: int, max_bytes: int) -> list[Row]:
        """`window`, for an event loop."""
        return await self._database.read(self.window, after, limit, max_bytes)

    def settle(self, acks: Iterable[common_pb2.Ack]) -> list[str]:
        """Forget what the receiver has, and quarantine what it rejects; one transaction. Unknown ids are no error.

        Returns:
            The ids that are settled by it.
        """
        with self._database.transaction() as db:
            return self._settle(db, acks)

    async def acknowledge(self, acks: Iterable[common_pb2.Ack]) -> list[str]:
        """`settle`, for an event loop."""
        return await self._database.run(lambda db: self._settle(db, acks))

    def _settle(self, db: sqlite3.Connection, acks: Iterable[common_pb2.Ack]) -> list[str]:
        done, rejected = [], []
        for ack in acks:
            if ack.status in (common_pb2.ACK_STATUS_ACCEPTED, common_pb2.ACK_STATUS_DUPLICATE):
                done.append(ack.id)
            elif ack.status == common_pb2.ACK_STATUS_REJECTED:
                rejected.append((ack.id, ack.reason or "no reason given"))
            else:
                logger.warning("outbox %s: an answer without a status for %s is ignored", self.name, ack.id)
        settled = self._delete(db, done)
        self._database.after_commit(lambda: self._count_delivered(len(settled)))
        return settled + self._move_aside(db, rejected)

    def _count_delivered(self, messages: int) -> None:
        with self._counts:
            self._delivered += messages

    def set_aside(self, ids: Iterable[str], reason: str) -> None:
        """Keep messages that can't be sent, with the reason, where they are no obstacle."""
        with self._database.transaction() as db:
            self._move_aside(db, [(id, reason) for id in ids])

    async def refuse(self, ids: Iterable[str], reason: str) -> None:
        """`set_aside`, for an event loop."""
        refused = [(id, reason) for id in ids]
        await self._database.run(lambda db: self._move_aside(db, refused))

    def has(self, message_id: str) -> bool:
        """Whether a message waits, also one that is being written. Blocks."""
        return self._database.submit(lambda db: db.execute(
            f"SELECT 1 FROM {self._table} WHERE id = ?", (message_id,)).fetchone() is not None).result()

    def find(self, meant: Callable[[bytes], bool]) -> Found:
        """Look for messages whose payload is `meant` beside the writer, which a large backlog would hold up."""
        ids: list[str] = []
        upto = 0
        while rows := self._database.query(f"SELECT seq, id, payload FROM {self._table} WHERE seq > ? ORDER BY seq "
                                           f"LIMIT {_FIND_AT_ONCE}", (upto,)):
            ids += [row["id"] for row in rows if meant(row["payload"])]
            upto = rows[-1]["seq"]
        return Found(ids, upto)

    def forget(self, db: sqlite3.Connection, meant: Callable[[bytes], bool], found: Found | None = None) -> list[str]:
        """Delete the messages whose payload is `meant`, those set aside too, in the caller's transaction.

        Args:
            found: what `find` found before it; what came since then is looked at here.

        Returns:
            Their ids.
        """
        found = found or Found([], 0)
        rows = db.execute(f"SELECT id, payload FROM {self._table} WHERE seq > ?", (found.upto,))
        waiting = [*found.ids, *(row["id"] for row in rows if meant(row["payload"]))]
        self._delete(db, waiting)
        aside = forget_rows(db, f"{self._table}_rejected", meant)
        count, last = db.execute(f"SELECT COUNT(*), MAX(rejected) FROM {self._table}_rejected").fetchone()
        self._database.after_commit(lambda: self._kept_aside(count, last))
        return waiting + aside

    def rejected(self, limit: int = 100) -> list[tuple[str, str]]:
        """Ids and reasons of messages set aside, newest first."""
        rows = self._database.query(
            f"SELECT id, reason FROM {self._table}_rejected ORDER BY seq DESC LIMIT ?", (limit,))
        return [(row["id"], row["reason"]) for row in rows]

    @property
    def pending(self) -> int:
        """Number of messages that wait."""
        return self._pending

    def stats(self) -> component_pb2.OutboxStats:
        """The figures for the component's status."""
        with self._counts:
            stats = component_pb2.OutboxStats(
                name=self.name, pending=self._pending, pending_bytes=self._bytes, connected=self.connected,
                delivered=self._delivered, rejected=self._rejected, last_error=self.last_error)
            oldest = self._oldest
        if oldest is not None:
            stats.oldest_age.FromNanoseconds(max(0, int((time.time() - oldest) * 1e9)))
        return stats

    def _delete(self, db: sqlite3.Connection, ids: list[str]) -> list[str]:
        settled, size = [], 0
        for id in ids:
            row = db.execute(f"DELETE FROM {self._table} WHERE id = ? RETURNING LENGTH(payload)", (id,)).fetchone()
            if row is not None:
                settled.append(id)
                size += row[0]
        if settled:
            oldest = self._created(db)
            self._database.after_commit(lambda: self._removed(len(settled), size, oldest))
        return settled

    def _move_aside(self, db: sqlite3.Connection, rejected: list[tuple[str, str]]) -> list[str]:
        """Move messages to those that are rejected, with the reasons; the ids of those that were there."""
        moved = []
        for id, reason in rejected:
            done = db.execute(f"INSERT OR REPLACE INTO {self._table}_rejected (id, rejected, reason, payload) "
                              f"SELECT id, ?, ?, payload FROM {self._table} WHERE id = ?", (time.time(), reason, id))
            if done.rowcount:
                self._delete(db, [id])
                moved.append((id, reason))
                if self._on_rejected is not None:
                    self._on_rejected(db, id, reason)
        if moved:
            trim(db, f"{self._table}_rejected", KEEP_REJECTED, KEEP_REJECTED_BYTES)
            count, last = db.execute(f"SELECT COUNT(*), MAX(rejected) FROM {self._table}_rejected").fetchone()
            self._database.after_commit(lambda: self._kept_aside(count, last, moved))
        return [id for id, _ in moved]

    def _kept_aside(self, count: int, last: float, moved: Iterable[tuple[str, str]] = ()) -> None:
        self._rejected, self.last_rejected = count, last
        for id, reason in moved:
            logger.error("outbox %s: %s is set aside: %s", self.name, id, reason)
