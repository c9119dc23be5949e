"""Messages and tools of a request: from OpenAI's JSON to the contract's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from openclaw_rl.rpc import errors
from openclaw_rl.serving.entrypoints.openai.errors import missing, wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields, objects
from openclaw_rl.serving.validation import MOST_MESSAGES, MOST_TOOLS, check_count, check_messages, check_tools
from openclaw_rl.v1 import turn_pb2


def parse_messages(items: list[Any], earlier: Sequence[turn_pb2.ChatMessage] = (),
                   at: int = 0) -> list[turn_pb2.ChatMessage]:
    """Parse `messages`. `earlier` ones, which the server has kept, come before the one at index `at`.

    Raises:
        ApiError: 400, a field has the wrong type.
        MeshError: as `check_messages`.
    """
    check_count("messages", items, MOST_MESSAGES)
    messages = [_message(fields) for fields in objects(items, "messages")]
    messages[at:at] = earlier
    check_messages(messages)
    return messages


def _message(fields: Fields) -> turn_pb2.ChatMessage:
    role = fields.required_text("role")
    message = turn_pb2.ChatMessage(role=role, name=fields.text("name") or "",
                                   tool_call_id=fields.text("tool_call_id") or "")
    content = fields.get("content")
    if isinstance(content, str):
        message.content = content
    elif isinstance(content, list):
        message.parts.extend(_part(part) for part in objects(content, fields.name("content")))
    elif content is not None:
        raise wrong_type(fields.name("content"), content, "a string or an array of parts")
    elif role not in ("assistant", "tool"):  # a tool may have had nothing to say
        raise missing(fields.name("content"), f"A {role} message needs one.")
    for call in objects(fields.array("tool_calls") or [], fields.name("tool_calls")):
        function = Fields(call.object("function", required=True) or {}, call.name("function"))
        message.tool_calls.add(id=call.text("id") or "", name=function.required_text("name"),
                               arguments_json=_arguments(function))
    return message


def _arguments(function: Fields) -> str:
    """The arguments of a call: JSON text, or, as some clients send them back, the object itself."""
    value = function.get("arguments")
    if isinstance(value, dict):
        return _json(value, function.name("arguments"))
    return function.text("arguments") or ""


def _part(part: Fields) -> turn_pb2.ContentPart:
    kind = part.required_text("type")
    if kind in ("text", "input_text", "output_text"):
        return turn_pb2.ContentPart(text=part.required_text("text"))
    if kind == "refusal":
        return turn_pb2.ContentPart(text=part.required_text("refusal"))
    if kind == "image_url":
        image = part.get("image_url")
        if isinstance(image, str):
            return turn_pb2.ContentPart(image_url=image)
        inner = Fields(part.object("image_url", required=True) or {}, part.name("image_url"))
        return turn_pb2.ContentPart(image_url=inner.required_text("url"))
    raise wrong_value(part.name("type"), kind, "text or image_url")


def parse_tools(items: list[Any]) -> list[turn_pb2.ToolDefinition]:
    """Parse `tools`.

    Raises:
        ApiError: 400, a field has the wrong type.
        MeshError: as `check_tools`.
    """
    tools = []
    check_count("tools", items, MOST_TOOLS)
    for tool in objects(items, "tools"):
        kind = tool.text("type") or "function"
        if kind != "function":
            raise wrong_value(tool.name("type"), kind, "function")
        function = Fields(tool.object("function", required=True) or {}, tool.name("function"))
        parameters = function.object("parameters")
        schema = _json(parameters, function.name("parameters")) if parameters else ""
        tools.append(turn_pb2.ToolDefinition(
            name=function.required_text("name"), description=function.text("description") or "",
            parameters_json=schema, strict=function.flag("strict") or False))
    check_tools(tools)
    return tools


def _json(value: dict[str, Any], field: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it reads deeper nesting than it writes
        raise errors.invalid_many([(field, "is nested too deeply; at most 250 levels")]) from None
