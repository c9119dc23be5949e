"""The history on disk, `HOME/dashboard/history.db`, written by a thread of its own.

It only lets the history outlive its process: a slow, full or damaged disk holds nothing up, and costs no more than what
a restart would have shown. Of several processes that know the history of a home, the one that holds the lock writes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from openclaw_rl.monitoring.series import SECONDS, Resolution, Row
from openclaw_rl.storage.opening import check
from openclaw_rl.storage.quarantine_files import move_aside

logger = logging.getLogger(__name__)

#: Events kept.
EVENTS = 5000
#: Statements that wait for the disk at most; beyond these the oldest are dropped.
_WAITING = SECONDS * 2
#: Seconds for which it is reported that a damaged file was quarantined.
_REPORTED = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS seconds (t INTEGER PRIMARY KEY, figures BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS minutes (t INTEGER PRIMARY KEY, figures BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, t REAL NOT NULL, kind TEXT NOT NULL,
                                   component TEXT NOT NULL, text TEXT NOT NULL, data BLOB NOT NULL);
"""
_INSERT_EVENT = "INSERT INTO events (t, kind, component, text, data) VALUES (?, ?, ?, ?, ?)"

_Statement = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        t: seconds since the epoch.
        kind: such as "state" or "version_created"; its sentence is `event.KIND` in the dashboard's locale/.
        component: whom it concerns.
        text: in its own words, for a person; untrusted.
        data: more, by name.
    """

    t: float
    kind: str
    component: str
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """All that the file holds, oldest first."""

    seconds: list[Row] = field(default_factory=list)
    minutes: list[Row] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def acquire_lock(folder: Path) -> int | None:
    """The descriptor of the lock of a folder's history, which its holder closes to release it; None while another
    process holds it, or where it can't be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError:
        return None  # nor can the history be written, which is reported when it is tried
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


