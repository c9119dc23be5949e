"""Streams to other components that are opened again when they break."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import grpc
from tenacity import AsyncRetrying, retry_if_result

from openclaw_rl.rpc.errors import MeshError, from_rpc_error
from openclaw_rl.runtime.backoff import LASTED, Backoff

logger = logging.getLogger(__name__)


class TryAgain(Exception):
    """Ends a stream, which is opened again after a pause; the text says why.

    Args:
        stuck: the next stream will most likely end alike, whatever this one achieved: the pauses grow.
    """

    def __init__(self, text: str, stuck: bool = False) -> None:
        super().__init__(text)
        self.stuck = stuck


class ReconnectingStream:
    """Runs a stream again and again, with pauses that grow from 0.1 to 5 s.

    The pauses begin anew only after real progress: the other side answered and the stream lasted for 10 s, or the
    streams since the last reset have together achieved what `progressed` calls a whole. Small progress is not enough,
    so that a peer which acknowledges one message per stream isn't asked a hundred times a second.

    Args:
        name: for the log, such as "weight stream to the policy server".
        converse: runs one stream until it breaks, and raises what ended it. A TryAgain and an error of gRPC, of the
            mesh or of the system is kept in `error`; anything else is a fault, logged with its traceback.
        level: of the log entry when the stream can't be opened.

    Attributes:
        error: the last one; "" when all is well.
        reason: its key in `errors.CATALOGUE`, where it has one.
        stopping: set it to open no further stream.
    """

    def __init__(self, name: str, converse: Callable[[], Awaitable[None]], *, level: int = logging.INFO) -> None:
        self.error = self.reason = ""
        self.stopping = asyncio.Event()
        self._name, self._converse, self._level = name, converse, level
        self._backoff = Backoff()
        self._progress = 0.0  # since the pauses last began anew; 1 begins them anew
        self._down_since: float | None = None  # on the monotonic clock; None while the other side answers

    async def run(self) -> None:
        """Open streams until `stopping` is set."""
        self._down_since = time.monotonic()
        await AsyncRetrying(retry=retry_if_result(lambda _: True), wait=self._backoff, sleep=self._pause,
                            stop=lambda _: self.stopping.is_set(), retry_error_callback=lambda _: None)(self._once)

    def answered(self) -> None:
        """Note that the other side is there."""
        self.error, self._down_since = "", None

    def progressed(self, share: float = 1.0) -> None:
        """Note progress.

        Args:
            share: of what is worth opening the next stream at once, such as a window of messages.
        """
        self._progress += share

    def down(self) -> float:
        """Seconds for which the other side has not been there; 0 while it is."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            pass

    async def _once(self) -> None:
        began, failure = time.monotonic(), None
        try:
            await self._converse()
        except Exception as error:
            failure = error
        if self._down_since is None and time.monotonic() - began >= LASTED:
            self.progressed()
        if failure is not None:
            self._failed(failure)
        if self._progress >= 1:
            self._progress = 0.0
            self._backoff.reset()
        if self._down_since is None:
            self._down_since = time.monotonic()

    def _failed(self, error: Exception) -> None:
        known = isinstance(error, grpc.RpcError | MeshError | TryAgain | OSError)
        text, self.reason = error_text(error) if known else f"{type(error).__name__}: {error}", ""
        level = self._level if self._down_since is not None else min(self._level, logging.INFO)
        stuck = isinstance(error, TryAgain) and error.stuck
        if isinstance(error, grpc.RpcError | MeshError):
            status = from_rpc_error(error) if isinstance(error, grpc.RpcError) else error
            self.reason = status.reason
            if status is not error and status.code == grpc.StatusCode.UNAVAILABLE and status.retry_after is not None:
                self._down_since = time.monotonic()  # it is there, and getting ready
            stuck = stuck or status.code == grpc.StatusCode.ABORTED  # another took over: don't chase each other
        if stuck:
            self._progress = 0.0
        if text != self.error:  # once, not with each attempt of a long outage
            if known:
                logger.log(level, "%s: %s; retrying", self._name, text)
            else:
                logger.error("%s failed; retrying", self._name, exc_info=error)
        self.error = text


def error_text(error: Exception) -> str:
    """What an error says, without gRPC's trimmings."""
    return from_rpc_error(error).message if isinstance(error, grpc.RpcError) else str(error)


async def together(work: Iterable[Coroutine[Any, Any, None]], cancelled: str) -> None:
    """Run the parts of a stream at the same time, until one fails or all have ended; no part outlives the others.

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
