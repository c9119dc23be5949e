"""Alarms of the judge; README.md lists them."""

from __future__ import annotations

import time
from collections import deque

from openclaw_rl.runtime.alarms import Raised, duration

#: Newest judgements counted, and the least number that means something.
WINDOW, ENOUGH = 50, 20
#: Share of them that may fail.
MOST_FAILED = 0.5
#: Seconds that a transition may wait for its judgement.
WAITING_SECONDS = 300.0


class FailedShare:
    """Share of the newest judgements that failed, and the reason of the last failure."""

    def __init__(self) -> None:
        self._failed: deque[bool] = deque(maxlen=WINDOW)
        self._reason = ""

    def record(self, failed: bool, reason: str = "") -> None:
        """Count a judgement."""
        self._failed.append(failed)
        self._reason = reason or self._reason

    @property
    def alarm(self) -> Raised:
        """Has no message while the share is small."""
        seen, failed = len(self._failed), sum(self._failed)
        bad = seen >= ENOUGH and failed > MOST_FAILED * seen
        return "judgements_failed", bad * (
            f"{failed} of the last {seen} judgements failed, and nothing is learned from those turns: {self._reason}; "
            "check components.prm_judge (model, key, vote_timeout)")


def waiting_alarm(waiting: int, oldest: float | None, workers: int) -> Raised:
    """Alarm for a long wait.

    Args:
        oldest: arrival of the transition that has waited longest, in seconds since the epoch.
    """
    waited = time.time() - oldest if oldest is not None else 0.0
    return "transitions_waiting", (waited > WAITING_SECONDS) * (
        f"{waiting} turns wait to be judged, the oldest for {duration(waited)}: the judge does not work or is too "
        f"slow; raise components.prm_judge.workers (now {workers}), or lower votes")
