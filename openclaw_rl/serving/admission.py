"""The engine's slots, handed out so that no client has them all, and live clients come before the background."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from openclaw_rl.rpc import errors

#: Seconds for which a client counts as being there after its last request.
_THERE_SECONDS = 60.0


class FairQueue:
    """A queue for each client in front of the engine, whose own knows no clients.

    A free slot goes to the client with the fewest responses under way, among several to the one that has waited for
    its turn the longest. While there is more than one client, none gets the last quarter of the slots: a newcomer then
    needn't wait until a response of somebody else has ended. A client that is alone has all of them.

    Requests of the background (episodes, batches) get a slot only when no live one waits for it, and never the last
    quarter of the slots while a live client is about; with nobody about they have all. They wait in a room of their
    own, so that neither fills the other's. An engine with a single slot is theirs too while nobody wants it.

    Args:
        slots: responses that the engine makes at the same time.
        waiting: requests that may wait, and as many of the background; more are refused.
        clock: seconds; for tests.
    """

    def __init__(self, slots: int, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots, self._waiting, self._clock = slots, waiting, clock
        self._kept = max(1, slots // 4)
        self._live, self._background = _Line(), _Line()
        self._seen: OrderedDict[str, float] = OrderedDict()  # live clients by their last request, the oldest first

    @property
    def waiting(self) -> int:
        """Live requests that wait for a slot."""
        return self._live.waiting

    @property
    def background_waiting(self) -> int:
        """Requests of the background that wait for a slot."""
        return self._background.waiting

    @asynccontextmanager
    async def slot(self, client: str, background: bool = False) -> AsyncIterator[None]:
        """Have a slot; waits for one.

        Args:
            background: live requests come first.

        Raises:
            MeshError: RESOURCE_EXHAUSTED, too many wait already.
        """
        line = self._background if background else self._live
        if not background:
            self._note(client)
        if not self._free(line, client) or client in line.queues:
            await self._wait(line, client)
        else:
            line.running[client] += 1
        try:
            yield
        finally:
            self._leave(line, client)

    def _note(self, client: str) -> None:
        self._seen[client] = self._clock()
        self._seen.move_to_end(client)

    def _about(self) -> int:
        """Live clients that are about."""
        border = self._clock() - _THERE_SECONDS
        while self._seen and next(iter(self._seen.values())) < border:
            self._seen.popitem(last=False)
        return len(self._seen)

    def _free(self, line: _Line, client: str) -> bool:
        """There is a slot that this client may have."""
        live, background = self._live.running.total(), self._background.running.total()
        if live + background >= self._slots:
            return False
        alone = max(1, self._slots - self._kept)  # what is left when the last quarter is kept for others
        if line is self._live:
            return line.running[client] < (self._slots if self._about() <= 1 else alone)
        return not self._live.queues and background < (alone if live or self._about() else self._slots)

    async def _wait(self, line: _Line, client: str) -> None:
        if line.waiting >= self._waiting:
            raise errors.exhausted(f"{line.waiting} requests wait already", 1.0)
        turn = line.join(client)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came to this one's turn just now
                self._leave(line, client)
            else:
                line.forget(client, turn)
                self._serve()  # the background may have waited for this one only
            raise

    def _leave(self, line: _Line, client: str) -> None:
        line.left(client)
        self._serve()

    def _serve(self) -> None:
        """Hand out what is free."""
        for line in (self._live, self._background):
            while able := [client for client in line.queues if self._free(line, client)]:
                line.serve(able)


class _Line:
    """The clients of one kind: what they have, and who waits."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next client first

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queues.values()))

    def join(self, client: str) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queues.setdefault(client, deque()).append(turn)
        return turn

    def serve(self, able: list[str]) -> None:
        """Give a slot to one of these."""
        following = min(able, key=lambda client: self.running[client])
        turn = self.queues[following].popleft()
        self.queues.move_to_end(following)
        if not self.queues[following]:
            del self.queues[following]
        if not turn.done():
            self.running[following] += 1
            turn.set_result(None)

    def left(self, client: str) -> None:
        self.running[client] -= 1
        if not self.running[client]:
            del self.running[client]

    def forget(self, client: str, turn: asyncio.Future[None]) -> None:
        queue = self.queues.get(client)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self.queues[client]
