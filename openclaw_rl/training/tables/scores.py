"""Scores of live turns by policy version: three counts a version, whatever becomes of the samples."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.storage.database import Database

SCHEMA = """
CREATE TABLE IF NOT EXISTS live_scores (
    version INTEGER NOT NULL, score INTEGER NOT NULL, turns INTEGER NOT NULL, PRIMARY KEY (version, score));
"""


#: Versions whose scores are kept, up to the newest that has any: rollback and listings ask for those of a few.
KEEP_VERSIONS = 2_000


@dataclass(frozen=True, slots=True)
class Scores:
    """Numbers of turns by score."""

    down: int = 0  #: judged -1
    neutral: int = 0  #: judged 0
    up: int = 0  #: judged +1

    @property
    def turns(self) -> int:
        """Number of turns."""
        return self.down + self.neutral + self.up

    @property
    def mean(self) -> float:
        """Mean score, from -1 to 1; 0 of no turns."""
        return (self.up - self.down) / (self.turns or 1)

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.down + other.down, self.neutral + other.neutral, self.up + other.up)


class ScoreTable:
    """Table `live_scores`. Any thread; methods that take `db` are part of the caller's transaction.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, db: sqlite3.Connection, version: int, score: int) -> None:
        """Count a turn that was answered by a version."""
        db.execute("INSERT INTO live_scores VALUES (?, ?, 1) ON CONFLICT (version, score) DO UPDATE SET"
                   " turns = turns + 1", (version, score))

    def prune(self, db: sqlite3.Connection, keep: int = KEEP_VERSIONS) -> None:
        """Delete the scores of old versions beyond `keep`; those of the base model stay."""
        db.execute("DELETE FROM live_scores WHERE version > 0"
                   " AND version <= (SELECT MAX(version) FROM live_scores) - ?", (keep,))

    def recent(self, versions: Sequence[int], turns: int) -> Scores:
        """Return the scores of the first of these versions that have so many turns together."""
        live, total = self.all(), Scores()
        for version in versions:
            if total.turns >= turns:
                break
            total += live.get(version, Scores())
        return total

    def all(self) -> dict[int, Scores]:
        """Return the scores of every version that a judged turn came from."""
        names = {-1: "down", 0: "neutral", 1: "up"}
        found: dict[int, dict[str, int]] = {}
        for row in self._database.query("SELECT version, score, turns FROM live_scores"):
            found.setdefault(row["version"], {})[names[row["score"]]] = row["turns"]
        return {version: Scores(**counts) for version, counts in found.items()}
