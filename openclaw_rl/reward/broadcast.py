"""Broadcast of judgements to subscribers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from openclaw_rl.v1 import turn_pb2

#: Judgements buffered for a slow subscriber; beyond these it misses the oldest.
BACKLOG = 1000


class Broadcast:
    """Hands judgements to subscribers, none of which can slow the judge down. For one event loop."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._backlog = backlog
        self._subscribers: dict[_Subscriber, str] = {}

    def publish(self, session_id: str, judgement: turn_pb2.Judgement) -> None:
        """Hand a judgement to the subscribers of all sessions and of this one."""
        for subscriber, wanted in self._subscribers.items():
            if wanted in ("", session_id):
                subscriber.add(session_id, judgement)

    async def subscribe(self, session_id: str = "") -> AsyncGenerator[tuple[str, turn_pb2.Judgement], None]:
        """Iterate over the judgements made from now on, with their sessions: all, or those of one session."""
        subscriber = _Subscriber(self._backlog)
        self._subscribers[subscriber] = session_id
        try:
            while True:
                yield await subscriber.next()
        finally:
            del self._subscribers[subscriber]


class _Subscriber:
    def __init__(self, backlog: int) -> None:
        self._items: deque[tuple[str, turn_pb2.Judgement]] = deque(maxlen=backlog)
        self._available = asyncio.Event()

    def add(self, session_id: str, judgement: turn_pb2.Judgement) -> None:
        self._items.append((session_id, judgement))
        self._available.set()

    async def next(self) -> tuple[str, turn_pb2.Judgement]:
        while not self._items:
            self._available.clear()
            await self._available.wait()
        return self._items.popleft()
