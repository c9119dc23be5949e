"""Latency percentiles over the last minute, in constant space."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable

#: Range of the histogram, seconds.
_LEAST, _MOST = 0.001, 1200.0
#: Ratio of a bucket's bounds: results are at most 2 % off.
_GROWTH = 1.02
_BUCKETS = math.ceil(math.log(_MOST / _LEAST, _GROWTH)) + 1


class Percentiles:
    """A histogram of the last minute, with buckets of equal ratio.

    Twelve slots of five seconds cover the last 55 to 60 seconds in 68 kB, however many times are recorded.

    Args:
        clock: seconds; for tests.
    """

    _SLOTS, _SECONDS = 12, 5

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = [array("L", bytes(array("L").itemsize * _BUCKETS)) for _ in range(self._SLOTS)]
        self._which = [-1] * self._SLOTS  # the five-second interval that each slot counts

    def record(self, seconds: float) -> None:
        """Record a time."""
        which = int(self._clock() / self._SECONDS)
        slot = which % self._SLOTS
        if self._which[slot] != which:
            self._which[slot] = which
            self._counts[slot] = array("L", bytes(self._counts[slot].itemsize * _BUCKETS))
        bounded = min(max(seconds, _LEAST), _MOST)
        self._counts[slot][min(_BUCKETS - 1, int(math.log(bounded / _LEAST, _GROWTH)))] += 1

    def at(self, *quantiles: float) -> list[float] | None:
        """Return the quantiles (0 to 1) of the recorded times, in seconds; None without any."""
        fresh = int(self._clock() / self._SECONDS) - self._SLOTS
        live = [counts for counts, which in zip(self._counts, self._which, strict=True) if which > fresh]
        total = [sum(column) for column in zip(*live, strict=True)] if live else []
        many = sum(total)
        return [self._quantile(total, many, q) for q in quantiles] if many else None

    def _quantile(self, total: list[int], many: int, share: float) -> float:
        rank, seen = max(1, math.ceil(share * many)), 0
        for bucket, count in enumerate(total):
            seen += count
            if seen >= rank:
                return float(_LEAST * _GROWTH ** (bucket + 0.5))
        raise AssertionError("unreachable: the ranks are within the total")


class Latency:
    """Latency of live requests: to the first token, and to the end. Background requests do not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._first = Percentiles(clock), Percentiles(clock)

    def ended(self, seconds: float, first_token: float | None) -> None:
        """Record a completed response.

        Args:
            seconds: from the request to its end.
            first_token: from the request to its first token; None when it had none.
        """
        self._total.record(seconds)
        if first_token is not None:
            self._first.record(first_token)

    def gauges(self) -> dict[str, float]:
        """`latency_p50_ms` and so on; empty while no response was completed in the last minute."""
        found: dict[str, float] = {}
        for name, recorded in (("latency", self._total), ("first_token", self._first)):
            for share, seconds in zip((50, 95, 99), recorded.at(.5, .95, .99) or (), strict=False):
                found[f"{name}_p{share}_ms"] = seconds * 1000
        return found
