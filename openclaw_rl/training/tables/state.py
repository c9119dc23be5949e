"""Single values of the trainer, such as the head of its versions."""

from __future__ import annotations

import sqlite3
from enum import StrEnum

from openclaw_rl.storage.database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Key(StrEnum):
    """Names of single values."""

    HEAD = "head"  #: version that the next step builds on
    HIGHEST = "highest"  #: highest version number in use anywhere
    ACTIVE = "active"  #: version that the policy server answers with
    PAUSED = "paused"  #: why an operator paused training
    WATCH = "watch"  #: state of the regression monitor


class StateTable:
    """Table `state`. Any thread; methods that take `db` are part of the caller's transaction.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> str | None:
        """Return a value, or None."""
        rows = self._database.query("SELECT value FROM state WHERE name = ?", (name,))
        return rows[0]["value"] if rows else None

    def set(self, name: str, value: str | None) -> None:
        """Keep a value; None removes it."""
        with self._database.transaction() as db:
            if value is None:
                db.execute("DELETE FROM state WHERE name = ?", (name,))
            else:
                self.put(db, name, value)

    def put(self, db: sqlite3.Connection, name: str, value: str) -> None:
        """Keep a value."""
        db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))

    def number(self, db: sqlite3.Connection, name: str) -> int:
        """Return a numeric value, 0 if there is none."""
        row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return int(row["value"]) if row else 0

    def raise_to(self, db: sqlite3.Connection, name: str, value: int) -> None:
        """Make a numeric value at least `value`."""
        row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        if row is None or int(row["value"]) < value:
            self.put(db, name, str(value))
