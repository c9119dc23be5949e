"""Whether environments of a type can be made, asked of the type and remembered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from openclaw_rl.rollouts.environments.factory import ConfiguredEnvironment
from openclaw_rl.rollouts.sandboxes.interface import Unusable
from openclaw_rl.rpc.errors import MeshError, failed_precondition
from openclaw_rl.runtime.rejection import Rejection

logger = logging.getLogger(__name__)

#: Seconds for an answer of the environment type.
CHECK_SECONDS = 60.0
#: Seconds for which a negative answer holds when a request asks.
RECHECK_SECONDS = 3.0


class Availability:
    """The answer of an environment's type to whether it can make environments.

    Args:
        on_unusable: called after each check that says no.
    """

    def __init__(self, environment: ConfiguredEnvironment, on_unusable: Callable[[], None]) -> None:
        self._environment, self._on_unusable = environment, on_unusable
        self._problem = environment.problem
        self._checked_at: float | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """Why none can be made, as far as is known; empty if they can."""
        return self._problem

    @property
    def settled(self) -> bool:
        """It was checked, and they can be made."""
        return self._checked_at is not None and not self._problem

    async def refresh(self) -> None:
        """Check unless the last answer still holds."""
        now = asyncio.get_running_loop().time()
        if self._checked_at is None or (self._problem and now - self._checked_at > RECHECK_SECONDS):
            await self.check()

    async def require(self) -> None:
        """`refresh`, as an error.

        Raises:
            MeshError: FAILED_PRECONDITION, none can be made.
        """
        await self.refresh()
        if self._problem:
            raise self.error()

    async def check(self) -> None:
        """Ask the type; concurrent callers share one check."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._check(), name=f"check {self._environment.name}")
        await asyncio.wait({self._running})

    async def close(self) -> None:
        """Stop a running check."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    def error(self) -> MeshError:
        """The error for requests while none can be made."""
        return failed_precondition("ENVIRONMENT_UNUSABLE",
                                   f"environment {self._environment.name!r} can't be used: {self._problem}")

    async def _check(self) -> None:
        loop, environment_type = asyncio.get_running_loop(), self._environment.environment_type
        if environment_type is None:  # it could not be loaded, which only a restart changes
            self._checked_at = loop.time()
            return
        rejection: Rejection[Unusable] | None
        try:
            rejection = await asyncio.wait_for(environment_type.validate(), CHECK_SECONDS)
        except TimeoutError:
            rejection = Rejection(Unusable.FAULT, f"its check did not end within {CHECK_SECONDS:g} s")
        except Exception as error:
            logger.exception("checking whether the environment %r can be used", self._environment.name)
            rejection = Rejection(Unusable.FAULT, f"{type(error).__name__}: {error}")
        problem = rejection.message if rejection is not None else ""
        if problem != self._problem:
            (logger.warning if problem and self._environment.named else logger.info)(
                "environment %r %s", self._environment.name,
                f"can't be used: {problem}" if problem else "can be used again")
        self._problem, self._checked_at = problem, loop.time()
        if problem:
            self._on_unusable()
