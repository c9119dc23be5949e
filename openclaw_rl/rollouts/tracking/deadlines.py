"""Deadlines of idle sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Deadlines:
    """One deadline for each open session, `timeout` seconds after its last activity.

    Times are the caller's, in seconds of a monotonic clock, so that setting the clock does not end every session.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._ends: OrderedDict[str, float] = OrderedDict()  # ascending by deadline

    def __len__(self) -> int:
        return len(self._ends)

    def restore(self, idle: Iterable[tuple[str, float]], now: float, grace: float) -> None:
        """Take over sessions of an earlier run: (session, seconds since it was active).

        None ends before `grace` seconds have passed: events may still be in transit. A negative idle time (the clock
        was set back) counts as 0.
        """
        grace = min(grace, self._timeout)
        ends = [(now + max(self._timeout - max(seconds, 0.0), grace), session) for session, seconds in idle]
        self._ends.update((session, end) for end, session in sorted(ends))

    def touch(self, session: str, now: float) -> None:
        """Note activity in a session."""
        self._ends[session] = now + self._timeout
        self._ends.move_to_end(session)

    def drop(self, session: str) -> None:
        """Remove a session that has ended."""
        self._ends.pop(session, None)

    def due(self, now: float, limit: int) -> list[str]:
        """List at most `limit` sessions whose deadline has passed, the longest overdue first."""
        found: list[str] = []
        for session, end in self._ends.items():
            if end > now or len(found) == limit:
                break
            found.append(session)
        return found
