"""Growing pauses between attempts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import RetryCallState

#: Seconds after which a stream was a good one: when it breaks, the pauses begin anew.
LASTED = 10.0


class Backoff:
    """Pauses that double from one failure to the next, with some jitter.

    A waiting strategy for tenacity, which isn't loaded here. Where no loop of tenacity fits, such as in a generator or
    in a thread that waits for other things too, ask `next` for each pause.

    Args:
        first, longest: seconds of the first pause and of the longest one.

    Attributes:
        failures: the pauses since the last reset.
    """

    def __init__(self, first: float = 0.1, longest: float = 5.0) -> None:
        self._first, self._longest = first, longest
        self.failures = 0

    def reset(self) -> None:
        """Begin with the first pause again."""
        self.failures = 0

    def next(self, at_least: float | None = None) -> float:
        """Seconds to wait after one more failure.

        Args:
            at_least: seconds that the other side asked for; more than the longest pause is not granted.
        """
        pause = min(self._first * 2.0 ** min(self.failures, 30), self._longest)
        self.failures += 1
        return max(pause, min(at_least or 0.0, self._longest)) * random.uniform(1.0, 1.2)

    def __call__(self, retry_state: RetryCallState) -> float:
        """The pause after tenacity's failed attempt; an error's `retry_after` is respected."""
        error = retry_state.outcome.exception() if retry_state.outcome else None
        return self.next(getattr(error, "retry_after", None))
