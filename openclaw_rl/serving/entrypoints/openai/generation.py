"""Responses of the policy over HTTP, whole or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.pipeline import Exchange
from openclaw_rl.serving.entrypoints.openai.replies import Reply
from openclaw_rl.serving.entrypoints.openai.requests import ApiRequest
from openclaw_rl.serving.interfaces import End, Event, RequestContext, Start


class Generation:
    """Runs the choices of one request and sends them.

    Args:
        asked: the parsed request.
        reply: writes its bodies.
    """

    def __init__(self, service: ChatService, exchange: Exchange, context: RequestContext, asked: ApiRequest,
                 reply: Reply) -> None:
        self._service, self._exchange = service, exchange
        self._context, self._asked, self._reply = context, asked, reply

    async def run(self) -> None:
        """Send the response.

        Raises:
            MeshError: the policy refused the request, or failed.
        """
        exchange, reply, stream = self._exchange, self._reply, self._asked.stream
        choices = [self._service.run(self._context, call, i) for i, call in enumerate(self._asked.calls)]
        ends: dict[int, End] = {}
        async with aclosing(merge(choices)) as events:
            async for choice, event in events:
                data = b""
                if isinstance(event, Start):
                    if exchange.version is None:
                        await self._begin(event.version)
                    data = reply.opening(choice, event)
                elif isinstance(event, End):
                    ends[choice] = event
                    data = reply.ending(choice, event)
                elif stream:
                    data = reply.chunk(choice, event)
                else:
                    reply.note(choice, event)
                if data and stream:
                    await exchange.write(data, more=True)
        await self._finish([ends[choice] for choice in range(len(choices))])

    async def _begin(self, version: int) -> None:
        """The first token has come."""
        self._exchange.version = version
        self._reply.served_by(f"{self._service.model}@{version}")
        if self._asked.stream:
            await self._start(b"text/event-stream; charset=utf-8",
                              # Proxies must not buffer.
                              [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")])

    async def _finish(self, ends: list[End]) -> None:
        if self._asked.stream:
            tail = self._reply.tail(ends)
        else:
            tail = self._reply.whole(ends)
            await self._start(b"application/json", [(b"content-length", str(len(tail)).encode())])
        await self._exchange.write(tail)

    async def _start(self, content_type: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        turn_id = self._context.turn_id.encode()
        await self._exchange.start(200, [
            (b"content-type", content_type), (b"x-openclaw-turn-id", turn_id),
            (b"x-openclaw-policy-version", str(self._exchange.version or 0).encode()), (b"x-request-id", turn_id),
            *headers])


async def merge(streams: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[tuple[int, Event], None]:
    """Interleave the events of several responses, each with its response's index. The first error ends them all."""
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