class HistoryFile:
    """See the module. Any thread; a `series.RowStore`.

    Args:
        folder: of history.db.
        keep: seconds of which minutes are read.
        contents: gives what is in memory, to begin a new file with in place of a damaged one.
        clock: seconds since the epoch.
        lock: as `acquire_lock` gave it; None tries to get it.
    """

    def __init__(self, folder: Path, keep: int, contents: Callable[[], Contents],
                 clock: Callable[[], float] = time.time, lock: int | None = None) -> None:
        self.path = folder / "history.db"
        self._keep, self._contents, self._clock = keep, contents, clock
        self._mutex = threading.Lock()  # guards the next three
        self._waiting: deque[_Statement] = deque(maxlen=_WAITING)
        self._writing = False
        self._problem = ""
        self._quarantined: tuple[float, str] | None = None
        self._writer = ThreadPoolExecutor(1, "history")
        self._db: sqlite3.Connection | None = None
        self._lock = lock if lock is not None else acquire_lock(folder)

    def load(self) -> Contents:
        """Read the file; a damaged one is quarantined. Blocks."""
        return self._writer.submit(self._load).result()

    def take_over(self) -> bool:
        """Become the one who writes, if nobody else is now; True when that has just begun."""
        if self._lock is None:
            self._lock = acquire_lock(self.path.parent)
            return self._lock is not None
        return False

    def put(self, resolution: Resolution, row: Row) -> None:
        """Keep a row in place of the one of its time."""
        self._write(f"INSERT OR REPLACE INTO {resolution} VALUES (?, ?)", row)

    def delete_since(self, resolution: Resolution, t: int) -> None:
        """Delete the rows of `t` and later."""
        self._write(f"DELETE FROM {resolution} WHERE t >= ?", (t,))

    def delete_before(self, resolution: Resolution, t: int) -> None:
        """Delete the rows before `t`."""
        self._write(f"DELETE FROM {resolution} WHERE t < ?", (t,))

    def put_event(self, event: Event) -> None:
        """Keep an event, and no more than EVENTS."""
        self._write(_INSERT_EVENT, _values(event))
        self._write("DELETE FROM events WHERE id <= (SELECT MAX(id) FROM events) - ?", (EVENTS,))

    def problems(self) -> list[tuple[str, dict[str, str]]]:
        """Keys of sentences in the dashboard's locale/ and their values."""
        with self._mutex:
            found = [("history.not_written", {"why": self._problem})] if self._problem else []
            if self._quarantined is not None and self._clock() - self._quarantined[0] < _REPORTED:
                found.append(("history.set_aside", {"file": self._quarantined[1]}))
        return found

    def close(self) -> None:
        """Write what waits, and close the file. Blocks."""
        self._writer.submit(self._flush).result()
        self._writer.shutdown()
        if self._db is not None:
            self._db.close()
        if self._lock is not None:
            os.close(self._lock)

    @property
    def _read_only(self) -> bool:
        """Another process writes, or did lately. Without a lock file there is none: then writing is tried, which tells
        what is wrong with the folder."""
        return self._lock is None and (self.path.parent / "lock").exists()

    def _write(self, sql: str, values: tuple[Any, ...]) -> None:
        if self._read_only:
            return
        with self._mutex:
            self._waiting.append((sql, values))
            if self._writing:
                return
            self._writing = True
        self._writer.submit(self._flush)

    # -- on the writer's thread

    def _flush(self) -> None:
        with self._mutex:
            self._writing = False
            batch = list(self._waiting)
            self._waiting.clear()
        if not batch:
            return
        problem = ""
        try:
            db = self._db or self._connect()
            with db:
                for sql, values in batch:
                    db.execute(sql, values)
        except (sqlite3.Error, OSError) as error:
            problem = str(error)
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                problem = self._quarantine(problem, self._contents())
            else:
                with self._mutex:  # tried again with the next row
                    self._waiting.extendleft(reversed(batch[-(_WAITING - len(self._waiting)):]))
        with self._mutex:
            if problem and problem != self._problem:
                logger.warning("history is kept in memory only: %s: %s", self.path, problem)
            self._problem = problem

    def _load(self) -> Contents:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._read(self._connect())
        except (OSError, sqlite3.OperationalError) as error:
            problem = str(error)
        except (sqlite3.DatabaseError, ValueError) as error:  # ValueError: JSON, or text that is no UTF-8
            problem = self._quarantine(str(error), Contents())
        self._failed(problem)
        return Contents()

    def _failed(self, problem: str) -> None:
        with self._mutex:
            self._problem = problem
        if problem:
            self._disconnect()

    def _connect(self) -> sqlite3.Connection:
        db = self._db = sqlite3.connect(self.path, timeout=5, check_same_thread=False)
        self.path.chmod(0o600)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(_SCHEMA)
        if damage := check(db):
            raise sqlite3.DatabaseError(damage)
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _read(self, db: sqlite3.Connection) -> Contents:
        now = self._clock()
        found = Contents()
        for rows, table, keep in ((found.seconds, "seconds", SECONDS), (found.minutes, "minutes", self._keep)):
            for t, packed in db.execute(f"SELECT t, figures FROM {table} WHERE t >= ? AND t <= ? ORDER BY t",
                                        (int(now - keep), int(now) + 5)):
                if not isinstance(orjson.loads(packed), dict):
                    raise sqlite3.DatabaseError("a row is damaged")
                rows.append((t, packed))
        found.events.extend(
            Event(t, kind, component, text, orjson.loads(data)) for t, kind, component, text, data in
            reversed(db.execute("SELECT t, kind, component, text, data FROM events ORDER BY id DESC LIMIT ?",
                                (EVENTS,)).fetchall()))
        return found

    def _quarantine(self, why: str, contents: Contents) -> str:
        """Move the damaged file aside and begin a new one with `contents`; gives why that failed, or ""."""
        self._disconnect()
        if self._read_only:
            return why  # it is another process's file
        try:
            aside = move_aside(self.path, label="damaged")
            logger.error("history file %s is damaged (%s): moved to %s", self.path, why, aside)
            with self._mutex:
                self._quarantined = (self._clock(), str(aside))
            with self._connect() as db:
                db.executemany("INSERT OR REPLACE INTO seconds VALUES (?, ?)", contents.seconds)
                db.executemany("INSERT OR REPLACE INTO minutes VALUES (?, ?)", contents.minutes)
                db.executemany(_INSERT_EVENT, [_values(event) for event in contents.events])
        except (OSError, sqlite3.Error) as error:
            self._disconnect()
            return str(error)
        return ""


def _values(event: Event) -> tuple[Any, ...]:
    return (event.t, event.kind, event.component, event.text, orjson.dumps(event.data))
