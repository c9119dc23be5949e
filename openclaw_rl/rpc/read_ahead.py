"""Messages of a stream that are read while earlier ones are worked on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(AsyncIterator[T], Generic[T]):
    """The messages of a stream, a bounded number of them taken from it ahead of time.

    What the stream raises is raised after the messages that came before it. `aclose` ends the reading; use it with
    `contextlib.aclosing`.

    Args:
        source: the stream; read from the first `anext` on.
        messages: read ahead at most; further ones wait at the sender, held back by flow control.
    """

    def __init__(self, source: AsyncIterable[T], messages: int = 2) -> None:
        self._source = source
        self._arrived: asyncio.Queue[tuple[T] | None] = asyncio.Queue(messages)
        self._reading: asyncio.Task[None] | None = None

    async def __anext__(self) -> T:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        entry = await self._arrived.get()
        if entry is None:
            self._arrived.put_nowait(None)  # an end stays one
            await self._reading
            raise StopAsyncIteration
        return entry[0]

    def take(self) -> T | None:
        """The next message if it has arrived; None when it has not, or there is none."""
        if self._arrived.empty():
            return None
        entry = self._arrived.get_nowait()
        if entry is None:
            self._arrived.put_nowait(None)
            return None
        return entry[0]

    async def aclose(self) -> None:
        """End the reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for message in self._source:
                await self._arrived.put((message,))
        except asyncio.CancelledError:
            raise  # nobody reads any more
        except BaseException:
            await self._arrived.put(None)
            raise
        await self._arrived.put(None)
