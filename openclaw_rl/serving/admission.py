"""Admission to the engine: fair among clients, live requests before the background."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from openclaw_rl.rpc import errors

#: Seconds after its last request for which a client counts as active.
_ACTIVE_SECONDS = 60.0


class FairQueue:
    """Hands out the engine's slots, with a queue for each client.

    A free slot goes to the waiting client with the fewest running responses; among equals, to the one served least
    recently. While several clients are active, none gets the last quarter of the slots, so that a newcomer need not
    wait for somebody else's response to end. A single active client may use all of them.

    Background requests (episodes, batches) get a slot only when no live request waits for it, and never the last
    quarter of the slots while a live client is active; otherwise they may use all. They have a queue of their own, so
    that neither kind fills the other's. They may use an engine with a single slot while no live request waits.

    Args:
        slots: responses that the engine generates at the same time.
        waiting: live requests that may wait, and as many background ones; further ones are refused.
        clock: seconds; for tests.
    """

    def __init__(self, slots: int, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots, self._waiting, self._clock = slots, waiting, clock
        self._reserved = max(1, slots // 4)
        self._live, self._background = _Lane(), _Lane()
        self._seen: OrderedDict[str, float] = OrderedDict()  # live clients by their last request, the oldest first

    @property
    def waiting(self) -> int:
        """Live requests that wait for a slot."""
        return self._live.waiting

    @property
    def background_waiting(self) -> int:
        """Background requests that wait for a slot."""
        return self._background.waiting

    @asynccontextmanager
    async def slot(self, client: str, background: bool = False) -> AsyncIterator[None]:
        """Wait for a slot and hold it.

        Args:
            background: live requests come first.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, too many requests wait already.
        """
        lane = self._background if background else self._live
        if not background:
            self._note(client)
        if not self._free(lane, client) or client in lane.queues:
            await self._wait(lane, client)
        else:
            lane.running[client] += 1
        try:
            yield
        finally:
            self._leave(lane, client)

    def _note(self, client: str) -> None:
        self._seen[client] = self._clock()
        self._seen.move_to_end(client)

    def _active(self) -> int:
        """The number of active live clients."""
        border = self._clock() - _ACTIVE_SECONDS
        while self._seen and next(iter(self._seen.values())) < border:
            self._seen.popitem(last=False)
        return len(self._seen)

    def _free(self, lane: _Lane, client: str) -> bool:
        """Whether there is a slot that this client may take."""
        live, background = self._live.running.total(), self._background.running.total()
        if live + background >= self._slots:
            return False
        shared = max(1, self._slots - self._reserved)  # without the quarter that is reserved for others
        if lane is self._live:
            return lane.running[client] < (self._slots if self._active() <= 1 else shared)
        return not self._live.queues and background < (shared if live or self._active() else self._slots)

    async def _wait(self, lane: _Lane, client: str) -> None:
        if lane.waiting >= self._waiting:
            raise errors.exhausted(f"{lane.waiting} requests wait already", 1.0)
        granted = lane.join(client)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # granted just now
                self._leave(lane, client)
            else:
                lane.forget(client, granted)
                self._serve()  # the background may have waited only for this request
            raise

    def _leave(self, lane: _Lane, client: str) -> None:
        lane.left(client)
        self._serve()

    def _serve(self) -> None:
        """Hand out free slots."""
        for lane in (self._live, self._background):
            while able := [client for client in lane.queues if self._free(lane, client)]:
                lane.grant(able)


class _Lane:
    """The live or the background clients: their running and waiting requests."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next client first

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queues.values()))

    def join(self, client: str) -> asyncio.Future[None]:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queues.setdefault(client, deque()).append(granted)
        return granted

    def grant(self, able: list[str]) -> None:
        """Give a slot to one of these clients."""
        following = min(able, key=lambda client: self.running[client])
        granted = self.queues[following].popleft()
        self.queues.move_to_end(following)
        if not self.queues[following]:
            del self.queues[following]
        if not granted.done():
            self.running[following] += 1
            granted.set_result(None)

    def left(self, client: str) -> None:
        self.running[client] -= 1
        if not self.running[client]:
            del self.running[client]

    def forget(self, client: str, granted: asyncio.Future[None]) -> None:
        queue = self.queues.get(client)
        if queue is not None and granted in queue:
            queue.remove(granted)
            if not queue:
                del self.queues[client]
