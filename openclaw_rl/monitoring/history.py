"""The history of a mesh: figures of the last hour and days, and events. Read from memory, kept in a file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.monitoring.history_file import EVENTS, Contents, Event, HistoryFile
from openclaw_rl.monitoring.series import Figures, Resolution, Row, Series

#: Seconds of rows that are written by whoever takes the file over: others may have ended before they wrote them.
_TAKE_OVER = 120


class History:
    """See the module. Belongs to one thread; writing has its own.

    Args:
        folder: of history.db; None keeps all in memory.
        keep_days: of the minutes.
        clock: seconds since the epoch; for tests.
        lock: see `history_file.acquire_lock`.
    """

    def __init__(self, folder: Path | None, keep_days: int, clock: Callable[[], float] = time.time,
                 lock: int | None = None) -> None:
        self._clock = clock
        self._minute = 0
        self._events: deque[Event] = deque(maxlen=EVENTS)
        keep = keep_days * 86400
        self.file = None if folder is None else HistoryFile(folder, keep, self._contents, clock, lock)
        self.series = Series(self.file or _Nowhere(), keep, clock)
        found = Contents() if self.file is None else self.file.load()
        self._events.extend(found.events)
        self.series.restore(found.seconds, found.minutes)

    def add(self, figures: Figures, at: float | None = None) -> None:
        """Keep the figures of now; the last ones of a second count."""
        minute = int(self._clock() if at is None else at) // 60
        if self.file is not None and minute != self._minute:
            self._minute = minute
            if self.file.take_over():
                self._write_recent(self.file)
        self.series.add(figures, at)

    def event(self, kind: str, component: str, text: str = "", *, at: float | None = None, **data: Any) -> None:
        """Note that something happened."""
        event = Event(self._clock() if at is None else at, kind, component, text[:2000], data)
        self._events.append(event)
        if self.file is not None:
            self.file.put_event(event)

    def events(self, limit: int = 50) -> list[Event]:
        """The newest events, newest first."""
        return list(self._events)[-limit:][::-1]

    def problems(self) -> list[tuple[str, dict[str, str]]]:
        """Return problems of the file: keys of sentences in the dashboard's locale/ and their values."""
        return [] if self.file is None else self.file.problems()

    def close(self) -> None:
        """Write what waits, and close the file. Blocks."""
        if self.file is not None:
            self.file.close()

    def _contents(self) -> Contents:
        return Contents(list(self.series.seconds), list(self.series.minutes), list(self._events))

    def _write_recent(self, file: HistoryFile) -> None:
        begin = int(self._clock()) - _TAKE_OVER
        rows: tuple[tuple[Resolution, list[Row]], ...] = (("seconds", list(self.series.seconds)),
                                                          ("minutes", list(self.series.minutes)))
        for resolution, kept in rows:
            for row in kept:
                if row[0] >= begin:
                    file.put(resolution, row)


class _Nowhere:
    """A store that keeps nothing."""

    def put(self, resolution: Resolution, row: Row) -> None: ...

    def delete_since(self, resolution: Resolution, t: int) -> None: ...

    def delete_before(self, resolution: Resolution, t: int) -> None: ...
