"""Responses as a sequence of blocks: reasoning, text and tool calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import orjson

from openclaw_rl.serving.interfaces import Delta, End, Start
from openclaw_rl.v1 import turn_pb2

Kind = Literal["reasoning", "text"]


class BlockReply(ABC):
    """The reply to a request for one response.

    Args:
        turn_id: names the response.
        session_id: of its session.
        model: its name.
        created: when the request came, seconds since the epoch.
    """

    def __init__(self, turn_id: str, session_id: str, model: str, created: int) -> None:
        self.turn_id, self.session_id, self.model, self.created = turn_id, session_id, model, created
        self._open: Kind | None = None
        self._text = ""  # of the open block

    def served_by(self, fingerprint: str) -> None:  # noqa: B027
        """These APIs have no place for it; the version is in a header."""

    def note(self, choice: int, delta: Delta) -> None:  # noqa: B027
        """All that a whole response has is in its `End`."""

    @abstractmethod
    def opening(self, choice: int, start: Start) -> bytes:
        """The first events."""

    def chunk(self, choice: int, delta: Delta) -> bytes:
        """The events of a delta; empty when there is nothing to send yet."""
        data = b""
        for kind, text in (("reasoning", delta.reasoning), ("text", delta.text)):
            if not text:
                continue
            if self._open != kind:
                data += self._close()
                self._open, self._text = kind, ""  # type: ignore[assignment]
                data += self.begin(self._open)  # type: ignore[arg-type]
            self._text += text
            data += self.piece(self._open, text)  # type: ignore[arg-type]
        for call in delta.tool_calls:
            data += self._close() + self.call(call)
        return data

    def ending(self, choice: int, end: End) -> bytes:
        """The end of the open block."""
        return self._close()

    @abstractmethod
    def tail(self, ends: list[End]) -> bytes:
        """The last events."""

    @abstractmethod
    def whole(self, ends: list[End]) -> bytes:
        """The whole response."""

    @abstractmethod
    def begin(self, kind: Kind) -> bytes:
        """The events that open a block."""

    @abstractmethod
    def piece(self, kind: Kind, text: str) -> bytes:
        """More text of the open block."""

    @abstractmethod
    def finish(self, kind: Kind, text: str) -> bytes:
        """The events that close a block, which has `text`."""

    @abstractmethod
    def call(self, call: turn_pb2.ToolCall) -> bytes:
        """The events of a tool call."""

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        kind, self._open = self._open, None
        return self.finish(kind, self._text)


def event(data: dict[str, Any]) -> bytes:
    """A server-sent event, named by its type."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))
