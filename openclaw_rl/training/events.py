"""What happens in the trainer, for those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import trainer_pb2

Kind = trainer_pb2.TrainingEventKind

#: Events kept for a watcher that reads slowly; then its oldest are left out.
_BACKLOG = 256


class Events:
    """Tells every watcher each event. Used on the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[trainer_pb2.WatchTrainingResponse]] = set()

    def tell(self, kind: Kind.ValueType, message: str, *, version: int | None = None,
             turn_ids: Sequence[str] = (), metrics: dict[str, float] | None = None) -> None:
        """Tell all watchers; never waits."""
        event = trainer_pb2.WatchTrainingResponse(kind=kind, version=version, metrics=metrics or {},
                                                  turn_ids=turn_ids, message=message, at=now())
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    async def watch(self) -> AsyncIterator[trainer_pb2.WatchTrainingResponse]:
        """Events from now on."""
        queue: asyncio.Queue[trainer_pb2.WatchTrainingResponse] = asyncio.Queue(_BACKLOG)
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)
