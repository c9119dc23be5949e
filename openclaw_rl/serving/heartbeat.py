"""Sessions are not idle while a response is being made, however long it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.rpc.messages import new_id, now
from openclaw_rl.serving.event_recorder import TurnRecorder
from openclaw_rl.v1 import turn_pb2

#: So often a session is told to be active within its time-out.
_TIMES = 4


class SessionHeartbeat:
    """Tells the environment server of sessions with a response under way, so that the turn before does not time out."""

    def __init__(self, recorder: TurnRecorder, session_timeout: float) -> None:
        """Args: session_timeout: seconds after which an idle session ends."""
        self._recorder, self._interval = recorder, session_timeout / _TIMES
        self._since: dict[int, tuple[str, float]] = {}  # number of a response -> session, when it was told last
        self._number = 0

    @contextmanager
    def of(self, session: str) -> Iterator[None]:
        """A response of the session is being made."""
        self._number += 1
        number = self._number
        self._since[number] = session, time.monotonic()
        try:
            yield
        finally:
            del self._since[number]

    def tell(self, moment: float) -> int:
        """Tell of the sessions that were not told of for a while, at `moment` of the monotonic clock; their number."""
        due: dict[str, list[int]] = {}
        for number, (session, since) in self._since.items():
            if moment - since >= self._interval:
                due.setdefault(session, []).append(number)
        for session, numbers in due.items():
            self._since.update((number, (session, moment)) for number in numbers)
            self._recorder.session_active(turn_pb2.SessionActive(event_id=new_id("active_"), session_id=session,
                                                                 active_at=now()))
        return len(due)

    async def run(self) -> None:
        """Tell in time. Never returns."""
        while True:
            await asyncio.sleep(self._interval / 2)
            self.tell(time.monotonic())
