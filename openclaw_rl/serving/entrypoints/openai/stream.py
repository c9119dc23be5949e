"""Responses that end when the client goes away, and several responses at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from openclaw_rl.serving.interfaces import Event


class UntilDisconnect:
    """An ASGI response: `work` sends it, and is cancelled at once when the client disconnects.

    Args:
        ended: when it is set, `work` is cancelled too, and `cut` sends what the client is told instead.
    """

    def __init__(self, work: Callable[[Send], Awaitable[None]], ended: asyncio.Event,
                 cut: Callable[[Send], Awaitable[None]]) -> None:
        self._work, self._ended, self._cut = work, ended, cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._work(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((work, gone, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # All: the server itself may be stopping. What the cancelled work records, it records before it ends.
            for task in (work, gone, ended):
                task.cancel()
            await asyncio.wait((work, gone, ended))
        if not work.cancelled():
            work.result()
        elif not ended.cancelled() and gone.cancelled():
            await self._cut(send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merge(streams: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of several responses as they come, with each one's number. The first error ends them all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue(maxsize=len(streams))

    async def pump(number: int, stream: AsyncGenerator[Event, None]) -> None:
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    await queue.put((number, event))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
