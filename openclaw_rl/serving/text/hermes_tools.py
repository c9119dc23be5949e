"""Tool calls in the Hermes style: described in the system prompt, parsed from the streaming response.

The style is that of NousResearch's Hermes models, which many small models have learned:
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Bare JSON calls, as Llama 3 writes them, are parsed
too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.runtime.json import parse_json_prefix
from openclaw_rl.serving.interfaces import CallPiece
from openclaw_rl.serving.text.call_stream import CallStream
from openclaw_rl.serving.text.detokenizer import overlap
from openclaw_rl.serving.text.openai_json import tool_json
from openclaw_rl.v1 import turn_pb2

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BARE_LIMIT = 64  # characters within which a bare JSON call contains "name"
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_BARE_KEYS = {"name", "arguments", "parameters", "type", "id"}
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*')


def describe(tools: Sequence[turn_pb2.ToolDefinition]) -> str:
    """The part of a system prompt that describes the tools."""
    lines = "\n".join(json.dumps(tool_json(tool), ensure_ascii=False) for tool in tools)
    return ("# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
            f"function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n</tools>\n\nFor each function "
            "call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
            f'{OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CLOSE}')


def call_text(call: turn_pb2.ToolCall) -> str:
    """A call in the text form that models write."""
    return f'{OPEN}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": ' \
           f"{call.arguments_json or '{}'}}}\n{CLOSE}"


def forced_opening(tools: Sequence[turn_pb2.ToolDefinition], choice: str) -> str:
    """The beginning of the call that a tool choice forces; empty when none is forced."""
    if choice in ("auto", "none", ""):
        return ""
    if choice == "required":
        if len(tools) != 1:
            return f'{OPEN}\n{{"name": "'
        choice = tools[0].name
    return f'{OPEN}\n{{"name": {json.dumps(choice, ensure_ascii=False)}, "arguments":'


class ToolParser:
    """Splits a response, piece by piece, into text and calls of declared functions. Text before a call is returned at
    once; white space between calls, and around the only ones, is no text. All else that is no call is returned as text.
    """

    def __init__(self, new_id: Callable[[], str], opening: str = "", limit: int | None = None,
                 names: Collection[str] | None = None, stream: bool = False) -> None:
        """Args:
            new_id: makes the ids of calls.
            opening: the call's beginning that the prompt forced already.
            limit: calls after which the response is complete.
            names: of the functions; None: any.
            stream: return arguments as they come (`pieces`), of calls that a grammar keeps well-formed.
        """
        self._new_id, self._limit, self._names = new_id, limit, names
        self._stream = stream and names is not None
        self._forced = bool(opening)
        self._state: Literal["start", "text", "call"] = "call" if opening else "start"
        self._held = opening.removeprefix(OPEN)
        self._open: tuple[str, CallStream] | None = None  # the call whose arguments come: its id
        self._space: str | None = ""  # white space at the start or behind a call; None: text has followed
        self._pieces: list[CallPiece] = []
        self.calls = 0  #: calls found so far
        self.cut = False  #: the response ended within a call's arguments

    @property
    def complete(self) -> bool:
        """As many calls as wanted are there."""
        return self._limit is not None and self.calls >= self._limit

    def pieces(self) -> list[CallPiece]:
        """Return the pieces of calls that came since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def feed(self, text: str) -> tuple[str, list[turn_pb2.ToolCall]]:
        """New text and the calls that are complete with it."""
        self._held += text
        shown: list[str] = []
        calls: list[turn_pb2.ToolCall] = []
        while not self.complete:
            if self._state == "start":
                if not self._held.strip() or self._looks_bare():
                    break
                self._state = "text"
            if self._state == "text":
                at = self._held.find(OPEN)
                cut = len(self._held) - overlap(self._held, OPEN) if at < 0 else at
                self._show(self._held[:cut], shown)
                self._held = self._held[cut if at < 0 else at + len(OPEN):]
                if at < 0:
                    break
                self._state = "call"
            at = self._held.find(CLOSE, self._read_arguments())
            if at < 0:
                break
            body, self._held = self._held[:at], self._held[at + len(CLOSE):]
            self._take(body, calls, shown, OPEN, CLOSE)
            self._state = "text"
        return "".join(shown), calls

    def finish(self) -> tuple[str, list[turn_pb2.ToolCall]]:
        """What was held back: a call whose end is missing, or text after all."""
        held, self._held = self._held, ""
        calls: list[turn_pb2.ToolCall] = []
        shown: list[str] = []
        if self.complete:
            return "", []
        if self._state == "call":
            self._take(held, calls, shown, OPEN, "")
        elif self._state == "start":
            self._take(held, calls, shown, "", "")
        else:
            self._show(held, shown)
        if self._space and not self.calls:
            shown.append(self._space)
        return "".join(shown), calls

    def _read_arguments(self) -> int:
        """Give out the arguments that have come; returns where the call's end can be: not within their texts."""
        if self._open is None and self._stream and (begun := CallStream.of(self._held, self._names or ())):
            self._open = self._new_id(), begun
            self._pieces.append(CallPiece(self.calls, self._open[0], begun.name))
        if self._open is None:
            return 0
        _, stream = self._open
        if new := stream.read(self._held):
            self._pieces.append(CallPiece(self.calls, arguments=new))
        return len(self._held) if stream.end is None else stream.end

    def _looks_bare(self) -> bool:
        """Whether the response may be a call without its tags: then it is held back to its end."""
        text = self._held.lstrip()[:_BARE_LIMIT]
        return text.startswith(("{", "[")) and ('"name"' in text or len(text) < _BARE_LIMIT)

    def _take(self, body: str, calls: list[turn_pb2.ToolCall], shown: list[str], before: str, after: str) -> None:
        """Take a call from its text, or show it as text; `before` and `after`: its tags."""
        if self._open is not None:
            (id_, stream), self._open = self._open, None
            self.cut = stream.end is None
            self._add(calls, id_, stream.name, body[stream.begin:stream.end])
            rest = "" if self.cut else body[stream.end:].strip().removeprefix("}")
        else:
            found, rest = parse_calls(body, self._names, bare=not before)
            if before and not rest.strip():
                rest = ""
            if not found and self._forced:
                found = [call for call in parse_broken(body) if self._names is None or call[0] in self._names]
                rest = ""
            for name, arguments in found:
                if not self.complete:
                    self._add(calls, self._new_id(), name, arguments)
            if not found:
                rest = f"{before}{body}{after}"
        self._forced = False
        self._show(rest, shown)

    def _add(self, calls: list[turn_pb2.ToolCall], id_: str, name: str, arguments: str) -> None:
        calls.append(turn_pb2.ToolCall(id=id_, name=well_formed(name), arguments_json=well_formed(arguments)))
        self.calls += 1
        self._space = ""

    def _show(self, text: str, shown: list[str]) -> None:
        """Show text; white space behind a call only once other text follows it."""
        if self._space is None:
            shown.append(text)
        elif text.strip():
            shown.append(self._space + text)
            self._space = None
        else:
            self._space += text


