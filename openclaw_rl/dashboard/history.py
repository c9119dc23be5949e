"""What the figures were: each second of the last hour, each minute of the last days, and a journal of events.

Pages read from memory; the file dashboard/history.db in the mesh's home only lets it outlive the process. So a slow,
full or damaged disk never holds a page up, and costs no more than what a restart would have shown.

Each row is a point in time with all figures of it as JSON, `{"policy.qps": 1.5, ...}`. A span is told by the mean of
what was in it; by the last value where values hold until the next one (_LAST), and by the largest of high percentiles
(_MOST), whose mean would be that of no time. A time without a row is a gap: the dashboard was not running.

Of several dashboards of a home one keeps the file; the others only read it when they start.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sqlite3
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

log = logging.getLogger(__name__)

#: Seconds of which every one is kept.
SECONDS = 3700
#: Events kept.
EVENTS = 5000
#: Points that one chart has at most.
POINTS = 180
#: Seconds for which it is told that a damaged file was set aside.
_TOLD = 3600.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS seconds (t INTEGER PRIMARY KEY, figures BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS minutes (t INTEGER PRIMARY KEY, figures BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT, t REAL NOT NULL, kind TEXT NOT NULL,
                                   component TEXT NOT NULL, text TEXT NOT NULL, data BLOB NOT NULL);
"""

#: Figures of which a span has its last value, and those of which it has the largest; all others have their mean.
_LAST = re.compile(r"version|up\..*|trainer\.(loss|kl|grad_norm|staleness|updates_h|training|paused)|judge\.count\..*")
_MOST = re.compile(r"policy\.(p|first)9[59]")

Figures = dict[str, float]


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        t: seconds since the epoch.
        kind: such as "state" or "version_created"; its sentence is `event.KIND` in locale/.
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
class Curves:
    """Figures over a span of time, for charts.

    Attributes:
        times: seconds since the epoch at which each bucket begins, ascending, evenly `step` apart.
        values: by name one for each bucket (see the module), or None where nothing is known.
    """

    times: list[int]
    step: int
    values: dict[str, list[float | None]]


