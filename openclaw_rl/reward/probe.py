"""One vote at the start that tells whether the judge works at all, and again while it does not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from openclaw_rl.reward.panel import Panel
from openclaw_rl.v1 import turn_pb2

log = logging.getLogger(__name__)

#: Seconds between two tries while the judge does not work.
RETRY_SECONDS = 60.0


class Canary:
    """Asks the panel's judge to judge a known transition.

    Attributes:
        asked: The first vote is in.
        problem: Why the judge does not work, for a person; empty when it works.
        outage: It does not work for a reason that may pass, so that waiting makes sense; true until the first vote.
    """

    def __init__(self, panel: Panel, on_change: Callable[[], None], retry_seconds: float = RETRY_SECONDS) -> None:
        """`on_change` is called after each vote."""
        self.asked = False
        self.problem = ""
        self.outage = True
        self._panel, self._on_change, self._retry = panel, on_change, retry_seconds
        self._doubt = asyncio.Event()
        self._lock = asyncio.Lock()
        self._last = self._next = 0.0  # time.monotonic()

    @property
    def next_try_in(self) -> float:
        """Seconds until the next vote while the judge does not work."""
        return max(0.0, self._next - time.monotonic())

    async def run(self) -> None:
        """Ask at once, and again and again while the judge does not work. Never returns."""
        while True:
            self._doubt.clear()
            await self._ask()
            if self.problem:
                self._next = time.monotonic() + self._retry
                await asyncio.sleep(self._retry)
            else:
                await self._doubt.wait()

    async def doubt(self) -> bool:
        """A vote failed: does the judge still work? Asked by many workers at once, it costs one vote."""
        started = time.monotonic()
        async with self._lock:
            if self.problem or self._last > started:
                return not self.problem
        await self._ask()
        if self.problem:
            self._doubt.set()
        return not self.problem

    async def _ask(self) -> None:
        async with self._lock:
            vote, self.outage = await self._panel.vote(canary())
            self._last = time.monotonic()
            before, self.problem = self.problem, vote.error
            first, self.asked = not self.asked, True
        if self.problem and self.problem != before:
            log.warning("judge %s does not work: %s", self._panel.judge.name, self.problem)
        elif not self.problem and (first or before):
            log.info("judge %s works: the canary's vote was %+d in %.0f ms", self._panel.judge.name, vote.score,
                     vote.duration_ms)
        self._on_change()


def canary() -> turn_pb2.Transition:
    """A transition that any judge should find good."""
    message = turn_pb2.ChatMessage
    return turn_pb2.Transition(
        turn=turn_pb2.Turn(turn_id="canary", turn_class=turn_pb2.TURN_CLASS_MAIN,
                           messages=[message(role="user", content="What is the capital of France?")],
                           response=message(role="assistant", content="Paris.")),
        next_state=turn_pb2.NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED,
                                      messages=[message(role="user", content="Thanks, that's right!")]))
