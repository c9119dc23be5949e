"""A live session over EnvironmentService.Interact: say something, read the answer, say something more."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self, cast

from ..mesh.errors import unavailable
from ..v1.environment_pb2 import InteractRequest, InteractResponse
from ..v1.turn_pb2 import Turn, TurnOptions
from .chat import Ask, Messages, conversation, request


def _first(options: Ask) -> InteractRequest:
    """Session, type, version, tools and sampling, which stay the same until others are given."""
    chat = request("", options)
    return InteractRequest(turn=chat.turn if chat.HasField("turn") else TurnOptions(), tools=chat.tools,
                           sampling=chat.sampling)


class LiveSession:
    """Leaving its `with` ends the call; the session itself goes on, and ends by EndSession or its time-out.

    Attributes:
        turn: the last answer's turn, complete; None before there is one.
    """

    def __init__(self, open_stream: Callable[[Iterator[InteractRequest]], Iterator[InteractResponse]],
                 options: Ask) -> None:
        self.turn: Turn | None = None
        self._first: InteractRequest | None = _first(options)
        self._requests: queue.Queue[InteractRequest | None] = queue.Queue()
        self._answers = open_stream(iter(self._requests.get, None))

    def say(self, messages: Messages) -> Iterator[str]:
        """Send user or tool messages; the answer's text as it comes. Read it to the end before you say more."""
        sent = InteractRequest(messages=conversation(messages))
        if self._first is not None:
            sent.MergeFrom(self._first)
            self._first = None
        self._requests.put(sent)
        for event in self._answers:
            if event.HasField("turn"):
                self.turn = event.turn
                return
            if event.content:
                yield event.content
        raise unavailable("the environment server ended the live session before the answer was complete")

    def close(self) -> None:
        """End the call."""
        self._requests.put(None)
        cast("Any", self._answers).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLiveSession:
    """As `LiveSession`."""

    def __init__(self, open_stream: Callable[[AsyncIterator[InteractRequest]], AsyncIterator[InteractResponse]],
                 options: Ask) -> None:
        self.turn: Turn | None = None
        self._first: InteractRequest | None = _first(options)
        self._requests: asyncio.Queue[InteractRequest] = asyncio.Queue()
        self._answers = open_stream(self._sent())

    async def _sent(self) -> AsyncIterator[InteractRequest]:
        while True:
            yield await self._requests.get()

    async def say(self, messages: Messages) -> AsyncIterator[str]:
        """As `LiveSession.say`."""
        sent = InteractRequest(messages=conversation(messages))
        if self._first is not None:
            sent.MergeFrom(self._first)
            self._first = None
        self._requests.put_nowait(sent)
        async for event in self._answers:
            if event.HasField("turn"):
                self.turn = event.turn
                return
            if event.content:
                yield event.content
        raise unavailable("the environment server ended the live session before the answer was complete")

    async def aclose(self) -> None:
        """End the call."""
        await cast("Any", self._answers).aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
