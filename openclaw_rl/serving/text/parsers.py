"""SGLang's parsers of tool calls and reasoning, by name, for every engine that works on token ids.

SGLang's parsers are plain Python, but importing them takes 10 s of a core, so they are imported only when one is
configured. They work on text, after the tokens have been recorded: training never depends on them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.interfaces import CallPiece
from openclaw_rl.serving.text.detokenizer import TokenBytes
from openclaw_rl.serving.text.openai_json import tool_json
from openclaw_rl.v1 import turn_pb2


@dataclass(frozen=True)
class Parsers:
    """Names of SGLang's parsers; None: the built-in tool parser, and no reasoning parser."""

    tool: str | None = None
    reasoning: str | None = None

    def validate(self) -> list[str]:
        """One message for each name unknown to SGLang; imports SGLang."""
        found = []
        if self.tool and self.tool not in _tool_parsers():
            found.append(_unknown("tool_parser", self.tool, _tool_parsers()))
        if self.reasoning and self.reasoning not in _reasoning_parsers():
            found.append(_unknown("reasoning_parser", self.reasoning, _reasoning_parsers()))
        return found

    def markers(self) -> str:
        """The strings that the parsers search for."""
        detectors = []
        if self.tool:
            detectors.append(_tool_parsers()[self.tool]())
        if self.reasoning:
            detectors.append(ReasoningSplitter(self.reasoning).detector)
        return "\n".join(value for detector in detectors for value in vars(detector).values()
                         if isinstance(value, str) and value)

    def shown(self, tokens: TokenBytes) -> TokenBytes:
        """Return the vocabulary with those special tokens as text that a parser searches for."""
        if not (self.tool or self.reasoning):
            return tokens
        markers = self.markers()
        made = copy.copy(tokens)
        made.special = frozenset(index for index in tokens.special
                                 if tokens.table[index].decode("utf-8", "replace") not in markers)
        return made


class NamedToolParser:
    """A parser of SGLang with the interface of `hermes_tools.ToolParser`: calls are returned when complete."""

    def __init__(self, name: str, tools: Sequence[turn_pb2.ToolDefinition], new_id: Callable[[], str],
                 limit: int | None = None) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        self._parser = FunctionCallParser([Tool.model_validate(tool_json(tool)) for tool in tools], name)
        self._new_id, self._limit = new_id, limit
        self._open: dict[int, list[str]] = {}  # by index: a call's name, then pieces of its arguments
        self.calls = 0  #: calls returned so far
        self.cut = False  #: see ToolParser

    @property
    def complete(self) -> bool:
        """Whether the limit of calls is reached."""
        return self._limit is not None and self.calls >= self._limit

    def pieces(self) -> list[CallPiece]:
        """Return none: calls are given out whole."""
        return []

    def feed(self, text: str) -> tuple[str, list[turn_pb2.ToolCall]]:
        """Return new text, and the calls that are complete with it."""
        shown: list[str] = []
        calls: list[turn_pb2.ToolCall] = []
        for char in text:  # SGLang 0.5.23 loses text in the same piece as the beginning of a call
            if self.complete:
                break
            new, items = self._parser.parse_stream_chunk(char)
            shown.append(new)
            self._take(items)
            calls += self._ready()
        return "".join(shown), calls

    def finish(self) -> tuple[str, list[turn_pb2.ToolCall]]:
        """Return what was held back."""
        if self.complete:
            return "", []
        shown, items = self._parser.parse_stream_end()
        self._take(items)
        return shown, [*self._ready(), *self._close(list(self._open))]

    def _take(self, items: Sequence[Any]) -> None:
        for item in items:
            pieces = self._open.setdefault(item.tool_index, [""])
            if item.name:
                pieces[0] = item.name
            if item.parameters:
                pieces.append(item.parameters)

    def _ready(self) -> list[turn_pb2.ToolCall]:
        """Return calls with complete arguments: a later call has begun, or they are a whole object."""
        last = max(self._open, default=-1)
        return self._close([index for index, pieces in self._open.items()
                            if index < last or _whole("".join(pieces[1:]))])

    def _close(self, indices: Sequence[int]) -> list[turn_pb2.ToolCall]:
        made = []
        for index in sorted(indices):
            name, *pieces = self._open.pop(index)
            if name and not self.complete:
                made.append(turn_pb2.ToolCall(id=self._new_id(), name=well_formed(name),
                                              arguments_json=well_formed("".join(pieces)) or "{}"))
                self.calls += 1
        return made


class ReasoningSplitter:
    """Splits a response, piece by piece, into reasoning and the rest."""

    def __init__(self, name: str) -> None:
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        self._parser = ReasoningParser(name, stream_reasoning=True)
        self.detector = self._parser.detector

    def feed(self, text: str) -> tuple[str, str]:
        """Return the new (reasoning, rest)."""
        if not text:
            return "", ""
        reasoning, rest = self._parser.parse_stream_chunk(text)
        return reasoning or "", rest or ""

    def finish(self) -> tuple[str, str]:
        """Return what was held back."""
        reasoning, rest = self._parser.parse_stream_end()
        return reasoning or "", rest or ""


def _whole(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


def _unknown(key: str, name: str, known: dict[str, Any]) -> str:
    return (f"components.policy_server.sglang.{key}: {name!r} is unknown to SGLang; allowed: "
            f"{', '.join(sorted(known))}")


def _tool_parsers() -> dict[str, Any]:
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    known: dict[str, Any] = FunctionCallParser.ToolCallParserEnum
    return known


def _reasoning_parsers() -> dict[str, Any]:
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    known: dict[str, Any] = ReasoningParser.DetectorMap
    return known
