"""Ids that a receiver has taken, so that a message that comes again is known."""

from __future__ import annotations

import re
import sqlite3

from openclaw_rl.storage.checksum import add_columns
from openclaw_rl.storage.database import Database

#: Ids remembered. A message comes again only while its sender lacks the acknowledgement, so that is far more than a
#: window; at 32 characters it is some 20 MB.
KEEP = 200_000
_PRUNE_EVERY = 1_000


class IdConflict(ValueError):
    """Two messages of one id differ: the second is not taken."""


class Inbox:
    """The ids of one hop, kept in the receiver's store."""

    def __init__(self, store: Database, name: str, keep: int = KEEP) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"name of an inbox: {name!r}; allowed are lower-case letters, digits and _")
        self._table = f"inbox_{name}"
        self._keep = keep
        self._since_pruned = 0
        with store.transaction() as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._table} (seq INTEGER PRIMARY KEY, "
                       "id TEXT NOT NULL UNIQUE, content INTEGER)")
            add_columns(db, self._table, {"content": "INTEGER"})

    def accept(self, db: sqlite3.Connection, id: str, content: int | None = None) -> bool:
        """Remember `id` within the caller's transaction, the one that stores the message too.

        Args:
            content: `checked.content_key` of the message as it came; None when it doesn't matter.

        Returns:
            False when it is known: the message is a duplicate.

        Raises:
            IdConflict: the id was used before, for a message with another content.
        """
        if not db.execute(f"INSERT OR IGNORE INTO {self._table} (id, content) VALUES (?, ?)", (id, content)).rowcount:
            first = db.execute(f"SELECT content FROM {self._table} WHERE id = ?", (id,)).fetchone()[0]
            if None not in (first, content) and first != content:
                raise IdConflict("this id was used before, for a message with another content; the first one stands")
            return False
        self._since_pruned += 1
        if self._since_pruned >= _PRUNE_EVERY:
            self._since_pruned = 0
            db.execute(f"DELETE FROM {self._table} WHERE seq <= (SELECT MAX(seq) FROM {self._table}) - ?",
                       (self._keep,))
        return True
