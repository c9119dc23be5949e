"""Validation of requests, the same for every entrypoint and policy.

Functions raise `MeshError` (INVALID_ARGUMENT unless they say otherwise), naming the field, its value and what is
allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from openclaw_rl.delivery.validation import LONGEST_ID
from openclaw_rl.rpc import errors
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.interfaces import ChatCall
from openclaw_rl.v1 import turn_pb2

ROLES = ("system", "developer", "user", "assistant", "tool")
#: No context holds more, and reading them would hold up running streams.
MOST_MESSAGES, MOST_TOOLS = 10_000, 1_000
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")


def check_id(name: str, value: str) -> None:
    """Check an id or label that a client gave: its length, and that it is printable."""
    if len(value) > LONGEST_ID:
        raise errors.invalid(name, value, f"at most {LONGEST_ID} characters")
    if not value.isprintable():
        raise errors.invalid(name, value, "printable characters")


def check_count(name: str, items: Sequence[Any], most: int) -> None:
    """Check the length of an array."""
    if len(items) > most:
        raise errors.invalid_many([(name, f"{len(items)} of them; at most {most}")])


def check_messages(messages: Sequence[turn_pb2.ChatMessage]) -> None:
    """Check a conversation: that it is not empty or too long, its roles, and that tool results answer calls."""
    if not messages:
        raise errors.invalid("messages", [], "at least one message")
    check_count("messages", messages, MOST_MESSAGES)
    open_calls: set[str] | None = None  # ids of the calls that the next tool messages may answer
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            raise errors.invalid(f"messages[{i}].role", message.role, f"one of {', '.join(ROLES)}")
        if message.tool_calls and message.role != "assistant":
            raise errors.invalid(f"messages[{i}].tool_calls", message.role, "in assistant messages only")
        if message.role != "tool":
            open_calls = {call.id for call in message.tool_calls} if message.tool_calls else None
        elif open_calls is None:
            raise errors.invalid(f"messages[{i}].role", "tool",
                                 "behind an assistant message with 'tool_calls', as the response to one of them")
        elif message.tool_call_id not in open_calls:
            raise errors.invalid(f"messages[{i}].tool_call_id", message.tool_call_id,
                                 f"the id of a call that came before it: {', '.join(sorted(open_calls))}")


def check_tools(tools: Sequence[turn_pb2.ToolDefinition]) -> None:
    """Check tool definitions: their number, unique names, and that parameters are a JSON object."""
    check_count("tools", tools, MOST_TOOLS)
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if not _TOOL_NAME.fullmatch(tool.name):
            raise errors.invalid(f"tools[{i}].function.name", tool.name,
                                 "1 to 128 letters, digits, and characters of _-.:/")
        if tool.name in seen:
            raise errors.invalid(f"tools[{i}].function.name", tool.name, "unique")
        seen.add(tool.name)
        if tool.parameters_json and not _is_object(tool.parameters_json):
            raise errors.invalid(f"tools[{i}].function.parameters", tool.parameters_json, "a JSON object")


def check_tool_choice(choice: str, tools: Sequence[turn_pb2.ToolDefinition]) -> str:
    """Check that the choice fits the tools; returns it, `auto` for an empty one."""
    if choice in ("", "auto", "none"):
        return choice or "auto"
    if not tools:
        raise errors.invalid("tool_choice", choice, "auto or none when there are no tools")
    if choice != "required" and choice not in {tool.name for tool in tools}:
        raise errors.invalid("tool_choice", choice, f"auto, none, required or one of the tools "
                                                    f"({', '.join(tool.name for tool in tools)})")
    return choice


def check_sampling(sampling: turn_pb2.SamplingParams) -> None:
    """Check the ranges that hold for every engine, of the fields that are set."""
    rules: tuple[tuple[Any, bool, str], ...] = (
        ("temperature", 0 <= sampling.temperature <= 2, "from 0 to 2"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0, at most 1"),
        ("max_tokens", sampling.max_tokens >= 1, "at least 1"),
        ("top_logprobs", 0 <= sampling.top_logprobs <= 20, "from 0 to 20"))
    bad = [errors.invalid(name, getattr(sampling, name), allowed).violations[0]
           for name, fine, allowed in rules if sampling.HasField(name) and not fine]
    if len(sampling.stop) > 16:
        bad.append(("stop", f"{len(sampling.stop)} texts; at most 16"))
    bad += [(f"stop[{i}]", "is empty; a stop text has at least one character")
            for i, stop in enumerate(sampling.stop) if not stop]
    if bad:
        raise errors.invalid_many(bad)


def check_version(active: int, call: ChatCall) -> None:
    """Check that the active policy version may answer a call.

    Raises:
        MeshError: VERSION_NOT_ACTIVE (FAILED_PRECONDITION), retryable, naming the active version.
    """
    if call.exact_version is not None and call.exact_version != active:
        wanted = f"exactly version {call.exact_version}"
    elif call.min_version is not None and active < call.min_version:
        wanted = f"version {call.min_version} or newer"
    else:
        return
    raise errors.MeshError(
        errors.CATALOGUE["VERSION_NOT_ACTIVE"][0], "VERSION_NOT_ACTIVE",
        f"the request wants {wanted}; version {active} is active", retry_after=1.0,
        metadata={"active_version": str(active)})


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False
