"""A conversation with another component that is begun again when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import grpc
from tenacity import AsyncRetrying, retry_if_exception, stop_when_event_set, wait_exponential, wait_random

from openclaw_rl.rpc.errors import MeshError, from_rpc_error

logger = logging.getLogger(__name__)

_LASTED = 10.0  # seconds after which a conversation was a good one: when it breaks, the pauses begin anew


class TryAgain(Exception):
    """The conversation is ended and begun again after a while; the text says why.

    Args:
        stuck: the next one will most likely end alike, however much this one brought forward: the pauses grow.
    """

    def __init__(self, text: str, stuck: bool = False) -> None:
        super().__init__(text)
        self.stuck = stuck


class Line:
    """Holds the conversation again and again, with growing pauses (0.1 to 5 s) while nothing comes of it.

    Args:
        what: for the log, such as "weight stream to the policy server".
        converse: one conversation, until it breaks; raises what ended it. A TryAgain, an error of gRPC, of the mesh or
            of the system is told in `error`; anything else is a fault, whose traceback is logged.

    Attributes:
        error: the last one; "" when all is well.
        reason: its key in mesh.errors.CATALOGUE, where it has one.
        got_on: the present conversation brought something forward, so that the next one may begin at once; set by it.
        stopping: no further conversation begins.
    """

    def __init__(self, what: str, converse: Callable[[], Awaitable[None]]) -> None:
        self.error = self.reason = ""
        self.got_on = False
        self.stopping = asyncio.Event()
        self._what = what
        self._converse = converse
        self._down_since: float | None = None  # seconds of the event loop's clock; None while the other side answers
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Converse until `stopping` is set."""
        self._loop = asyncio.get_running_loop()
        self._down_since = self._loop.time()
        while not self.stopping.is_set():
            retrying = AsyncRetrying(
                wait=wait_exponential(multiplier=0.1, max=5.0) + wait_random(0, 0.1), sleep=self._pause,
                stop=stop_when_event_set(self.stopping),  # type: ignore[arg-type]
                retry=retry_if_exception(lambda error: isinstance(error, Exception) and not self.got_on), reraise=True)
            try:
                await retrying(self._once)
            except Exception as error:
                logger.debug("the %s broke, beginning again: %s", self._what, error)

    def answered(self) -> None:
        """The other side is there."""
        self.error, self._down_since = "", None

    def down(self) -> float:
        """Seconds for which the other side has not been there; 0 while it is."""
        return 0.0 if self._down_since is None or self._loop is None else self._loop.time() - self._down_since

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            pass

    async def _once(self) -> None:
        self.got_on = False
        began = asyncio.get_running_loop().time()
        try:
            await self._converse()
        except Exception as error:
            now = asyncio.get_running_loop().time()
            if self._down_since is None and now - began > _LASTED:
                self.got_on = True
            self._failed(error)
            raise
        finally:
            if self._down_since is None:
                self._down_since = asyncio.get_running_loop().time()

    def _failed(self, error: Exception) -> None:
        text, self.reason = said(error), ""
        if isinstance(error, grpc.RpcError):
            known = from_rpc_error(error)
            self.reason = known.reason
            if known.code == grpc.StatusCode.UNAVAILABLE and known.retry_after is not None:
                self._down_since = asyncio.get_running_loop().time()  # it is there, and getting ready
            if known.code == grpc.StatusCode.ABORTED:
                self.got_on = False  # somebody else took over: don't chase each other at full speed
        if isinstance(error, TryAgain) and error.stuck:
            self.got_on = False
        if not isinstance(error, grpc.RpcError | MeshError | TryAgain | OSError):
            logger.exception("the %s failed", self._what)
        elif text != self.error:
            logger.info("no %s, trying again: %s", self._what, text)
        self.error = text


def said(error: Exception) -> str:
    """What an error says, without gRPC's trimmings."""
    return from_rpc_error(error).message if isinstance(error, grpc.RpcError) else str(error)


async def together(work: Iterable[Coroutine[Any, Any, None]], cancelled: str) -> None:
    """Run parts of a conversation at the same time, until one fails or all have ended; no part outlives the others.

    Raises:
        TryAgain: with the text `cancelled`: a part was cancelled, as gRPC tells a status of CANCELLED.
        Exception: what the first part failed with.
    """
    tasks = [asyncio.create_task(part) for part in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.cancelled():
                raise TryAgain(cancelled)
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
