"""OpenAI's Responses API: requests as the bodies of chat completions.

Source: https://platform.openai.com/docs/api-reference/responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.serving.entrypoints.openai.errors import missing, wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields, objects
from openclaw_rl.serving.entrypoints.openai.requests import ApiRequest, parse_chat
from openclaw_rl.serving.long_input import PromptLimits
from openclaw_rl.serving.response_history import Conversation

_SAME = ("model", "temperature", "top_p", "stream", "parallel_tool_calls", "user", "metadata", "session_id",
         "turn_type", "session_done")
#: Fields that would change what the response is or where it goes.
_UNSUPPORTED = ("background", "conversation", "prompt", "max_tool_calls")


def parse_response_request(data: dict[str, Any], headers: Mapping[str, str], limits: PromptLimits | None,
                           previous: Conversation | None) -> ApiRequest:
    """Parse the body of /v1/responses.

    Raises:
        ApiError, MeshError: as `parse_chat`.
    """
    if previous is None:
        return parse_chat(to_chat(data), headers, limits)
    request = parse_chat(to_chat(data), headers, limits, previous.messages, 1 if data.get("instructions") else 0)
    request.options.session_id = request.options.session_id or previous.session_id
    return request


def to_chat(data: dict[str, Any]) -> dict[str, Any]:
    """The body of the chat completion that a request means, without the conversation that it continues."""
    fields = Fields(data)
    body = {name: data[name] for name in _SAME if name in data}
    fields.refuse(_UNSUPPORTED)
    most = fields.integer("max_output_tokens", 1, 2**63 - 1)
    if most is not None:
        body["max_tokens"] = most
    instructions = fields.text("instructions")
    body["messages"] = [*([{"role": "system", "content": instructions}] if instructions else []),
                        *_messages(fields.get("input"))]
    if tools := fields.array("tools"):
        body["tools"] = [_tool(tool) for tool in objects(tools, "tools")]
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        named = Fields(choice, "tool_choice")
        kind = named.required_text("type")
        if kind != "function":
            raise wrong_value("tool_choice.type", kind, "function")
        choice = {"type": "function", "function": {"name": named.required_text("name")}}
    if choice is not None:
        body["tool_choice"] = choice
    form = Fields(fields.object("text") or {}, "text").object("format")
    if form and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}
    if form and form.get("type") != "text":
        body["response_format"] = form
    return body


def _messages(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if value is None:
        raise missing("input")
    if not isinstance(value, list):
        raise wrong_type("input", value, "a string or an array of items")
    messages: list[dict[str, Any]] = []
    for item in objects(value, "input"):
        kind = item.text("type") or "message"
        if kind == "message":
            content = item.get("content")
            if isinstance(content, list):
                content = [_part(part) for part in objects(content, item.name("content"))]
            messages.append({"role": item.required_text("role"), "content": content})
        elif kind == "function_call":
            call = {"id": item.required_text("call_id"), "type": "function", "function": {
                "name": item.required_text("name"), "arguments": item.text("arguments") or ""}}
            # Calls of one response are one message, with the text before them.
            if messages and messages[-1]["role"] == "assistant":
                messages[-1].setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            output = item.get("output")
            if isinstance(output, list):
                output = [_part(part) for part in objects(output, item.name("output"))]
            messages.append({"role": "tool", "tool_call_id": item.required_text("call_id"), "content": output})
        elif kind != "reasoning":
            raise wrong_value(item.name("type"), kind, "message, function_call, function_call_output or reasoning")
    return messages


def _part(part: Fields) -> dict[str, Any]:
    kind = part.required_text("type")
    if kind != "input_image":
        return part.data
    if not part.data.get("image_url"):
        raise wrong_value(part.name("file_id"), part.get("file_id"), "left out: give an image_url")
    return {"type": "image_url", "image_url": {"url": part.required_text("image_url")}}


def _tool(tool: Fields) -> dict[str, Any]:
    kind = tool.text("type") or "function"
    if kind != "function":
        raise wrong_value(tool.name("type"), kind, "function: this server has no tools of its own")
    return {"type": "function", "function": {
        name: tool.data[name] for name in ("name", "description", "parameters", "strict")
        if tool.data.get(name) is not None}}
