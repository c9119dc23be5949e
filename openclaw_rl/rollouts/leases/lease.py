"""Lease: one environment for one holder, one operation at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    BadTask,
    Environment,
    Observation,
    Opening,
    Outcome,
    StepResult,
)
from openclaw_rl.rollouts.leases.bounds import bounded
from openclaw_rl.rollouts.leases.warm_pool import WarmPool
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.rpc.errors import MeshError, exhausted, failed_precondition, invalid_many
from openclaw_rl.rpc.messages import well_formed

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Concurrent calls of one lease; they run one after the other.
MOST_CALLS = 16
#: Time limits in seconds of a reset and a check; grace beyond a step's own limit, which its environment should enforce.
RESET_SECONDS = 180.0
EVALUATE_SECONDS = 300.0
STEP_GRACE = 15.0
VIEW_SECONDS = 10.0


class Lease:
    """A leased environment.

    An operation continues when its caller goes away, so that a repeated step returns what the first one did. The end of
    the lease stops it.

    Attributes:
        ended: why the lease ended; empty while it runs.
        steps: number of the last step done since the last reset.
        over: set when the lease ends.
        calls: running and waiting ones.
    """

    def __init__(self, id: str, holder: str, ttl: float, warm_pool: WarmPool, environment: Environment) -> None:
        self.id, self.holder, self.ttl, self.warm_pool = id, holder, ttl, warm_pool
        self.task_id = ""
        self.steps = 0
        self.ended = ""
        self.acquired_at = time.time()
        self.last_action: Action | None = None
        self.over = asyncio.Event()
        self.environment = environment
        self.calls = 0
        self._loop = asyncio.get_running_loop()
        self._last_used = self._began = self._loop.time()
        self._problem = ""
        self._answer: StepResult | None = None
        self._was_reset = self._over = False
        self._lock = asyncio.Lock()
        self._work: set[asyncio.Task[object]] = set()
        self._view: tuple[float, Observation] | None = None
        self._view_task: asyncio.Task[Observation] | None = None

    @property
    def type(self) -> str:
        return self.warm_pool.name

    @property
    def problem(self) -> str:
        """Why the environment became unusable; empty while it works."""
        return self._problem or self.environment.problem

    @property
    def expires_in(self) -> float:
        """Seconds until the lease expires unless it is used; its whole time to live while an operation runs."""
        return self.ttl if self.calls else self._last_used + self.ttl - self._loop.time()

    @property
    def expires_at(self) -> float:
        """Time of expiry, in seconds since the epoch."""
        return time.time() + self.expires_in

    @property
    def age(self) -> float:
        """Seconds since it was granted."""
        return self._loop.time() - self._began

    @property
    def work(self) -> tuple[asyncio.Task[object], ...]:
        """Tasks running in the environment."""
        return tuple(self._work)

    def renew(self) -> None:
        """Restart its time to live."""
        self._last_used = self._loop.time()

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        """Begin a task, or nothing in particular.

        Raises:
            MeshError: INVALID_ARGUMENT, the task can't be set up; UNAVAILABLE, the sandbox is lost.
        """
        async def begin() -> Opening:
            self._was_reset = False
            opening = await self._within(RESET_SECONDS, "the reset", self.environment.reset(task, seed))
            self.task_id, self.steps, self._answer, self.last_action = task.id if task else "", 0, None, None
            self._was_reset, self._over = True, False
            return Opening(bounded(opening.observation), opening.goal, opening.instructions, opening.tools)

        return await self._do(begin)

    async def step(self, number: int, action: Action, seconds: float) -> StepResult:
        """Perform an action, or return the last one's result again.

        Raises:
            MeshError: INVALID_ARGUMENT, the environment has no such action (nothing was done, the number is still
                free); FAILED_PRECONDITION, the number is not the next one, or there was no reset, or the
                episode is over; UNAVAILABLE, the sandbox is lost.
        """
        async def do() -> StepResult:
            if not self._was_reset:
                raise failed_precondition("NOT_RESET", f"lease {self.id!r} has not been reset: reset it with a task, "
                                                       "then step")
            if number == self.steps and self._answer is not None:
                if action != self.last_action:
                    raise failed_precondition("STEP_OUT_OF_ORDER", f"step {number} of lease {self.id!r} was done with "
                                              f"another action; the next one is {self.steps + 1}")
                return self._answer
            if number != self.steps + 1:
                raise failed_precondition("STEP_OUT_OF_ORDER", f"step {number} of lease {self.id!r} can't be done: the "
                                          f"next one is {self.steps + 1}" + (
                                              ", and only the last one can be repeated" if number <= self.steps else
                                              ""))
            if self._over:
                raise failed_precondition("EPISODE_OVER", f"the episode in lease {self.id!r} was over with step "
                                          f"{self.steps}: evaluate it, or reset to begin another")
            result = await self._within(seconds + STEP_GRACE, f"step {number} ({action.name[:80]!r})",
                                        self.environment.step(action, seconds))
            self._answer = StepResult(bounded(result.observation), result.reward, result.done, result.error[:20_000])
            self.steps, self.last_action, self._over = number, action, result.done
            self.warm_pool.steps += 1
            return self._answer

        return await self._do(do)

    async def evaluate(self) -> Outcome:
        """Run the task's check.

        Raises:
            MeshError: FAILED_PRECONDITION, there was no reset; INVALID_ARGUMENT, the check doesn't work; UNAVAILABLE,
                the sandbox is lost.
        """
        async def check() -> Outcome:
            if not self._was_reset:
                raise failed_precondition("NOT_RESET", f"lease {self.id!r} has not been reset: there is nothing to "
                                                       "evaluate")
            outcome = await self._within(EVALUATE_SECONDS, "the check", self.environment.evaluate())
            return Outcome(min(1.0, max(0.0, outcome.value)), well_formed(outcome.detail[:20_000]))

        return await self._do(check)

    async def view(self, age: float) -> Observation | None:
        """A view at most `age` seconds old; None if the environment can't show one. Concurrent callers share one view,
        and no operation waits for it."""
        if self._view is not None and self._loop.time() - self._view[0] < age:
            return self._view[1]
        if self.ended or self.problem:
            return self._view[1] if self._view else None
        if self._view_task is None or self._view_task.done():
            self._view_task = self._loop.create_task(self._refresh_view(), name=f"view {self.id}")
            self._work.add(self._view_task)
            self._view_task.add_done_callback(self._work.discard)
        try:
            return await asyncio.wait_for(asyncio.shield(self._view_task), VIEW_SECONDS)
        except asyncio.CancelledError:
            if not self._view_task.cancelled():
                raise
        except Exception as error:
            logger.debug("view of lease %r: %s", self.id, error)
        return self._view[1] if self._view else None

    async def _refresh_view(self) -> Observation:
        observation = bounded(await self.environment.view())
        self._view = self._loop.time(), observation
        return observation

    def lose(self, reason: str) -> None:
        """Mark the environment as unusable: it is closed at once, and its slot stays the holder's."""
        if not self._problem:
            self._problem = reason
            logger.warning("lease %r: the sandbox was lost: %s", self.id, reason)
            self.warm_pool.lose(self.environment)

    def end(self, reason: str) -> None:
        """End the lease: stop its operations, whose callers get the `reason`."""
        self.ended = reason
        for task in self._work:
            task.cancel()
        self.over.set()

    async def _do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Perform an operation after the earlier ones, in a task of the lease's own."""
        if self.ended:
            raise lease_ended(self.id, self.ended)
        if self.calls >= MOST_CALLS:
            raise exhausted(f"{self.calls} calls of lease {self.id!r} wait for one another; do one thing at a time")
        self.calls += 1

        async def exclusively() -> T:
            async with self._lock:
                if self.problem:
                    self.lose(self.problem)
                    raise sandbox_lost(self.id, self.problem)
                try:
                    return await work()
                except BadAction as error:
                    raise invalid_many([("action_json", str(error))]) from None
                except BadTask as error:
                    raise invalid_many([("task_id", str(error))]) from None
                except SandboxError as error:
                    self.lose(str(error))
                except MeshError:
                    raise
                except Exception as error:
                    logger.exception("lease %r of %r", self.id, self.type)
                    self.lose(f"a fault in the kind: {type(error).__name__}: {error}")
                raise sandbox_lost(self.id, self.problem)

        task = self._loop.create_task(exclusively(), name=f"lease {self.id}")
        self._work.add(task)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.ended and task.cancelled():
                raise lease_ended(self.id, self.ended) from None
            raise

    def _done(self, task: asyncio.Task[object]) -> None:
        self._work.discard(task)
        self.calls -= 1
        self.renew()
        if not task.cancelled():
            task.exception()  # its caller may be gone

    async def _within(self, seconds: float, what: str, work: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            raise SandboxError(f"{what} was not over after {seconds:g} s") from None


def sandbox_lost(lease_id: str, reason: str) -> MeshError:
    """The error for calls whose environment is unusable."""
    return MeshError(grpc.StatusCode.UNAVAILABLE, "SANDBOX_LOST",
                     f"the sandbox of lease {lease_id!r} is lost: {reason}; release the lease and acquire another one")


def lease_ended(lease_id: str, reason: str) -> MeshError:
    """The error for calls on an ended lease."""
    return failed_precondition("LEASE_ENDED",
                               f"lease {lease_id!r} {reason}; acquire another one, with an id of its own")
