"""Messages and tools: from OpenAI's JSON to the contract's messages and back, and what a conversation must be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from openclaw_rl.rpc import errors
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.entrypoints.openai.errors import missing, wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields, objects
from openclaw_rl.v1 import turn_pb2

ROLES = ("system", "developer", "user", "assistant", "tool")
#: More fit into no context, and to read them would hold up the streams that run.
MOST_MESSAGES, MOST_TOOLS = 10_000, 1_000
_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")


def parse_messages(items: list[Any]) -> list[turn_pb2.ChatMessage]:
    """`messages` of a request.

    Raises:
        ApiError: 400, a field of a wrong type.
        MeshError: as `check_messages`.
    """
    _check_count("messages", items, MOST_MESSAGES)
    messages = [_message(fields) for fields in objects(items, "messages")]
    check_messages(messages)
    return messages


def _message(fields: Fields) -> turn_pb2.ChatMessage:
    role = fields.needed_text("role")
    message = turn_pb2.ChatMessage(role=role, name=fields.text("name") or "",
                                   tool_call_id=fields.text("tool_call_id") or "")
    content = fields.get("content")
    if isinstance(content, str):
        message.content = content
    elif isinstance(content, list):
        message.parts.extend(_part(part) for part in objects(content, fields.name("content")))
    elif content is not None:
        raise wrong_type(fields.name("content"), content, "a string or an array of parts")
    elif role != "assistant":
        raise missing(fields.name("content"), f"A {role} message needs one.")
    for call in objects(fields.array("tool_calls") or [], fields.name("tool_calls")):
        function = Fields(call.object("function", required=True) or {}, call.name("function"))
        message.tool_calls.add(id=call.text("id") or "", name=function.needed_text("name"),
                               arguments_json=function.text("arguments") or "")
    return message


def _part(part: Fields) -> turn_pb2.ContentPart:
    kind = part.needed_text("type")
    if kind in ("text", "input_text", "output_text"):
        return turn_pb2.ContentPart(text=part.needed_text("text"))
    if kind == "refusal":
        return turn_pb2.ContentPart(text=part.needed_text("refusal"))
    if kind == "image_url":
        image = part.get("image_url")
        if isinstance(image, str):
            return turn_pb2.ContentPart(image_url=image)
        inner = Fields(part.object("image_url", required=True) or {}, part.name("image_url"))
        return turn_pb2.ContentPart(image_url=inner.needed_text("url"))
    raise wrong_value(part.name("type"), kind, "text or image_url")


def check_messages(messages: Sequence[turn_pb2.ChatMessage]) -> None:
    """What must hold for a conversation from any door.

    Raises:
        MeshError: INVALID_ARGUMENT naming the message: none at all or too many, an unknown role, or a tool's result
            that answers no call.
    """
    if not messages:
        raise errors.invalid("messages", [], "at least one message")
    _check_count("messages", messages, MOST_MESSAGES)
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


def parse_tools(items: list[Any]) -> list[turn_pb2.ToolDefinition]:
    """`tools` of a request.

    Raises:
        ApiError: 400, a field of a wrong type.
        MeshError: as `check_tools`.
    """
    tools = []
    _check_count("tools", items, MOST_TOOLS)
    for tool in objects(items, "tools"):
        kind = tool.text("type") or "function"
        if kind != "function":
            raise wrong_value(tool.name("type"), kind, "function")
        function = Fields(tool.object("function", required=True) or {}, tool.name("function"))
        parameters = function.object("parameters")
        try:
            schema = orjson.dumps(parameters).decode() if parameters else ""
        except orjson.JSONEncodeError:  # what it reads may be deeper than what it writes
            raise errors.invalid_many([(function.name("parameters"), "is nested too deeply; at most 250 levels")]
                                      ) from None
        tools.append(turn_pb2.ToolDefinition(
            name=function.needed_text("name"), description=function.text("description") or "",
            parameters_json=schema))
    check_tools(tools)
    return tools


def check_tools(tools: Sequence[turn_pb2.ToolDefinition]) -> None:
    """What must hold for tools from any door.

    Raises:
        MeshError: INVALID_ARGUMENT: too many, a bad or repeated name, or parameters that are no JSON object.
    """
    _check_count("tools", tools, MOST_TOOLS)
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if not _TOOL_NAME.fullmatch(tool.name):
            raise errors.invalid(f"tools[{i}].function.name", tool.name,
                                 "1 to 128 letters, digits, and characters of _-.:/")
        if tool.name in seen:
            raise errors.invalid(f"tools[{i}].function.name", tool.name, "unique")
        seen.add(tool.name)
        if tool.parameters_json:
            try:
                fine = isinstance(parse_json(tool.parameters_json), dict)
            except ValueError:
                fine = False
            if not fine:
                raise errors.invalid(f"tools[{i}].function.parameters", tool.parameters_json, "a JSON object")


def check_tool_choice(choice: str, tools: Sequence[turn_pb2.ToolDefinition]) -> str:
    """The choice, `auto` when it is empty.

    Raises:
        MeshError: INVALID_ARGUMENT: a function that isn't among the tools.
    """
    if choice in ("", "auto", "none"):
        return choice or "auto"
    if not tools:
        raise errors.invalid("tool_choice", choice, "auto or none when there are no tools")
    if choice != "required" and choice not in {tool.name for tool in tools}:
        raise errors.invalid("tool_choice", choice, f"auto, none, required or one of the tools "
                                                    f"({', '.join(tool.name for tool in tools)})")
    return choice


def _check_count(name: str, items: Sequence[Any], most: int) -> None:
    if len(items) > most:
        raise errors.invalid_many([(name, f"{len(items)} of them; at most {most}")])


def message_json(message: turn_pb2.ChatMessage) -> dict[str, Any]:
    """A message in OpenAI's shape."""
    content: Any = message.content
    if message.parts:
        content = [{"type": "text", "text": part.text} if part.WhichOneof("part") == "text" else
                   {"type": "image_url", "image_url": {"url": part.image_url}} for part in message.parts]
    result: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        result["tool_calls"] = [call_json(call) for call in message.tool_calls]
        result["content"] = content or None
    if message.tool_call_id:
        result["tool_call_id"] = message.tool_call_id
    if message.name:
        result["name"] = message.name
    return result


def call_json(call: turn_pb2.ToolCall) -> dict[str, Any]:
    """A tool call in OpenAI's shape."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
