"""Tells each judgement to everybody who watches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from openclaw_rl.v1 import turn_pb2

#: Judgements kept for a watcher that reads slowly; then it misses the oldest.
BACKLOG = 1000


class Broadcast:
    """Judgements to watchers, none of which can slow the judge down. For one event loop."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._backlog = backlog
        self._watchers: dict[_Watcher, str] = {}

    def tell(self, session_id: str, judgement: turn_pb2.Judgement) -> None:
        """Hand a judgement to the watchers of all sessions and of this one."""
        for watcher, wanted in self._watchers.items():
            if wanted in ("", session_id):
                watcher.add(session_id, judgement)

    async def watch(self, session_id: str = "") -> AsyncIterator[tuple[str, turn_pb2.Judgement]]:
        """Session and judgement of each that is made from now on; all of them, or those of one session."""
        watcher = _Watcher(self._backlog)
        self._watchers[watcher] = session_id
        try:
            while True:
                yield await watcher.next()
        finally:
            del self._watchers[watcher]


class _Watcher:
    def __init__(self, backlog: int) -> None:
        self._items: deque[tuple[str, turn_pb2.Judgement]] = deque(maxlen=backlog)
        self._there = asyncio.Event()

    def add(self, session_id: str, judgement: turn_pb2.Judgement) -> None:
        self._items.append((session_id, judgement))
        self._there.set()

    async def next(self) -> tuple[str, turn_pb2.Judgement]:
        while not self._items:
            self._there.clear()
            await self._there.wait()
        return self._items.popleft()
