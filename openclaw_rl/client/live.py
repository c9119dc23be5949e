"""A live session over EnvironmentService.Interact: say something, read the answer, say something more."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self, cast

from openclaw_rl.client.chat import Ask, Messages, Talk, conversation, request
from openclaw_rl.client.options import check
from openclaw_rl.rpc.errors import MeshError, unavailable
from openclaw_rl.v1.environment_pb2 import InteractRequest, InteractResponse
from openclaw_rl.v1.turn_pb2 import Turn


def _first(options: Talk) -> InteractRequest:
    """Session, type, version, tools and sampling, which stay the same until others are given."""
    check("live()", options, Talk)
    chat = request("", cast("Ask", options))
    return InteractRequest(turn=chat.turn, tools=chat.tools, sampling=chat.sampling)


class _Live:
    """What both kinds share.

    Attributes:
        turn: the last answer's turn, complete; None before there is one.
    """

    def __init__(self, options: Talk) -> None:
        self.turn: Turn | None = None
        self._first: InteractRequest | None = _first(options)
        self._answering = False

    def _said(self, messages: Messages) -> InteractRequest:
        if self._answering:
            raise RuntimeError("the last answer was not read to its end: what is said now would be answered behind it")
        sent = InteractRequest(messages=conversation(messages))
        if self._first is not None:
            sent.MergeFrom(self._first)
            self._first = None
        self._answering = True
        return sent

    def _take(self, event: InteractResponse) -> str:
        """Take in a piece of the answer. Returns its text."""
        if event.HasField("turn"):
            self.turn, self._answering = event.turn, False
        return event.content

    def _broken_off(self) -> MeshError:
        self._answering = False
        return unavailable("the environment server ended the live session before the answer was complete")


class LiveSession(_Live):
    """Leaving its `with` ends the call; the session itself goes on, and ends by EndSession or its time-out."""

    def __init__(self, open_stream: Callable[[Iterator[InteractRequest]], Iterator[InteractResponse]],
                 options: Talk) -> None:
        super().__init__(options)
        self._requests: queue.Queue[InteractRequest | None] = queue.Queue()
        self._answers = open_stream(iter(self._requests.get, None))

    def say(self, messages: Messages) -> Iterator[str]:
        """Send user or tool messages; the answer's text as it comes. Read it to the end before you say more."""
        self._requests.put(self._said(messages))
        for event in self._answers:
            if text := self._take(event):
                yield text
            if not self._answering:
                return
        raise self._broken_off()

    def close(self) -> None:
        """End the call."""
        self._requests.put(None)
        cast("Any", self._answers).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLiveSession(_Live):
    """As `LiveSession`."""

    def __init__(self, open_stream: Callable[[AsyncIterator[InteractRequest]], AsyncIterator[InteractResponse]],
                 options: Talk) -> None:
        super().__init__(options)
        self._requests: asyncio.Queue[InteractRequest] = asyncio.Queue()
        self._answers = open_stream(self._sent())

    async def _sent(self) -> AsyncIterator[InteractRequest]:
        while True:
            yield await self._requests.get()

    async def say(self, messages: Messages) -> AsyncIterator[str]:
        """As `LiveSession.say`."""
        self._requests.put_nowait(self._said(messages))
        async for event in self._answers:
            if text := self._take(event):
                yield text
            if not self._answering:
                return
        raise self._broken_off()

    async def aclose(self) -> None:
        """End the call."""
        await cast("Any", self._answers).aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
