"""The engine's slots, handed out so that no client has them all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from openclaw_rl.mesh import errors

#: Seconds for which a client counts as being there after its last request.
_THERE_SECONDS = 60.0


class FairQueue:
    """A queue for each client in front of the engine, whose own knows no clients.

    A free slot goes to the client with the fewest responses under way, among several to the one that has waited for
    its turn the longest. While there is more than one client, none gets the last quarter of the slots: a newcomer then
    needn't wait until a response of somebody else has ended. A client that is alone has all of them.

    Args:
        slots: responses that the engine makes at the same time.
        waiting: requests that may wait; more are refused.
        clock: seconds; for tests.
    """

    def __init__(self, slots: int, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots, self._waiting, self._clock = slots, waiting, clock
        self._running: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next client first
        self._seen: OrderedDict[str, float] = OrderedDict()  # clients by their last request, the oldest first

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return sum(map(len, self._queues.values()))

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Have a slot; waits for one.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, too many wait already.
        """
        self._note(client)
        if not self._free(client) or client in self._queues:
            await self._wait(client)
        else:
            self._running[client] += 1
        try:
            yield
        finally:
            self._leave(client)

    def _note(self, client: str) -> None:
        now = self._clock()
        self._seen[client] = now
        self._seen.move_to_end(client)
        while next(iter(self._seen.values())) < now - _THERE_SECONDS:
            self._seen.popitem(last=False)

    def _free(self, client: str) -> bool:
        alone = len(self._seen) <= 1
        most = self._slots if alone else max(1, self._slots - max(1, self._slots // 4))
        return self._running.total() < self._slots and self._running[client] < most

    async def _wait(self, client: str) -> None:
        if self.waiting >= self._waiting:
            raise errors.exhausted(f"{self.waiting} requests wait already", 1.0)
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came to this one's turn just now
                self._leave(client)
            else:
                self._forget(client, turn)
            raise

    def _leave(self, client: str) -> None:
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        while able := [waiting for waiting in self._queues if self._free(waiting)]:
            following = min(able, key=lambda waiting: self._running[waiting])
            turn = self._queues[following].popleft()
            self._queues.move_to_end(following)
            if not self._queues[following]:
                del self._queues[following]
            if not turn.done():
                self._running[following] += 1
                turn.set_result(None)

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(client)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._queues[client]