class History:
    """See the module. `add` and `event` belong to one thread; writing has its own.

    Args:
        folder: of history.db; None keeps all in memory.
        keep_days: of the minutes.
        clock: seconds since the epoch; for tests.
    """

    def __init__(self, folder: Path | None, keep_days: int, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._keep = clock, keep_days * 86400
        self._file = None if folder is None else folder / "history.db"
        self._seconds: deque[tuple[int, bytes]] = deque()
        self._minutes: deque[tuple[int, bytes]] = deque()
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._lock = threading.Lock()  # guards `_waiting` and `_problem`
        self._waiting: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=SECONDS * 2)
        self._problem = ""
        self._set_aside: tuple[float, str] | None = None
        self._writer = ThreadPoolExecutor(1, "history")
        self._writing = False
        self._db: sqlite3.Connection | None = None
        self._opened = False  # the file was read, or can't be: from then on memory knows better
        self._held: int | None = None  # the lock of who writes
        # By span, so that any number of pages costs what one does: until when it is right (what it is of), and it.
        self._curves: dict[int, tuple[int, Curves]] = {}
        self._newest: dict[int, tuple[int, Curves]] = {}
        self._hold()
        self._writer.submit(self._open).result()
        self._complete_minutes()

    # -- writing

    def add(self, figures: Figures, at: float | None = None) -> None:
        """Keep the figures of now; the last ones of a second count."""
        t = int(self._clock() if at is None else at)
        last = self._seconds[-1][0] if self._seconds else 0
        if t < last - 5:  # the clock was set back: what was to be is forgotten
            self._cut(t)
        elif t < last:
            t = last
        packed = orjson.dumps({name: float(f"{value:.9g}") for name, value in figures.items()})
        if self._seconds and self._seconds[-1][0] == t:
            self._seconds[-1] = (t, packed)
        else:
            self._seconds.append((t, packed))
            if last and last // 60 < t // 60:
                self._hold()
                self._minute(last // 60 * 60)
                self._drop_old(t)
        self._write(("INSERT OR REPLACE INTO seconds VALUES (?, ?)", (t, packed)))

    def event(self, kind: str, component: str, text: str = "", *, at: float | None = None, **data: Any) -> None:
        """Note that something happened."""
        event = Event(self._clock() if at is None else at, kind, component, text[:2000], data)
        self._events.append(event)
        self._write(("INSERT INTO events (t, kind, component, text, data) VALUES (?, ?, ?, ?, ?)",
                     (event.t, kind, component, event.text, orjson.dumps(data))))

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._writer.submit(self._flush).result()
        self._writer.shutdown()
        if self._db is not None:
            self._db.close()
        if self._held is not None:
            os.close(self._held)

    # -- reading

    def curves(self, names: Sequence[str], span: int) -> Curves:
        """Figures of the last `span` seconds, in at most POINTS buckets, the running one last."""
        step = max(1, span // POINTS)
        now = int(self._clock())
        known = self._curves.get(span)
        if known is None or known[0] <= now or not known[1].times[0] < now:
            end = now // step * step + step
            begin = end - span // step * step
            known = (now + min(10, step), Curves(list(range(begin, end, step)), step, self._buckets(begin, end, step)))
            self._curves[span] = known
        found = known[1]
        nothing: list[float | None] = [None] * len(found.times)
        return Curves(list(found.times), step, {name: list(found.values.get(name, nothing)) for name in names})

    def newest(self, span: int) -> Curves:
        """The running bucket of `curves` with all figures, for a chart that has the others."""
        step, now = max(1, span // POINTS), int(self._clock())
        known = self._newest.get(span)
        if known is None or known[0] != now // max(1, step // 60):
            begin = now // step * step
            known = (now // max(1, step // 60), Curves([begin], step, self._buckets(begin, begin + step, step)))
            self._newest[span] = known
        return known[1]

    def latest(self, within: float = 10.0) -> Figures:
        """The newest figures, unless they are older than that."""
        if not self._seconds or self._seconds[-1][0] < self._clock() - within:
            return {}
        return dict(orjson.loads(self._seconds[-1][1]))

    def recent(self, seconds: float) -> list[tuple[int, Figures]]:
        """The figures of the last seconds, oldest first."""
        begin = self._clock() - seconds
        return [(t, orjson.loads(packed)) for t, packed in self._seconds if t >= begin]

    def events(self, limit: int = 50) -> list[Event]:
        """The newest events, newest first."""
        newest = list(self._events)[-limit:]
        return newest[::-1]

    def problems(self) -> list[tuple[str, dict[str, str]]]:
        """What is wrong with keeping it: keys of sentences in locale/ and their values."""
        with self._lock:
            found = [("history.not_written", {"why": self._problem})] if self._problem else []
            if self._set_aside is not None and self._clock() - self._set_aside[0] < _TOLD:
                found.append(("history.set_aside", {"file": self._set_aside[1]}))
        return found

    def _rows(self, begin: int) -> Iterable[tuple[int, bytes]]:
        """Rows since `begin` in the best resolution that goes back so far, and the seconds since the last minute."""
        if begin >= self._clock() - SECONDS:
            return list(self._seconds)
        newest = self._minutes[-1][0] + 60 if self._minutes else 0
        return [*self._minutes, *(row for row in self._seconds if row[0] >= newest)]

    def _buckets(self, begin: int, end: int, step: int) -> dict[str, list[float | None]]:
        """All figures by bucket."""
        rows = list(self._rows(begin))
        many = (end - begin) // step
        found: dict[str, list[float | None]] = {}
        spans: list[list[bytes]] = [[] for _ in range(many)]
        for t, packed in rows[bisect_left(rows, begin, key=lambda row: row[0]):]:
            if t >= end:
                break
            spans[(t - begin) // step].append(packed)
        for place, span in enumerate(spans):
            for name, value in _summed(span).items():
                found.setdefault(name, [None] * many)[place] = value
        return found

    # -- upkeep

    def _cut(self, t: int) -> None:
        for rows in (self._seconds, self._minutes):
            while rows and rows[-1][0] >= t:
                rows.pop()
        for table in ("seconds", "minutes"):
            self._write((f"DELETE FROM {table} WHERE t >= ?", (t,)))

    def _drop_old(self, now: int) -> None:
        for rows, table, keep in ((self._seconds, "seconds", SECONDS), (self._minutes, "minutes", self._keep)):
            while rows and rows[0][0] < now - keep:
                rows.popleft()
            self._write((f"DELETE FROM {table} WHERE t < ?", (now - keep,)))
        self._write(("DELETE FROM events WHERE id <= (SELECT MAX(id) FROM events) - ?", (EVENTS,)))

    def _minute(self, t: int) -> None:
        """Make the row of the minute that begins at `t`, from its seconds."""
        span: list[bytes] = []
        for second, packed in reversed(self._seconds):
            if second < t:
                break
            if second < t + 60:
                span.insert(0, packed)
        if span:
            row = (t, orjson.dumps({name: float(f"{value:.6g}") for name, value in _summed(span).items()}))
            self._minutes.append(row)
            self._write(("INSERT OR REPLACE INTO minutes VALUES (?, ?)", row))

    def _complete_minutes(self) -> None:
        """Make the minutes that a killed process left unmade."""
        newest = self._minutes[-1][0] if self._minutes else 0
        now = int(self._clock()) // 60 * 60
        for t in sorted({second // 60 * 60 for second, _ in self._seconds}):
            if newest < t < now:
                self._minute(t)

    def _hold(self) -> None:
        """Be the one who writes, unless another dashboard of this home is."""
        if self._file is None or self._held is not None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._file.with_name("lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            return  # nor can the history be written, which is told when it is tried
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = lock
        except OSError:
            os.close(lock)

    @property
    def _another(self) -> bool:
        """Another dashboard writes."""
        return self._held is None and self._file is not None and self._file.with_name("lock").exists()

    def _write(self, statement: tuple[str, tuple[Any, ...]]) -> None:
        if self._file is None or self._another:
            return
        with self._lock:
            self._waiting.append(statement)
            if self._writing:
                return
            self._writing = True
        self._writer.submit(self._flush)

    # -- on the writer's thread

    def _flush(self) -> None:
        with self._lock:
            self._writing = False
            batch = list(self._waiting)
            self._waiting.clear()
        if not batch or self._file is None:
            return
        try:
            if self._db is None:
                self._open()
            assert self._db is not None
            with self._db:
                for sql, values in batch:
                    self._db.execute(sql, values)
            problem = ""
        except (sqlite3.Error, OSError, AssertionError) as error:
            problem = str(error) or type(error).__name__
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                self._put_aside(problem)
            else:
                with self._lock:  # tried again with the next figures
                    self._waiting.extendleft(reversed(batch[-(SECONDS * 2 - len(self._waiting)):]))
        with self._lock:
            if problem and problem != self._problem:
                log.warning("the dashboard's history is kept in memory only: %s: %s", self._file, problem)
            self._problem = problem

    def _open(self) -> None:
        """Open the file and read it; one that is damaged is set aside."""
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._read()
        except sqlite3.OperationalError as error:
            self._failed(str(error))
        except (sqlite3.DatabaseError, orjson.JSONDecodeError) as error:
            self._put_aside(str(error))
        except OSError as error:
            self._failed(str(error))
        finally:
            self._opened = True

    def _failed(self, why: str) -> None:
        with self._lock:
            self._problem = why
        if self._db is not None:
            self._db.close()
            self._db = None

    def _read(self) -> None:
        assert self._file is not None
        db = sqlite3.connect(self._file, timeout=5, check_same_thread=False)
        self._db = db
        self._file.chmod(0o600)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(_SCHEMA)
        if (db.execute("PRAGMA quick_check(1)").fetchone() or ("",))[0] != "ok":
            raise sqlite3.DatabaseError("the file is damaged")
        if self._opened:
            return
        now = self._clock()
        for rows, table, keep in ((self._seconds, "seconds", SECONDS), (self._minutes, "minutes", self._keep)):
            for t, packed in db.execute(f"SELECT t, figures FROM {table} WHERE t >= ? AND t <= ? ORDER BY t",
                                        (int(now - keep), int(now) + 5)):
                if not isinstance(orjson.loads(packed), dict):
                    raise sqlite3.DatabaseError("a row is damaged")
                rows.append((t, packed))
        self._events.extend(
            Event(t, kind, component, text, orjson.loads(data)) for t, kind, component, text, data in
            reversed(db.execute("SELECT t, kind, component, text, data FROM events ORDER BY id DESC LIMIT ?",
                                (EVENTS,)).fetchall()))

    def _put_aside(self, why: str) -> None:
        assert self._file is not None
        if self._another:  # whose file it is
            self._failed(why)
            return
        if self._db is not None:
            self._db.close()
            self._db = None
        aside = self._file.with_name(f"history.db.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        log.error("the dashboard's history %s is damaged (%s): moved to %s", self._file, why, aside)
        try:
            for suffix in ("-wal", "-shm"):
                self._file.with_name(self._file.name + suffix).unlink(missing_ok=True)
            self._file.rename(aside)
            self._set_aside = (self._clock(), str(aside))
            if not self._opened:  # what was read of it
                self._seconds.clear()
                self._minutes.clear()
            self._read()
            if self._opened and self._db is not None:  # what was lost is in memory still
                with self._db:
                    for rows, table in ((self._seconds, "seconds"), (self._minutes, "minutes")):
                        self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", list(rows))
                    self._db.executemany(
                        "INSERT INTO events (t, kind, component, text, data) VALUES (?, ?, ?, ?, ?)",
                        [(one.t, one.kind, one.component, one.text, orjson.dumps(one.data))
                         for one in list(self._events)])
        except (OSError, sqlite3.Error) as error:
            self._failed(str(error))


@lru_cache(1000)
def _how(name: str) -> str:
    return "last" if _LAST.fullmatch(name) else "most" if _MOST.fullmatch(name) else "mean"


def _summed(rows: Sequence[bytes]) -> Figures:
    """Rows, oldest first, as one."""
    sums: dict[str, tuple[float, int]] = {}
    for packed in rows:
        for name, value in orjson.loads(packed).items():
            total, count = sums.get(name, (0.0, 0))
            how = _how(name)
            if how == "mean":
                sums[name] = (total + value, count + 1)
            else:
                sums[name] = (value if how == "last" or not count else max(total, value), 1)
    return {name: total / count for name, (total, count) in sums.items()}
