"""A streamed chat as an iterator of its text, with its metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any, Self, TypedDict, cast

from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.v1.policy_pb2 import ChatEnd, ChatRequest, ChatResponse, ChatStart, TokenChunk
from openclaw_rl.v1.turn_pb2 import (
    FINISH_REASON_UNSPECIFIED,
    ChatMessage,
    FinishReason,
    SamplingParams,
    ToolCall,
    ToolDefinition,
    TurnOptions,
)

#: A user's message, or a whole conversation.
Messages = str | Sequence[ChatMessage]


class Talk(TypedDict, total=False):
    """What may be said of each answer of a live session; what is left out takes the server's default."""

    session_id: str  #: conversation that the turn belongs to; else the mesh finds it by the messages
    turn_type: str  #: "main", "side" or a label of your own
    session_done: bool  #: the session ends with this turn
    min_version: int  #: lowest policy version that may answer
    exact_version: int  #: the only one that may
    no_record: bool  #: leave no record
    tools: Sequence[ToolDefinition]
    sampling: SamplingParams  #: all of the settings; `max_tokens` and `temperature` go before it
    max_tokens: int
    temperature: float
    timeout: float  #: seconds for the whole answer, or session


class Ask(Talk, total=False):
    """The same of a chat, and what only that has."""

    tool_choice: str  #: "auto", "none", "required" or a function's name
    parallel_tool_calls: bool
    metadata: Mapping[str, str]  #: kept with the turn


_TURN = ("session_id", "turn_type", "session_done", "min_version", "exact_version", "no_record")
_SAMPLING = ("max_tokens", "temperature")


def conversation(messages: Messages) -> list[ChatMessage]:
    """The messages; a text is one of the user."""
    return [ChatMessage(role="user", content=messages)] if isinstance(messages, str) else list(messages)


def request(messages: Messages, options: Ask) -> ChatRequest:
    """The request that says so."""
    given = cast("dict[str, Any]", options)
    sampling = SamplingParams()
    sampling.CopyFrom(given.get("sampling", sampling))
    for name in _SAMPLING:
        if given.get(name) is not None:
            setattr(sampling, name, given[name])
    made = ChatRequest(messages=conversation(messages), tools=given.get("tools", ()),
                       tool_choice=given.get("tool_choice", ""), sampling=sampling, metadata=given.get("metadata", {}),
                       turn=TurnOptions(**{name: given[name] for name in _TURN if name in given}))
    if "parallel_tool_calls" in given:
        made.parallel_tool_calls = given["parallel_tool_calls"]
    return made


class _Answer:
    """What has come of an answer until now.

    Attributes:
        start: turn, session, version and model; None before the first message.
        end: why and how it ended, and the whole message; None before it did.
        text: all of it so far.
        tool_calls: those that are complete.
        tokens: with their log-probabilities and versions; none of an API model.
    """

    def __init__(self) -> None:
        self.start: ChatStart | None = None
        self.end: ChatEnd | None = None
        self.text = ""
        self.tool_calls: list[ToolCall] = []
        self.tokens: list[TokenChunk] = []

    @property
    def turn_id(self) -> str:
        """Empty before the first message."""
        return self.start.turn_id if self.start else ""

    @property
    def session_id(self) -> str:
        """Empty before the first message."""
        return self.start.session_id if self.start else ""

    @property
    def policy_version(self) -> int:
        """That was active as the answer started; -1 before the first message."""
        return self.start.policy_version if self.start else -1

    @property
    def finish_reason(self) -> FinishReason.ValueType:
        """Unspecified before the end."""
        return self.end.generation.finish_reason if self.end else FINISH_REASON_UNSPECIFIED

    @property
    def message(self) -> ChatMessage:
        """The whole message, for the next request of the conversation. Before the end: what there is of it."""
        if self.end is not None:
            return self.end.message
        return ChatMessage(role="assistant", content=self.text, tool_calls=self.tool_calls)

    def _take(self, event: ChatResponse) -> str:
        """Take in a piece. Returns its text."""
        match event.WhichOneof("event"):
            case "start":
                self.start = event.start
            case "delta":
                self.text += event.delta.content
                self.tool_calls += event.delta.tool_calls
                self.tokens += event.delta.tokens
                return event.delta.content
            case "end":
                self.end = event.end
        return ""

    def _check_ended(self) -> None:
        if self.end is None:
            raise unavailable("the answer broke off: the policy server ended the stream before its last message")


class ChatAnswer(_Answer):
    """Iterate it for the text as it comes. Closing it, or leaving its `with`, cancels the generation.

    Raises (while it is read):
        MeshError: it failed.
    """

    def __init__(self, events: Callable[[], Iterator[ChatResponse]]) -> None:
        super().__init__()
        self._pieces = self._read(events)

    def _read(self, events: Callable[[], Iterator[ChatResponse]]) -> Iterator[str]:
        with closing(cast("Any", events())) as stream:
            for event in stream:
                if text := self._take(event):
                    yield text
        self._check_ended()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def read(self) -> str:
        """Wait for the end; the whole text."""
        for _ in self._pieces:
            pass
        return self.text

    def close(self) -> None:
        """Cancel it, unless it has ended."""
        cast("Any", self._pieces).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncChatAnswer(_Answer):
    """As `ChatAnswer`: `async for` gives the text as it comes, leaving its `async with` cancels the generation."""

    def __init__(self, events: Callable[[], AsyncIterator[ChatResponse]]) -> None:
        super().__init__()
        self._pieces = self._read(events)

    async def _read(self, events: Callable[[], AsyncIterator[ChatResponse]]) -> AsyncIterator[str]:
        async with aclosing(cast("Any", events())) as stream:
            async for event in stream:
                if text := self._take(event):
                    yield text
        self._check_ended()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def read(self) -> str:
        """Wait for the end; the whole text."""
        async for _ in self._pieces:
            pass
        return self.text

    async def aclose(self) -> None:
        """Cancel it, unless it has ended."""
        await cast("Any", self._pieces).aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
