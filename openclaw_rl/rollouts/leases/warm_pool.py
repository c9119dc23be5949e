"""Environments of one name: made in the background, some kept ready, never more than configured."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Coroutine
from typing import Any

from openclaw_rl.rollouts.environments.factory import ConfiguredEnvironment
from openclaw_rl.rollouts.environments.interface import Environment
from openclaw_rl.rollouts.leases.actions import Checker
from openclaw_rl.rollouts.leases.availability import Availability
from openclaw_rl.rollouts.leases.queue import FairQueue, Ticket
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rpc.errors import MeshError, unavailable
from openclaw_rl.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

#: Seconds for making an environment, and for closing one; after the latter its slot is free all the same.
MAKE_SECONDS = 120.0
CLOSE_SECONDS = 60.0
#: Seconds between two checks of an environment that can't be used, and of the ready ones.
MAINTENANCE_SECONDS = 30.0
#: Seconds before another one is made after a failure; doubled with each further one.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: Most that are made at the same time, and most that are closed.
MAKING = max(2, os.cpu_count() or 2)
CLOSING = 16
#: Most ready ones unless the configuration says otherwise.
MOST_WARM = 8


class WarmPool:
    """Environments of one name.

    An environment is being made, ready, leased, or being closed, and counts against the capacity in all four. Slots
    reported as free are those of leases, so one that is being closed is as good as free.

    Args:
        configured: the environment. Its ready ones are made from the start if the configuration names it, else from
            its first use on.

    Attributes:
        steps: steps done in its environments.
        lost: environments that died, leased or not.
        failure: why the last one could not be made; empty if it could.
    """

    def __init__(self, configured: ConfiguredEnvironment) -> None:
        self.configured = configured
        self.capacity = configured.config.count
        self.queue: FairQueue[Environment] = FairQueue()
        self.checker = Checker()
        self.availability = Availability(configured, self._reject_waiting)
        self.steps = 0
        self.lost = 0
        self.failure = ""
        self._ready: deque[Environment] = deque()
        self._leased: set[Environment] = set()
        self._starting = self._closing = 0
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._retry_at = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Future[Any]] = set()  # may be cancelled
        self._closers: set[asyncio.Future[Any]] = set()  # may not
        self._close_slots = asyncio.Semaphore(CLOSING)
        self._started = self._closed = False
        self._in_use = configured.named

    @property
    def name(self) -> str:
        return self.configured.name

    @property
    def problem(self) -> str:
        """Why it can't be used, as far as is known; empty if it can."""
        return self.availability.problem

    @property
    def leased(self) -> int:
        return len(self._leased)

    @property
    def warm(self) -> int:
        return len(self._ready)

    @property
    def starting(self) -> int:
        return self._starting

    @property
    def free(self) -> int:
        """Slots that nobody has or has asked for; below 0 if more were asked for than there are."""
        return self.capacity - len(self._leased) - len(self.queue)

    @property
    def waiting(self) -> int:
        """Requests for which there is no slot."""
        return max(0, -self.free)

    @property
    def wanted_warm(self) -> int:
        """Number to keep ready."""
        configured = self.configured.config.warm
        return min(max(1, self.capacity // 8), MOST_WARM) if configured is None else min(configured, self.capacity)

    def start(self) -> None:
        """Start to make and maintain environments."""
        self._started = True
        self._spawn(self._maintain(), "maintain")

    async def take(self, ticket: Ticket[Environment]) -> Environment:
        """Wait for the ticket's turn and a fresh environment. When cancelled, nothing is taken.

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
                self._leased.discard(answer.result())
                self._ready.appendleft(answer.result())  # nobody has seen it
            self._pump()
            raise

    def give_back(self, environment: Environment, *after: asyncio.Task[Any]) -> None:
        """Close an environment that was taken, in the background. Its slot is free at once.

        Args:
            after: work in it, which has been cancelled.
        """
        self._leased.discard(environment)
        self._discard(environment, *after)
        self._pump()

    def lose(self, environment: Environment) -> None:
        """Close an environment that was taken and is unusable; its slot stays taken until it is given back."""
        self.lost += 1
        self._spawn(self._close_one(environment), "close")

    def covered(self, ticket: Ticket[Environment]) -> bool:
        """Whether there is a slot for the ticket, so that it waits only until an environment is made."""
        return self.queue.place(ticket) < self.capacity - len(self._leased)

    @property
    def pausing(self) -> bool:
        """Making one failed, and the next try is still to come."""
        return bool(self.failure) and self._retry_at > asyncio.get_running_loop().time()

    def not_made(self) -> MeshError:
        """The error for a request that got none because none could be made."""
        wait = max(0.5, self._retry_at - asyncio.get_running_loop().time())
        return unavailable(f"no environment {self.name!r} can be made now: {self.failure}", round(wait, 1))

    async def close(self) -> None:
        """End all environments, and reject whoever waits."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        await self.availability.close()
        while self.queue:
            _answer(self.queue.pop(), unavailable("the environment server is stopping"))
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for environment in (*self._ready, *self._leased):
            self._discard(environment)
        self._ready.clear()
        self._leased.clear()
        while self._closers:
            await asyncio.wait(self._closers)
        if self.configured.environment_type is None:
            return
        try:
            await asyncio.wait_for(self.configured.environment_type.close(), CLOSE_SECONDS)
        except Exception:
            logger.exception("closing the environment %r", self.name)

    def _pump(self) -> None:
        """Hand out what is ready, and make what is needed."""
        while self._ready and self.queue:
            environment = self._ready.popleft()
            if environment.problem:
                self.lost += 1
                self._discard(environment)
                continue
            ticket = self.queue.pop()
            self._leased.add(environment)
            _answer(ticket, environment)
        if self._closed or not self._started or self.problem:
            return
        wanted = len(self.queue) + (self.wanted_warm if self._in_use else 0) - len(self._ready) - self._starting
        room = self.capacity - len(self._leased) - len(self._ready) - self._starting - self._closing
        number = min(wanted, room, MAKING - self._starting)
        if number <= 0:
            return
        loop = asyncio.get_running_loop()
        if (pause := self._retry_at - loop.time()) > 0:
            if self._retry is None:
                self._retry = loop.call_later(pause, self._resume)
            return
        for _ in range(number if not self._backoff.failures else 1):
            self._starting += 1
            self._spawn(self._make(), "make")

    def _resume(self) -> None:
        self._retry = None
        self._pump()

    async def _make(self) -> None:
        environment: Environment | None = None
        failure = ""
        assert self.configured.environment_type is not None
        making = asyncio.ensure_future(self.configured.environment_type.make())
        self._keep(self._tasks, making)
        try:
            environment = await asyncio.wait_for(asyncio.shield(making), MAKE_SECONDS)
        except SandboxError as error:
            failure = str(error)
        except TimeoutError:
            failure = f"it was not ready after {MAKE_SECONDS:g} s"
        except Exception as error:
            logger.exception("making an environment %r", self.name)
            failure = f"{type(error).__name__}: {error}"
        finally:
            if not making.done():
                making.cancel()
            if environment is None:
                making.add_done_callback(self._discard_late)
            self._starting -= 1
        if environment is not None:
            self._backoff.reset()
            self.failure = ""
            self._ready.append(environment)
        else:
            await self._handle_failure(failure)
        self._pump()

    def _discard_late(self, making: asyncio.Future[Environment]) -> None:
        """Close an environment that became ready after its time."""
        if not making.cancelled() and making.exception() is None:
            self._discard(making.result())

    async def _handle_failure(self, failure: str) -> None:
        pause = self._backoff.next()
        self._retry_at = asyncio.get_running_loop().time() + pause
        if failure != self.failure:
            logger.warning("no environment %r can be made; next try in %.1f s: %s", self.name, pause, failure)
        self.failure = failure
        await self.availability.check()
        # Reject those who don't want to wait, except as many as others are still being made for.
        impatient = [ticket for ticket in self.queue if not ticket.patient]
        for ticket in impatient[:max(0, len(self.queue) - len(self._ready) - self._starting)]:
            self.queue.remove(ticket)
            _answer(ticket, self.not_made())

    def _reject_waiting(self) -> None:
        while self.queue:
            _answer(self.queue.pop(), self.availability.error())

    async def _maintain(self) -> None:
        while True:
            if self.configured.named and not self.availability.settled:
                await self.availability.check()
            for environment in [one for one in self._ready if one.problem]:
                self._ready.remove(environment)
                self.lost += 1
                self._discard(environment)
            self._pump()
            await asyncio.sleep(MAINTENANCE_SECONDS)

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
            async with self._close_slots:
                await asyncio.wait_for(environment.close(), CLOSE_SECONDS)
        except TimeoutError:
            logger.error("an environment %r was not closed within %g s; continuing without it", self.name,
                         CLOSE_SECONDS)
        except Exception:
            logger.exception("closing an environment %r", self.name)

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
