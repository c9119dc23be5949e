"""Watches that survive broken connections and restarts of the component."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any, TypeVar, cast

from openclaw_rl.rpc.errors import MeshError, unavailable
from openclaw_rl.runtime.backoff import LASTED, Backoff

T = TypeVar("T")
R = TypeVar("R")

#: Told of each break; the watch goes on behind it.
OnBreak = Callable[[MeshError], None]


class _Pauses:
    """Growing pauses between the streams of one watch, which begin anew after a stream that lasted."""

    def __init__(self, on_break: OnBreak | None) -> None:
        self._on_break, self._backoff = on_break, Backoff()
        self._began = time.monotonic()

    def begin(self) -> None:
        """Note that a stream is opened."""
        self._began = time.monotonic()

    def after(self, error: MeshError) -> float:
        """Seconds to wait after a break.

        Raises:
            MeshError: the error, when repeating makes no sense.
        """
        if not error.retryable:
            raise error
        if self._on_break is not None:
            self._on_break(error)
        if time.monotonic() - self._began >= LASTED:
            self._backoff.reset()
        return self._backoff.next(error.retry_after)


def follow(open_stream: Callable[[], Iterator[T]], tell: Callable[[T], R],
           on_break: OnBreak | None = None) -> Iterator[R]:
    """Everything that the stream tells, opened again whenever it breaks. Closing the iterator ends it.

    Args:
        open_stream: opens it, each time anew.
        tell: what is wanted of a message.
        on_break: told of each break.

    Raises:
        MeshError: a failure that doesn't go away by itself (wrong key, another component, ...).
    """
    pauses = _Pauses(on_break)
    while True:
        pauses.begin()
        try:
            with closing(cast("Any", open_stream())) as stream:
                for message in stream:
                    yield tell(message)
            raise unavailable("the component has ended the watch")
        except MeshError as error:
            time.sleep(pauses.after(error))


async def follow_async(open_stream: Callable[[], AsyncIterator[T]], tell: Callable[[T], R],
                       on_break: OnBreak | None = None) -> AsyncIterator[R]:
    """As `follow`. Its `aclose` cancels the call at once; leaving a loop over it does so a moment later."""
    pauses = _Pauses(on_break)
    while True:
        pauses.begin()
        try:
            async with aclosing(cast("Any", open_stream())) as stream:
                async for message in stream:
                    yield tell(message)
            raise unavailable("the component has ended the watch")
        except MeshError as error:
            await asyncio.sleep(pauses.after(error))
