"""Event rates."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateMeter:
    """Events per second over the last ten seconds, in constant space."""

    _SPAN = 10

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._buckets = [0] * self._SPAN
        self._seconds = [-1] * self._SPAN  # the second that each bucket counts

    def tick(self) -> None:
        """Count an event."""
        second = int(self._clock())
        slot = second % self._SPAN
        if self._seconds[slot] != second:
            self._seconds[slot], self._buckets[slot] = second, 0
        self._buckets[slot] += 1

    def rate(self) -> float:
        """Events per second."""
        now = self._clock()
        fresh = sum(count for count, second in zip(self._buckets, self._seconds, strict=True)
                    if second > int(now) - self._SPAN)
        return fresh / min(self._SPAN, max(1.0, now - self._began))
