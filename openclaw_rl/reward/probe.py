"""Health probe of the judge: one vote at the start, repeated while the judge does not work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from openclaw_rl.reward.panel import Panel
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)

#: Seconds between two votes while the judge does not work.
RETRY_SECONDS = 60.0


class Probe:
    """Lets the panel's judge vote on a known transition.

    Attributes:
        done: the first vote is in.
        problem: why the judge does not work, for a person; empty if it works.
        outage: it does not work for a reason that may pass, so that waiting makes sense; true until the first vote.
    """

    def __init__(self, panel: Panel, on_change: Callable[[], None], retry_seconds: float = RETRY_SECONDS) -> None:
        """`on_change` is called after each vote."""
        self.done = False
        self.problem = ""
        self.outage = True
        self._panel, self._on_change, self._retry = panel, on_change, retry_seconds
        self._recheck = asyncio.Event()
        self._lock = asyncio.Lock()
        self._last = self._next = 0.0  # time.monotonic()

    @property
    def next_try_in(self) -> float:
        """Seconds until the next vote while the judge does not work."""
        return max(0.0, self._next - time.monotonic())

    async def run(self) -> None:
        """Vote at once, and repeatedly while the judge does not work. Never returns."""
        while True:
            self._recheck.clear()
            await self._vote()
            if self.problem:
                self._next = time.monotonic() + self._retry
                await asyncio.sleep(self._retry)
            else:
                await self._recheck.wait()

    async def recheck(self) -> bool:
        """Find out, after a failed vote, whether the judge still works. Concurrent callers share one vote."""
        started = time.monotonic()
        async with self._lock:
            if self.problem or self._last > started:
                return not self.problem
        await self._vote()
        if self.problem:
            self._recheck.set()
        return not self.problem

    async def _vote(self) -> None:
        async with self._lock:
            vote, self.outage = await self._panel.vote(known_transition())
            self._last = time.monotonic()
            before, self.problem = self.problem, vote.error
            first, self.done = not self.done, True
        if self.problem and self.problem != before:
            logger.warning("judge %s does not work: %s", self._panel.judge.name, self.problem)
        elif not self.problem and (first or before):
            logger.info("judge %s works: the probe voted %+d in %.0f ms", self._panel.judge.name, vote.score,
                        vote.duration_ms)
        self._on_change()


def known_transition() -> turn_pb2.Transition:
    """A transition that any judge should find good."""
    message = turn_pb2.ChatMessage
    return turn_pb2.Transition(
        turn=turn_pb2.Turn(turn_id="probe", turn_class=turn_pb2.TURN_CLASS_MAIN,
                           messages=[message(role="user", content="What is the capital of France?")],
                           response=message(role="assistant", content="Paris.")),
        next_state=turn_pb2.NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED,
                                      messages=[message(role="user", content="Thanks, that's right!")]))
