"""Environments of one type: made in the background, some kept ready, never more of them than configured."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Coroutine
from typing import Any

from openclaw_rl.rollouts.environments.factory import Offer
from openclaw_rl.rollouts.environments.interface import Environment
from openclaw_rl.rollouts.leases.actions import Checker
from openclaw_rl.rollouts.leases.queue import FairQueue, Ticket
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rpc.errors import MeshError, failed_precondition, unavailable
from openclaw_rl.runtime.backoff import Backoff

log = logging.getLogger(__name__)

#: Seconds for making one, and for ending one; after the latter its slot is free all the same.
MAKE_SECONDS = 120.0
CLOSE_SECONDS = 60.0
#: Seconds for telling whether any can be made.
CHECK_SECONDS = 60.0
#: Seconds between two looks at an environment that can't be used, and for how long an answer to a request holds.
LOOK_EVERY = 30.0
LOOK_AGAIN = 3.0
#: Seconds before another one is made after a failure; doubled with each further one.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: Most that are made at the same time of one type, and most that are ended.
MAKING = max(2, os.cpu_count() or 2)
CLOSING = 16
#: Most warm ones unless the configuration says otherwise.
MOST_WARM = 8


class Supply:
    """Environments of one type.

    An environment is being made, ready, out, or being closed, and counts against the capacity in all four; the slots
    that are told to be free are those of leases, so one that is being closed is as good as free.

    Args:
        offer: what it makes. Its warm ones are made from the start if the configuration names it, else from its first
            use on.
    """

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.capacity = offer.config.count
        self.queue: FairQueue[Environment] = FairQueue()
        self.checker = Checker()
        self.steps = 0  #: done in them
        self.lost = 0  #: those that died, leased or not
        self.failure = ""  #: why the last one could not be made; empty when it could
        self._problem = offer.problem
        self._looked_at: float | None = None
        self._look: asyncio.Task[None] | None = None
        self._ready: deque[Environment] = deque()
        self._out: set[Environment] = set()
        self._starting = self._closing = 0
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._retry_at = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[Any]] = set()  # may be cancelled
        self._closers: set[asyncio.Future[Any]] = set()  # may not
        self._gate = asyncio.Semaphore(CLOSING)
        self._started = self._closed = False
        self._in_use = offer.named

    @property
    def name(self) -> str:
        return self.offer.name

    @property
    def problem(self) -> str:
        """Why it can't be used, as far as is known; empty when it can."""
        return self._problem

    @property
    def leased(self) -> int:
        return len(self._out)

    @property
    def warm(self) -> int:
        return len(self._ready)

    @property
    def starting(self) -> int:
        return self._starting

    @property
    def free(self) -> int:
        """Slots that nobody has or has asked for; below 0 when more have asked than there are."""
        return self.capacity - len(self._out) - len(self.queue)

    @property
    def waiting(self) -> int:
        """Requests for which there is no slot."""
        return max(0, -self.free)

    @property
    def wanted_warm(self) -> int:
        """Number of them to keep ready."""
        configured = self.offer.config.warm
        return min(max(1, self.capacity // 8), MOST_WARM) if configured is None else min(configured, self.capacity)

    def start(self) -> None:
        """Begin to look after them."""
        self._started = True
        self._spawn(self._look_after(), "look after")

    async def look(self) -> None:
        """Find out whether any can be made, unless that is known."""
        now = asyncio.get_running_loop().time()
        if self._looked_at is None or (self._problem and now - self._looked_at > LOOK_AGAIN):
            await self._check()

    async def usable(self) -> None:
        """The same, as an error.

        Raises:
            MeshError: FAILED_PRECONDITION, none can be made.
        """
        await self.look()
        if self._problem:
            raise self._unusable()

    async def take(self, ticket: Ticket[Environment]) -> Environment:
        """A fresh environment, when it is the ticket's turn. When cancelled, nothing is taken.

        Raises:
            MeshError: FAILED_PRECONDITION or UNAVAILABLE, it can't be made.
        """
        self._in_use = True
        self.queue.put(ticket)
        self._pump()
        try:
            return await ticket.answer
        except asyncio.CancelledError:
            self.queue.remove(ticket)
            answer = ticket.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._out.discard(answer.result())
                self._ready.appendleft(answer.result())  # nobody has seen it
            self._pump()
            raise

    def give_back(self, environment: Environment, *after: asyncio.Task[Any]) -> None:
        """Close one that was taken, in the background. Its slot is free at once.

        Args:
            after: work in it, which has been cancelled.
        """
        self._out.discard(environment)
        self._discard(environment, *after)
        self._pump()

    def lose(self, environment: Environment) -> None:
        """Close one that was taken and is of no use any more; its slot stays taken until it is given back."""
        self.lost += 1
        self._spawn(self._close_one(environment), "close")

    def covered(self, ticket: Ticket[Environment]) -> bool:
        """There is a slot for it, and it only waits until an environment is made."""
        return self.queue.place(ticket) < self.capacity - len(self._out)

    @property
    def pausing(self) -> bool:
        """None could be made, and none is tried to be made just now."""
        return bool(self.failure) and self._retry_at > asyncio.get_running_loop().time()

    def not_made(self) -> MeshError:
        """What to say to somebody who got none because none could be made."""
        wait = max(0.5, self._retry_at - asyncio.get_running_loop().time())
        return unavailable(f"no environment {self.name!r} can be made now: {self.failure}", round(wait, 1))

    async def close(self) -> None:
        """End all of them; whoever waits is told."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        while self.queue:
            _answer(self.queue.pop(), unavailable("the environment server is stopping"))
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for environment in (*self._ready, *self._out):
            self._discard(environment)
        self._ready.clear()
        self._out.clear()
        while self._closers:
            await asyncio.wait(self._closers)
        if self.offer.kind is None:
            return
        try:
            await asyncio.wait_for(self.offer.kind.close(), CLOSE_SECONDS)
        except Exception:
            log.exception("closing the environment %r", self.name)

    def _pump(self) -> None:
        """Hand out what is ready, and make what is needed."""
        while self._ready and self.queue:
            environment = self._ready.popleft()
            if environment.problem:
                self.lost += 1
                self._discard(environment)
                continue
            ticket = self.queue.pop()
            self._out.add(environment)
            _answer(ticket, environment)
        if self._closed or not self._started or self._problem:
            return
        wanted = len(self.queue) + (self.wanted_warm if self._in_use else 0) - len(self._ready) - self._starting
        room = self.capacity - len(self._out) - len(self._ready) - self._starting - self._closing
        number = min(wanted, room, MAKING - self._starting)
        if number <= 0:
            return
        loop = asyncio.get_running_loop()
        if (pause := self._retry_at - loop.time()) > 0:
            if self._retry is None:
                self._retry = loop.call_later(pause, self._again)
            return
        for _ in range(number if not self._backoff.failures else 1):
            self._starting += 1
            self._spawn(self._make(), "make")

    def _again(self) -> None:
        self._retry = None
        self._pump()

    async def _make(self) -> None:
        environment: Environment | None = None
        failure = ""
        assert self.offer.kind is not None
        making = asyncio.ensure_future(self.offer.kind.make())
        self._keep(self._tasks, making)
        try:
            environment = await asyncio.wait_for(asyncio.shield(making), MAKE_SECONDS)
        except SandboxError as error:
            failure = str(error)
        except TimeoutError:
            failure = f"it was not ready after {MAKE_SECONDS:g} s"
        except Exception as error:
            log.exception("making an environment %r", self.name)
            failure = f"{type(error).__name__}: {error}"
        finally:
            if not making.done():
                making.cancel()
            if environment is None:
                making.add_done_callback(self._made_for_nobody)
            self._starting -= 1
        if environment is not None:
            self._backoff.reset()
            self.failure = ""
            self._ready.append(environment)
        else:
            await self._failed(failure)
        self._pump()

    def _made_for_nobody(self, making: asyncio.Future[Environment]) -> None:
        if not making.cancelled() and making.exception() is None:
            self._discard(making.result())

    async def _failed(self, failure: str) -> None:
        pause = self._backoff.next()
        self._retry_at = asyncio.get_running_loop().time() + pause
        if failure != self.failure:
            log.warning("no environment %r can be made; the next try is in %.1f s: %s", self.name, pause, failure)
        self.failure = failure
        await self._check()
        # Those who don't wait get the reason, but for as many as others are still being made for.
        impatient = [ticket for ticket in self.queue if not ticket.patient]
        for ticket in impatient[:max(0, len(self.queue) - len(self._ready) - self._starting)]:
            self.queue.remove(ticket)
            _answer(ticket, self.not_made())

    async def _check(self) -> None:
        """Ask the kind whether any can be made; many who ask at once ask once."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._ask(), name=f"check {self.name}")
            self._keep(self._tasks, self._look)
        await asyncio.wait({self._look})

    async def _ask(self) -> None:
        if self.offer.kind is None:
            self._looked_at = asyncio.get_running_loop().time()
            return  # its problem is that it could not be loaded, which only a restart changes
        try:
            problem = await asyncio.wait_for(self.offer.kind.problem(), CHECK_SECONDS)
        except TimeoutError:
            problem = f"it can't be told within {CHECK_SECONDS:g} s whether it can be used"
        except Exception as error:
            log.exception("asking whether the environment %r can be used", self.name)
            problem = f"{type(error).__name__}: {error}"
        if problem != self._problem:
            (log.warning if problem and self.offer.named else log.info)(
                "environment %r %s", self.name, f"can't be used: {problem}" if problem else "can be used again")
        self._problem, self._looked_at = problem, asyncio.get_running_loop().time()
        if problem:
            while self.queue:
                _answer(self.queue.pop(), self._unusable())

    async def _look_after(self) -> None:
        while True:
            if self.offer.named and (self._looked_at is None or self._problem):
                await self._check()
            for environment in [one for one in self._ready if one.problem]:
                self._ready.remove(environment)
                self.lost += 1
                self._discard(environment)
            self._pump()
            await asyncio.sleep(LOOK_EVERY)

    def _unusable(self) -> MeshError:
        return failed_precondition("ENVIRONMENT_UNUSABLE",
                                   f"environment {self.name!r} can't be used: {self._problem}")

    def _discard(self, environment: Environment, *after: asyncio.Task[Any]) -> None:
        self._closing += 1
        self._spawn(self._end(environment, after), "close")

    async def _end(self, environment: Environment, after: tuple[asyncio.Task[Any], ...]) -> None:
        try:
            if after:
                await asyncio.wait(after, timeout=CLOSE_SECONDS)
            await self._close_one(environment)
        finally:
            self._closing -= 1
        self._pump()

    async def _close_one(self, environment: Environment) -> None:
        try:
            async with self._gate:
                await asyncio.wait_for(environment.close(), CLOSE_SECONDS)
        except TimeoutError:
            log.error("an environment %r was not closed after %g s; going on without it", self.name, CLOSE_SECONDS)
        except Exception:
            log.exception("closing an environment %r", self.name)

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{what} {self.name}")
        self._keep(self._closers if what == "close" else self._tasks, task)

    @staticmethod
    def _keep(tasks: set[asyncio.Future[Any]], task: asyncio.Future[Any]) -> None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _answer(ticket: Ticket[Environment], answer: Environment | MeshError) -> None:
    if ticket.answer.done():
        return
    if isinstance(answer, MeshError):
        ticket.answer.set_exception(answer)
    else:
        ticket.answer.set_result(answer)
