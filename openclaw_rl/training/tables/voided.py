"""Versions that are void since a session was forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

SCHEMA = """
CREATE TABLE IF NOT EXISTS voided (
    version INTEGER NOT NULL, session BLOB NOT NULL, PRIMARY KEY (version, session)) WITHOUT ROWID;
"""


class VoidTable:
    """Table `voided`. All methods are part of the caller's transaction."""

    def add(self, db: sqlite3.Connection, versions: Iterable[int], session: bytes) -> None:
        """Note versions that are void because of a session, given by its digest."""
        db.executemany("INSERT OR IGNORE INTO voided VALUES (?, ?)", [(version, session) for version in versions])

    def of(self, db: sqlite3.Connection, session: bytes) -> list[int]:
        """Return the versions that are void because of a session, ascending."""
        return [row["version"] for row in db.execute("SELECT version FROM voided WHERE session = ? ORDER BY version",
                                                     (session,))]
