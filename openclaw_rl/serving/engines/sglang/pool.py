"""The pool of workers: routing by cache affinity and load, and a queue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from openclaw_rl.serving.engines.interface import EngineBusy, EngineError

#: Tokens of a prompt that are hashed together.
_BLOCK = 32
#: Sessions, and prompt blocks, whose worker is remembered.
_REMEMBERED = 50_000

K = TypeVar("K")


class PoolMember(Protocol):
    """A worker, as the pool sees it."""

    running: int  #: requests in progress

    @property
    def accepting(self) -> bool:
        """Whether it accepts requests now."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it is up, accepting or being updated."""
        ...


@dataclass(eq=False)
class _Waiter:
    future: asyncio.Future[PoolMember]
    session: str
    blocks: list[int]


class Pool:
    """Assigns workers to requests, first come, first served.

    A session stays on the worker that has it cached; a request without a session goes where the longest prefix of its
    prompt went before. A worker that is much busier than the least busy one is avoided: a cache saves a prefill, and
    waiting costs more.

    Args:
        workers: all workers.
        each: requests of a worker, at most.
        waiting: requests that may wait.
        timeout: seconds for which a request waits while no worker is up.
    """

    def __init__(self, workers: Sequence[PoolMember], each: int, waiting: int, timeout: float) -> None:
        self._workers, self._each, self._most, self._timeout = workers, each, waiting, timeout
        self._waiting: deque[_Waiter] = deque()
        self._sessions: OrderedDict[str, PoolMember] = OrderedDict()
        self._blocks: OrderedDict[int, PoolMember] = OrderedDict()
        self._slack = max(2, each // 2)
        self.closed = ""  #: why no worker is assigned any more

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._waiting)

    async def acquire(self, session: str, ids: Sequence[int]) -> PoolMember:
        """Wait for a worker with room for a request; `release` returns it.

        Raises:
            EngineBusy: the queue is full.
            EngineError: no worker was up for too long, or the engine is stopping.
        """
        if self.closed:
            raise EngineError(self.closed)
        blocks = _hashes(ids)
        if not self._waiting and (worker := self._choose(session, blocks)):
            return self._assign(worker, session, blocks)
        if len(self._waiting) >= self._most:
            raise EngineBusy(f"{len(self._waiting)} requests wait already, as many as may")
        waiter = _Waiter(asyncio.get_running_loop().create_future(), session, blocks)
        self._waiting.append(waiter)
        try:
            while True:
                done, _ = await asyncio.wait({waiter.future}, timeout=self._timeout)
                if done:
                    return waiter.future.result()
                if not any(worker.serving for worker in self._workers):
                    raise EngineError(f"no SGLang worker has answered for {self._timeout:.0f} s")
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
                self.release(waiter.future.result())
            raise

    def release(self, worker: PoolMember) -> None:
        """End a request on a worker."""
        worker.running -= 1
        self.dispatch()

    def dispatch(self) -> None:
        """Assign free workers to waiting requests."""
        while self._waiting:
            waiter = self._waiting[0]
            worker = self._choose(waiter.session, waiter.blocks)
            if worker is None:
                return
            self._waiting.popleft()
            waiter.future.set_result(self._assign(worker, waiter.session, waiter.blocks))

    def close(self, why: str) -> None:
        """Assign no more workers; waiting requests get EngineError."""
        self.closed = why
        while self._waiting:
            self._waiting.popleft().future.set_exception(EngineError(why))

    def _choose(self, session: str, blocks: Sequence[int]) -> PoolMember | None:
        free = [worker for worker in self._workers if worker.accepting and worker.running < self._each]
        if not free:
            return None
        least = min(free, key=lambda worker: worker.running)
        home = self._sessions.get(session) if session else None
        if home is None:
            home = next((self._blocks[block] for block in reversed(blocks) if block in self._blocks), None)
        return home if home in free and home.running <= least.running + self._slack else least

    def _assign(self, worker: PoolMember, session: str, blocks: Sequence[int]) -> PoolMember:
        worker.running += 1
        if session:
            _remember(self._sessions, session, worker)
        for block in blocks:
            _remember(self._blocks, block, worker)
        return worker


def _remember(memory: OrderedDict[K, PoolMember], key: K, worker: PoolMember) -> None:
    memory[key] = worker
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)


def _hashes(ids: Sequence[int]) -> list[int]:
    """Hash each prefix of a prompt that is a whole number of blocks."""
    found, value = [], 0
    for start in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        value = hash((value, *ids[start:start + _BLOCK]))
        found.append(value)
    return found
