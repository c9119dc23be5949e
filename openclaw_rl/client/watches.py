"""Watches that outlive a break of the connection or a restart of the component."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any, TypeVar, cast

from openclaw_rl.rpc.errors import MeshError, unavailable

T = TypeVar("T")
R = TypeVar("R")

#: Seconds of the first pause, and of the longest one.
FIRST, LONGEST = 0.1, 5.0
#: Told of each break; the watch goes on behind it.
OnBreak = Callable[[MeshError], None]


class _Pauses:
    """Growing ones, with some chance in them, that start afresh once something came."""

    def __init__(self) -> None:
        self._next = FIRST

    def reset(self) -> None:
        self._next = FIRST

    def after(self, error: MeshError, on_break: OnBreak | None) -> float:
        """Seconds to wait behind a break.

        Raises:
            MeshError: the error, when repeating makes no sense.
        """
        if not error.retryable:
            raise error
        if on_break is not None:
            on_break(error)
        pause, self._next = self._next, min(2 * self._next, LONGEST)
        return max(pause, min(error.retry_after or 0, LONGEST)) * random.uniform(0.8, 1.2)


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
    pauses = _Pauses()
    while True:
        try:
            with closing(cast("Any", open_stream())) as stream:
                for message in stream:
                    pauses.reset()
                    yield tell(message)
            raise unavailable("the component has ended the watch")
        except MeshError as error:
            time.sleep(pauses.after(error, on_break))


async def follow_async(open_stream: Callable[[], AsyncIterator[T]], tell: Callable[[T], R],
                       on_break: OnBreak | None = None) -> AsyncIterator[R]:
    """As `follow`. Its `aclose` cancels the call at once; leaving a loop over it does so a moment later."""
    pauses = _Pauses()
    while True:
        try:
            async with aclosing(cast("Any", open_stream())) as stream:
                async for message in stream:
                    pauses.reset()
                    yield tell(message)
            raise unavailable("the component has ended the watch")
        except MeshError as error:
            await asyncio.sleep(pauses.after(error, on_break))
