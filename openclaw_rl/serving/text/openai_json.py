"""Messages, tool calls and tools in OpenAI's JSON, for responses, API models and chat templates."""

from __future__ import annotations

from typing import Any

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import turn_pb2


def message_json(message: turn_pb2.ChatMessage) -> dict[str, Any]:
    """A message as OpenAI's API has it."""
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
    """A tool call as OpenAI's API has it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}


def tool_json(tool: turn_pb2.ToolDefinition) -> dict[str, Any]:
    """A tool as OpenAI's API has it."""
    parameters = parse_json(tool.parameters_json) if tool.parameters_json else {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                             "parameters": parameters}}
