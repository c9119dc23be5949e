"""Reading the next message of a stream while the present one is worked on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import TypeVar

T = TypeVar("T")


async def read_ahead(source: AsyncIterable[T], messages: int = 2) -> AsyncIterator[T]:
    """The messages of a stream, so many of them taken from it ahead of time. What the stream raises is raised behind
    the messages that came before it."""
    queue: asyncio.Queue[tuple[T] | None] = asyncio.Queue(messages)

    async def fill() -> None:
        try:
            async for message in source:
                await queue.put((message,))
        finally:
            if not cancelled:
                await queue.put(None)

    cancelled = False
    filling = asyncio.create_task(fill())
    try:
        while (entry := await queue.get()) is not None:
            yield entry[0]
        await filling
    finally:
        cancelled = True
        filling.cancel()
        await asyncio.wait({filling})
