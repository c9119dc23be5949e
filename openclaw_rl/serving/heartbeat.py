"""Heartbeats that keep sessions from timing out while a response is generated, however long that takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.rpc.messages import new_id, now
from openclaw_rl.serving.event_recorder import TurnRecorder
from openclaw_rl.v1 import turn_pb2

#: Heartbeats of a session within its time-out.
_PER_TIMEOUT = 4


class SessionHeartbeat:
    """Tells the environment server which sessions have a response in progress.

    Args:
        session_timeout: seconds after which an idle session ends.
    """

    def __init__(self, recorder: TurnRecorder, session_timeout: float) -> None:
        self._recorder, self._interval = recorder, session_timeout / _PER_TIMEOUT
        self._last: dict[int, tuple[str, float]] = {}  # response -> session, monotonic time of its last heartbeat
        self._count = 0

    @contextmanager
    def during(self, session: str) -> Iterator[None]:
        """Send heartbeats for a session while the context lasts."""
        self._count += 1
        response = self._count
        self._last[response] = session, time.monotonic()
        try:
            yield
        finally:
            del self._last[response]

    def send_due(self, moment: float) -> int:
        """Send the heartbeats that are due at `moment` of the monotonic clock; returns how many."""
        due: dict[str, list[int]] = {}
        for response, (session, last) in self._last.items():
            if moment - last >= self._interval:
                due.setdefault(session, []).append(response)
        for session, responses in due.items():
            self._last.update((response, (session, moment)) for response in responses)
            self._recorder.session_active(turn_pb2.SessionActive(event_id=new_id("active_"), session_id=session,
                                                                 active_at=now()))
        return len(due)

    async def run(self) -> None:
        """Send heartbeats in time. Never returns."""
        while True:
            await asyncio.sleep(self._interval / 2)
            self.send_due(time.monotonic())
