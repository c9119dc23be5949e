"""Time series of figures in memory: each second of the last hour, each minute of the last days.

A row is a point in time with all figures of it as JSON, `{"policy.qps": 1.5, ...}`. A bucket of several rows has the
mean of each figure, except for the last value where values hold until the next one (_LAST), and the largest where they
are high percentiles (_MOST). A time without a row is a gap: nobody recorded.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import orjson

#: Seconds of which every one is kept.
SECONDS = 3700
#: Points that one chart has at most.
POINTS = 180
#: Seconds by which the clock may go back before rows are dropped.
_CLOCK_SLACK = 5

#: Figures of which a bucket has the last value, and those of which it has the largest; all others have their mean.
_LAST = re.compile(r"version|up\..*|trainer\.(loss|kl|grad_norm|staleness|updates_h|training|paused)|judge\.count\..*")
_MOST = re.compile(r"policy\.(p|first)9[59]")

Figures = dict[str, float]
#: Seconds since the epoch, and the figures as JSON.
Row = tuple[int, bytes]
Resolution = Literal["seconds", "minutes"]


class RowStore(Protocol):
    """Persistent storage of rows. None of its methods waits."""

    def put(self, resolution: Resolution, row: Row) -> None:
        """Keep a row in place of the one of its time."""

    def delete_since(self, resolution: Resolution, t: int) -> None:
        """Delete the rows of `t` and later."""

    def delete_before(self, resolution: Resolution, t: int) -> None:
        """Delete the rows before `t`."""


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


class Series:
    """Rows of figures. Belongs to one thread.

    Args:
        store: receives each change.
        keep: seconds of which minutes are kept.
        clock: seconds since the epoch.
    """

    def __init__(self, store: RowStore, keep: int, clock: Callable[[], float] = time.time) -> None:
        self.seconds: deque[Row] = deque()
        self.minutes: deque[Row] = deque()
        self._store, self._keep, self._clock = store, keep, clock
        # By span, so that any number of pages costs what one does: until when it is right (what it is of), and it.
        self._curves: dict[int, tuple[int, Curves]] = {}
        self._newest: dict[int, tuple[int, Curves]] = {}

    def restore(self, seconds: Iterable[Row], minutes: Iterable[Row]) -> None:
        """Begin with rows of an earlier process, oldest first; make the minutes that it could not make any more."""
        self.seconds.extend(seconds)
        self.minutes.extend(minutes)
        newest = self.minutes[-1][0] if self.minutes else 0
        now = int(self._clock()) // 60 * 60
        for t in sorted({second // 60 * 60 for second, _ in self.seconds}):
            if newest < t < now:
                self._make_minute(t)

    def add(self, figures: Figures, at: float | None = None) -> None:
        """Keep the figures of now; the last ones of a second count."""
        t = int(self._clock() if at is None else at)
        last = self.seconds[-1][0] if self.seconds else 0
        if t < last - _CLOCK_SLACK:  # the clock was set back: what was to be is forgotten
            self._cut(t)
        elif t < last:
            t = last
        row = (t, orjson.dumps({name: float(f"{value:.9g}") for name, value in figures.items()}))
        if self.seconds and self.seconds[-1][0] == t:
            self.seconds[-1] = row
        else:
            self.seconds.append(row)
            if last and last // 60 < t // 60:
                self._make_minute(last // 60 * 60)
                self._drop_old(t)
        self._store.put("seconds", row)

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
        """The newest figures, unless they are older than that many seconds."""
        if not self.seconds or self.seconds[-1][0] < self._clock() - within:
            return {}
        return dict(orjson.loads(self.seconds[-1][1]))

    def recent(self, seconds: float) -> list[tuple[int, Figures]]:
        """The figures of the last seconds, oldest first."""
        begin = self._clock() - seconds
        return [(t, orjson.loads(packed)) for t, packed in self.seconds if t >= begin]

    def _rows(self, begin: int) -> Iterable[Row]:
        """Rows since `begin` in the best resolution that goes back so far, and the seconds since the last minute."""
        if begin >= self._clock() - SECONDS:
            return list(self.seconds)
        newest = self.minutes[-1][0] + 60 if self.minutes else 0
        return [*self.minutes, *(row for row in self.seconds if row[0] >= newest)]

    def _buckets(self, begin: int, end: int, step: int) -> dict[str, list[float | None]]:
        """All figures by bucket."""
        rows = list(self._rows(begin))
        many = (end - begin) // step
        found: dict[str, list[float | None]] = {}
        buckets: list[list[bytes]] = [[] for _ in range(many)]
        for t, packed in rows[bisect_left(rows, begin, key=lambda row: row[0]):]:
            if t >= end:
                break
            buckets[(t - begin) // step].append(packed)
        for place, bucket in enumerate(buckets):
            for name, value in _combined(bucket).items():
                found.setdefault(name, [None] * many)[place] = value
        return found

    def _cut(self, t: int) -> None:
        for rows in (self.seconds, self.minutes):
            while rows and rows[-1][0] >= t:
                rows.pop()
        self._store.delete_since("seconds", t)
        self._store.delete_since("minutes", t)

    def _drop_old(self, now: int) -> None:
        for rows, keep in ((self.seconds, SECONDS), (self.minutes, self._keep)):
            while rows and rows[0][0] < now - keep:
                rows.popleft()
        self._store.delete_before("seconds", now - SECONDS)
        self._store.delete_before("minutes", now - self._keep)

    def _make_minute(self, t: int) -> None:
        """Make the row of the minute that begins at `t`, from its seconds."""
        minute: list[bytes] = []
        for second, packed in reversed(self.seconds):
            if second < t:
                break
            if second < t + 60:
                minute.insert(0, packed)
        if minute:
            row = (t, orjson.dumps({name: float(f"{value:.6g}") for name, value in _combined(minute).items()}))
            self.minutes.append(row)
            self._store.put("minutes", row)


@lru_cache(maxsize=1000)
def _rule(name: str) -> Literal["last", "most", "mean"]:
    return "last" if _LAST.fullmatch(name) else "most" if _MOST.fullmatch(name) else "mean"


def _combined(rows: Sequence[bytes]) -> Figures:
    """Rows, oldest first, as one."""
    sums: dict[str, tuple[float, int]] = {}
    for packed in rows:
        for name, value in orjson.loads(packed).items():
            total, count = sums.get(name, (0.0, 0))
            rule = _rule(name)
            if rule == "mean":
                sums[name] = (total + value, count + 1)
            else:
                sums[name] = (value if rule == "last" or not count else max(total, value), 1)
    return {name: total / count for name, (total, count) in sums.items()}
