"""Broadcast of what happens in the trainer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import trainer_pb2

Kind = trainer_pb2.TrainingEventKind

#: Events kept for a slow subscriber; beyond these its oldest are left out.
_BACKLOG = 256


class Events:
    """Sends each event to every subscriber. Used on the event loop only."""

    def __init__(self) -> None:
        self._subscribers: set[asyncio.Queue[trainer_pb2.WatchTrainingResponse]] = set()

    def tell(self, kind: Kind.ValueType, message: str, *, version: int | None = None,
             turn_ids: Sequence[str] = (), metrics: dict[str, float] | None = None) -> None:
        """Send an event to all subscribers; never waits."""
        event = trainer_pb2.WatchTrainingResponse(kind=kind, version=version, metrics=metrics or {},
                                                  turn_ids=turn_ids, message=message, at=now())
        for queue in self._subscribers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    async def watch(self) -> AsyncIterator[trainer_pb2.WatchTrainingResponse]:
        """Yield the events from now on."""
        queue: asyncio.Queue[trainer_pb2.WatchTrainingResponse] = asyncio.Queue(_BACKLOG)
        self._subscribers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._subscribers.discard(queue)
