"""Which worker a request goes to, and who waits for one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_rl.serving.engines.interface import EngineBusy, EngineError

#: Tokens of a prompt that are looked at together.
_BLOCK = 32
#: Sessions, and blocks of prompts, whose worker is remembered.
_REMEMBERED = 50_000


class PoolMember(Protocol):
    """What the pool needs of a worker."""

    running: int  #: requests that it has

    @property
    def takes(self) -> bool:
        """Whether it may get a request now."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it answers, or will in a moment when it is being updated."""
        ...


@dataclass(eq=False)
class _Waiter:
    future: asyncio.Future[PoolMember]
    session: str
    blocks: list[int]


class Pool:
    """Hands workers out, first come, first served.

    A session stays on the worker whose cache has it; a request without one goes where the longest beginning of its
    prompt went before. Unless that worker is much busier than the least busy one: what a cache saves is a prefill, and
    waiting costs more.

    Args:
        workers: all there are.
        each: requests that a worker may have.
        waiting: requests that may wait.
        patience: seconds for which a request waits while no worker answers at all.
    """

    def __init__(self, workers: Sequence[PoolMember], each: int, waiting: int, patience: float) -> None:
        self._workers, self._each, self._most, self._patience = workers, each, waiting, patience
        self._waiting: deque[_Waiter] = deque()
        self._sessions: OrderedDict[str, PoolMember] = OrderedDict()
        self._blocks: OrderedDict[int, PoolMember] = OrderedDict()
        self._slack = max(2, each // 2)
        self.closed = ""  #: why no worker is handed out any more

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    async def take(self, session: str, ids: Sequence[int]) -> PoolMember:
        """A worker with room for one more request; `give` returns it.

        Raises:
            EngineBusy: as many wait as may.
            EngineError: no worker answers, for long; or the engine is stopping.
        """
        if self.closed:
            raise EngineError(self.closed)
        blocks = _hashes(ids)
        if not self._waiting and (worker := self._choose(session, blocks)):
            return self._hand_out(worker, session, blocks)
        if len(self._waiting) >= self._most:
            raise EngineBusy(f"{len(self._waiting)} requests wait already, as many as may")
        waiter = _Waiter(asyncio.get_running_loop().create_future(), session, blocks)
        self._waiting.append(waiter)
        try:
            while True:
                done, _ = await asyncio.wait({waiter.future}, timeout=self._patience)
                if done:
                    return waiter.future.result()
                if not any(worker.serving for worker in self._workers):
                    raise EngineError(f"no SGLang worker has answered for {self._patience:.0f} s")
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
                self.give(waiter.future.result())
            raise

    def give(self, worker: PoolMember) -> None:
        """A request has left a worker."""
        worker.running -= 1
        self.settle()

    def settle(self) -> None:
        """Something changed: hand workers to those who wait."""
        while self._waiting:
            waiter = self._waiting[0]
            worker = self._choose(waiter.session, waiter.blocks)
            if worker is None:
                return
            self._waiting.popleft()
            waiter.future.set_result(self._hand_out(worker, waiter.session, waiter.blocks))

    def close(self, why: str) -> None:
        """Hand no more workers out; those who wait get EngineError."""
        self.closed = why
        while self._waiting:
            self._waiting.popleft().future.set_exception(EngineError(why))

    def _choose(self, session: str, blocks: Sequence[int]) -> PoolMember | None:
        free = [worker for worker in self._workers if worker.takes and worker.running < self._each]
        if not free:
            return None
        least = min(free, key=lambda worker: worker.running)
        home = self._sessions.get(session) if session else None
        if home is None:
            home = next((self._blocks[block] for block in reversed(blocks) if block in self._blocks), None)
        return home if home in free and home.running <= least.running + self._slack else least

    def _hand_out(self, worker: PoolMember, session: str, blocks: Sequence[int]) -> PoolMember:
        worker.running += 1
        if session:
            _remember(self._sessions, session, worker)
        for block in blocks:
            _remember(self._blocks, block, worker)
        return worker


def _remember(memory: OrderedDict, key: object, worker: PoolMember) -> None:
    memory[key] = worker
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)


def _hashes(ids: Sequence[int]) -> list[int]:
    """One hash for each beginning of a prompt that is a whole number of blocks."""
    found, value = [], 0
    for start in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        value = hash((value, *ids[start:start + _BLOCK]))
        found.append(value)
    return found
