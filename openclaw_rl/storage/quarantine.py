"""Messages that were refused or found damaged, kept with the reason where a person can look, in bounds."""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Callable

from openclaw_rl.storage.database import Database

logger = logging.getLogger(__name__)

#: Messages that a table keeps; beyond these the oldest go.
KEEP = 1_000
#: Bytes of their payloads that it keeps; beyond these the oldest go.
KEEP_BYTES = 64 * 2**20
#: Characters of an id that are kept: a refused one may be of any length.
_ID = 256


class Quarantine:
    """What a component refused, in the table `NAME_aside` of its store; `openclaw-rl set-aside` lists it. Any thread.

    Args:
        store: the component's.
        name: of what is kept, such as "samples".

    Attributes:
        count: messages kept.
        last: when one was last set aside, in seconds since the epoch; None when there is none.
    """

    def __init__(self, store: Database, name: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"name of what is set aside: {name!r}; allowed are lower-case letters, digits and _")
        self.name = name
        self._store, self._table = store, f"{name}_aside"
        with store.transaction() as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._table} (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, "
                       "at REAL NOT NULL, reason TEXT NOT NULL, payload BLOB NOT NULL)")
            self.count, self.last = db.execute(f"SELECT COUNT(*), MAX(at) FROM {self._table}").fetchone()

    def keep(self, db: sqlite3.Connection, id: str, reason: str, payload: bytes) -> None:
        """Keep a message, within the caller's transaction."""
        db.execute(f"INSERT INTO {self._table} (id, at, reason, payload) VALUES (?, ?, ?, ?)",
                   (id[:_ID], time.time(), reason, payload if isinstance(payload, bytes) else b""))
        trim(db, self._table, KEEP, KEEP_BYTES)
        count, last = db.execute(f"SELECT COUNT(*), MAX(at) FROM {self._table}").fetchone()
        self._store.after_commit(lambda: self._kept(count, last, id, reason))

    def _kept(self, count: int, last: float, id: str, reason: str) -> None:
        self.count, self.last = count, last
        logger.error("%s: %r is set aside: %s", self._table, id[:_ID], reason)

    def forget(self, db: sqlite3.Connection, meant: Callable[[bytes], bool]) -> int:
        """Delete the messages whose payload is `meant`, in the caller's transaction; how many there were."""
        gone = len(forget_rows(db, self._table, meant))
        self.count, self.last = db.execute(f"SELECT COUNT(*), MAX(at) FROM {self._table}").fetchone()
        return gone

    def recent(self, limit: int = 100) -> list[tuple[str, str]]:
        """Ids and reasons, newest first."""
        rows = self._store.query(f"SELECT id, reason FROM {self._table} ORDER BY seq DESC LIMIT ?", (limit,))
        return [(row["id"], row["reason"]) for row in rows]


def trim(db: sqlite3.Connection, table: str, keep: int, keep_bytes: int) -> None:
    """Delete the oldest rows of a table of payloads beyond `keep` rows or `keep_bytes`, but never the newest row."""
    db.execute(f"DELETE FROM {table} WHERE seq <= (SELECT MAX(seq) FROM {table}) - ?", (keep,))
    size = db.execute(f"SELECT TOTAL(LENGTH(payload)) FROM {table}").fetchone()[0]
    while size > keep_bytes:
        row = db.execute(f"DELETE FROM {table} WHERE seq = (SELECT MIN(seq) FROM {table}) AND seq < (SELECT MAX(seq) "
                         f"FROM {table}) RETURNING LENGTH(payload)").fetchone()
        if row is None:
            break
        size -= row[0]


def forget_rows(db: sqlite3.Connection, table: str, meant: Callable[[bytes], bool], *, id: str = "id") -> list[str]:
    """Delete the rows of a table of payloads whose payload is `meant`; their ids, of the column `id`."""
    found = [(row["seq"], row[id]) for row in db.execute(f"SELECT seq, {id}, payload FROM {table}")
             if meant(row["payload"])]
    db.executemany(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq, _ in found])
    return [id for _, id in found]