def parse_calls(text: str, names: Collection[str] | None = None,
                bare: bool = False) -> tuple[list[tuple[str, str]], str]:
    """Parse the call or list of calls at the start of a text.

    Args:
        names: of functions that can be called; None: any.
        bare: it stands without tags, so that it may be JSON that means something else: a call has arguments, and no
            other keys.

    Returns:
        (name, arguments as JSON) of each, empty when there is none; and the text that follows.
    """
    start = len(text) - len(text.lstrip())
    try:
        value, end = parse_json_prefix(text, start)
    except ValueError:  # a small model may keep opening brackets
        return [], text
    calls = []
    for item in value if isinstance(value, list) else [value]:
        call = _call(item, bare)
        if call is None or (names is not None and call[0] not in names):
            return [], text
        calls.append(call)
    return calls, text[end:]


def _call(item: Any, bare: bool) -> tuple[str, str] | None:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not item["name"]:
        return None
    given = item.keys() & {"arguments", "parameters"}
    if bare and (not given or item.keys() - _BARE_KEYS):
        return None
    arguments = item[given.pop()] if len(given) == 1 else item.get("arguments", {})
    return item["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def parse_broken(text: str) -> list[tuple[str, str]]:
    """Parse a forced call that the model did not complete: its name, and the rest as arguments."""
    name = _NAME.search(text)
    if not name:
        return []
    arguments = _ARGUMENTS.search(text, name.end())
    rest = text[arguments.end():].strip() if arguments else ""
    try:
        _, end = parse_json_prefix(rest)
        rest = rest[:end]
    except ValueError:
        pass
    try:
        called = json.loads(f'"{name[1]}"', strict=False)
    except ValueError:  # an escape unknown to JSON
        called = name[1]
    return [(called, rest or "{}")]
