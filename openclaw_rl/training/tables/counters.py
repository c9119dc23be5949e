"""Counts of samples, steps and groups since the file was made."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from openclaw_rl.storage.database import Database
from openclaw_rl.training.tables.reasons import DropReason

SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""
_DROPPED = "dropped:"
#: Minutes.
HOUR = 60


class Counter(StrEnum):
    """Names of counters; dropped samples are counted by `DropReason` besides."""

    ACCEPTED = "accepted"
    TRAINED = "trained"
    UPDATES = "updates"
    STEPS_SKIPPED = "steps_skipped"
    GROUPS_WHOLE = "groups_whole"  #: trained on with all episodes
    GROUPS_INCOMPLETE = "groups_incomplete"  #: trained on without some
    GROUPS_DROPPED = "groups_dropped"
    GROUPS_ALIKE = "groups_alike"  #: of the first two, those without an advantage


@dataclass(frozen=True, slots=True)
class LastHour:
    """Numbers of samples."""

    accepted: int
    trained: int
    dropped: dict[str, int]  #: by reason


class CounterTable:
    """Table `counters`. Any thread; methods that take `db` are part of the caller's transaction.

    Raises (all methods):
        StorageError: the file can't be read or written.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._minutes: deque[tuple[int, Counts[str]]] = deque(maxlen=HOUR)  # what was added in which minute
        self._lock = threading.Lock()  # of the minutes

    def add(self, db: sqlite3.Connection, counter: Counter, by: int = 1) -> None:
        """Add to a counter."""
        self._add(db, counter, by)

    def add_dropped(self, db: sqlite3.Connection, reason: DropReason, by: int = 1) -> None:
        """Add to the counter of samples dropped for a reason."""
        self._add(db, f"{_DROPPED}{reason}", by)

    def all(self) -> dict[str, int]:
        """Return all counts that are not 0 by name; those of dropped samples are called "dropped:REASON"."""
        return {row["name"]: row["value"] for row in self._database.query("SELECT name, value FROM counters")}

    def dropped(self) -> dict[str, int]:
        """Return the number of dropped samples by reason."""
        return {name.removeprefix(_DROPPED): count for name, count in self.all().items() if name.startswith(_DROPPED)}

    def last_hour(self) -> LastHour:
        """Return what became of samples within the last hour, or since the start."""
        first, found = int(self._clock() // 60) - HOUR, Counts[str]()
        with self._lock:
            for minute, counts in self._minutes:
                if minute > first:
                    found.update(counts)
        return LastHour(found[Counter.ACCEPTED], found[Counter.TRAINED], {
            name.removeprefix(_DROPPED): count for name, count in found.items() if name.startswith(_DROPPED)})

    def _note(self, name: str, by: int) -> None:
        minute = int(self._clock() // 60)
        with self._lock:
            if not self._minutes or self._minutes[-1][0] != minute:
                self._minutes.append((minute, Counts()))
            self._minutes[-1][1][name] += by

    def _add(self, db: sqlite3.Connection, name: str, by: int) -> None:
        if by:
            self._database.after_commit(lambda: self._note(name, by))
            db.execute("INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value +"
                       " excluded.value", (name, by))
