"""Tool calls in the Hermes style: described in the system prompt, parsed from the streaming response.

The style is that of NousResearch's Hermes models, which many small models have learned:
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Bare JSON calls, as Llama 3 writes them, are parsed
too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Literal

from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.runtime.json import parse_json_prefix
from openclaw_rl.serving.text.detokenizer import overlap
from openclaw_rl.serving.text.openai_json import tool_json
from openclaw_rl.v1 import turn_pb2

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_BARE_LIMIT = 64  # characters within which a bare JSON call contains "name"
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
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
    """Splits a response, piece by piece, into text and calls. Text before a call is returned at once."""

    def __init__(self, new_id: Callable[[], str], opening: str = "", limit: int | None = None) -> None:
        """Args:
            new_id: makes the ids of calls.
            opening: the call's beginning that the prompt forced already.
            limit: calls after which the response is complete.
        """
        self._new_id = new_id
        self._limit = limit
        self._forced = bool(opening)
        self._state: Literal["start", "text", "call"] = "call" if opening else "start"
        self._held = opening.removeprefix(OPEN)
        self.calls = 0  #: calls found so far

    @property
    def complete(self) -> bool:
        """As many calls as wanted are there."""
        return self._limit is not None and self.calls >= self._limit

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
            tag = CLOSE if self._state == "call" else OPEN
            at = self._held.find(tag)
            if at < 0:
                if self._state == "text":
                    cut = len(self._held) - overlap(self._held, OPEN)
                    shown.append(self._held[:cut])
                    self._held = self._held[cut:]
                break
            before, self._held = self._held[:at], self._held[at + len(tag):]
            if self._state == "text":
                shown.append(before)
                self._state = "call"
            else:
                self._take(before, calls, shown, OPEN, CLOSE)
                self._state = "text"
        return self._without_gaps("".join(shown)), calls

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
            shown.append(held)
        return self._without_gaps("".join(shown)), calls

    def _looks_bare(self) -> bool:
        """Whether the response may be a call without its tags: then it is held back to its end."""
        text = self._held.lstrip()[:_BARE_LIMIT]
        return text.startswith(("{", "[")) and ('"name"' in text or len(text) < _BARE_LIMIT)

    def _take(self, body: str, calls: list[turn_pb2.ToolCall], shown: list[str], before: str, after: str) -> None:
        found = parse_calls(body) or (parse_broken(body) if self._forced else [])
        self._forced = False
        for name, arguments in found:
            if not self.complete:
                calls.append(turn_pb2.ToolCall(id=self._new_id(), name=well_formed(name),
                                               arguments_json=well_formed(arguments)))
                self.calls += 1
        if not found:
            shown.append(f"{before}{body}{after}")

    def _without_gaps(self, text: str) -> str:
        """Drop white space between and after calls."""
        return "" if self.calls and not text.strip() else text


def parse_calls(text: str) -> list[tuple[str, str]]:
    """Parse the call or list of calls at the start of a text: (name, arguments as JSON); empty when there is none."""
    text = text.strip()
    if not text:
        return []
    try:
        value, _ = parse_json_prefix(text)
    except ValueError:  # a small model may keep opening brackets
        return []
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and isinstance(item.get("function"), dict):
            item = item["function"]
        if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not item["name"]:
            return []
        arguments = item.get("arguments", item.get("parameters", {}))
        calls.append((item["name"],
                      arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)))
    return calls


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
