"""The conversations that were answered, kept over a restart.

They are written in the transaction that records a turn, so that they cost the reply path no write of their own and fit
what was recorded, whenever the process is killed.
"""

from __future__ import annotations

import sqlite3
from functools import partial

from openclaw_rl.sessions.index import IDLE, LIMIT, ConversationIndex, Entry
from openclaw_rl.storage.checksum import add_columns
from openclaw_rl.storage.database import Database

#: Rows beyond the index's limit, as many again: those of keys that were written anew.
_SPARE = 2
_PRUNE_EVERY = 1_000
#: Rows of one statement.
_ROWS = 50

SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    seq INTEGER PRIMARY KEY,  -- a log: of a key and session the last row counts
    key BLOB NOT NULL,
    session TEXT,             -- NULL in rows of an older release: of more than one
    turn INTEGER NOT NULL DEFAULT 0,
    instructions BLOB NOT NULL DEFAULT x'');
"""


class Conversations:
    """A `ConversationIndex` with its table in `store` (made with `SCHEMA`).

    The table is a log without an index on its keys: a turn changes its last page and no other.

    Raises:
        StorageError: the file can't be read.
    """

    def __init__(self, database: Database, limit: int = LIMIT, idle: float = IDLE) -> None:
        if not any(row["name"] == "turn" for row in database.query("PRAGMA table_info(conversations)")):
            with database.transaction() as db:  # a table of an older release
                add_columns(db, "conversations", {"turn": "INTEGER NOT NULL DEFAULT 0",
                                                  "instructions": "BLOB NOT NULL DEFAULT x''"})
        self._database, self._keep = database, _SPARE * limit
        self._since_pruned = 0
        rows = database.query("SELECT key, session, turn, instructions FROM conversations WHERE session IS NOT NULL "
                              "ORDER BY seq")
        self.index = ConversationIndex(limit, [Entry(*row) for row in rows], idle)

    def save(self, db: sqlite3.Connection) -> None:
        """Write what is new, within the caller's transaction."""
        entries = self.index.unsaved()
        if not entries:
            return
        for at in range(0, len(entries), _ROWS):  # a turn's in one statement
            some = entries[at:at + _ROWS]
            db.execute("INSERT INTO conversations (key, session, turn, instructions) VALUES "
                       + ", ".join(["(?, ?, ?, ?)"] * len(some)),
                       [value for entry in some
                        for value in (entry.key, entry.session, entry.turn, entry.instructions)])
        self._since_pruned += len(entries)
        if self._since_pruned >= _PRUNE_EVERY:
            self._since_pruned = 0
            db.execute("DELETE FROM conversations WHERE seq <= (SELECT max(seq) FROM conversations) - ?", (self._keep,))
        self._database.after_commit(partial(self.index.saved, entries))

    async def forget(self, session_id: str) -> int:
        """Drop a session's entries from memory, at once, and from the disk; returns their number.

        Raises:
            StorageError: the file can't be written, so they are there again after a restart.
        """
        count = self.index.forget(session_id)
        await self._database.run(lambda db: db.execute("DELETE FROM conversations WHERE session = ?", (session_id,)))
        return count
