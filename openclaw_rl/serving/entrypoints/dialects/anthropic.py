"""Anthropic's Messages API: requests as the bodies of chat completions, and errors.

Source: https://platform.claude.com/docs/en/api/messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from openclaw_rl.serving.entrypoints.openai.errors import ApiError, ErrorShape, wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields, objects
from openclaw_rl.serving.entrypoints.openai.requests import ApiRequest, parse_chat
from openclaw_rl.serving.long_input import PromptLimits

#: Fields that both APIs have with the same meaning, and the project's own.
_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "session_id", "turn_type", "session_done")
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
          413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}
#: Fields that would change what the response is.
_UNSUPPORTED = ("container", "mcp_servers")


def parse_messages_request(data: dict[str, Any], headers: Mapping[str, str],
                           limits: PromptLimits | None = None) -> ApiRequest:
    """Parse the body of /v1/messages, or of /v1/messages/count_tokens.

    Raises:
        ApiError, MeshError: as `parse_chat`.
    """
    return parse_chat(to_chat(data), headers, limits)


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's shape."""
    kind = _TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message, "param": error.param}}


#: Anthropic's errors; in a stream too, they have a name.
ANTHROPIC = ErrorShape(error_body, b"event: error\n")


def to_chat(data: dict[str, Any]) -> dict[str, Any]:
    """The body of the chat completion that a request means.

    `thinking`, `cache_control`, `service_tier` and the like change nothing about what is asked, and are left out.
    """
    fields = Fields(data)
    body = {name: data[name] for name in _SAME if name in data}
    fields.refuse(_UNSUPPORTED)
    if stops := fields.array("stop_sequences"):
        body["stop"] = stops
    system = fields.get("system")
    messages = [] if not system else [{"role": "system", "content": _texts(system, "system")}]
    for message in objects(fields.array("messages", required=True) or [], "messages"):
        messages += _message(message)
    body["messages"] = messages
    if tools := fields.array("tools"):
        body["tools"] = [_tool(tool) for tool in objects(tools, "tools")]
    if choice := fields.object("tool_choice"):
        chosen = Fields(choice, "tool_choice")
        body["tool_choice"] = _tool_choice(chosen)
        if chosen.flag("disable_parallel_tool_use"):
            body["parallel_tool_calls"] = False
    # Claude Code puts its session into user_id: one key's sessions are told apart by it.
    user = Fields(fields.object("metadata") or {}, "metadata").text("user_id")
    if user:
        body["user"] = user
    return body


def _message(message: Fields) -> list[dict[str, Any]]:
    role, content = message.required_text("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise wrong_value(message.name("role"), role, "user or assistant")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise wrong_type(message.name("content"), content, "a string or an array of blocks")
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for block in objects(content, message.name("content")):
        kind = block.required_text("type")
        if kind == "tool_use" and role == "assistant":
            calls.append({"id": block.required_text("id"), "type": "function", "function": {
                "name": block.required_text("name"), "arguments": orjson.dumps(block.object("input") or {}).decode()}})
        elif kind == "tool_result" and role == "user":
            results.append({"role": "tool", "tool_call_id": block.required_text("tool_use_id"),
                            "content": _result(block)})
        elif kind not in ("thinking", "redacted_thinking"):
            parts.append(_part(block, kind))
    if role == "assistant":
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        return [{"role": role, "content": text or None, **({"tool_calls": calls} if calls else {})}]
    return [*results, *([{"role": role, "content": _plain(parts)}] if parts or not results else [])]


def _part(block: Fields, kind: str) -> dict[str, Any]:
    if kind == "text":
        return {"type": "text", "text": block.required_text("text")}
    if kind != "image":
        raise wrong_value(block.name("type"), kind, "text, image, tool_use or tool_result")
    source = Fields(block.object("source", required=True) or {}, block.name("source"))
    match source.required_text("type"):
        case "base64":
            url = f"data:{source.required_text('media_type')};base64,{source.required_text('data')}"
        case "url":
            url = source.required_text("url")
        case other:
            raise wrong_value(source.name("type"), other, "base64 or url")
    return {"type": "image_url", "image_url": {"url": url}}


def _result(block: Fields) -> Any:
    """The content of a tool's result."""
    content = block.get("content")
    if isinstance(content, list):
        content = _plain([_part(part, part.required_text("type")) for part in objects(content, block.name("content"))])
    elif content is not None and not isinstance(content, str):
        raise wrong_type(block.name("content"), content, "a string or an array of blocks")
    return content or ("Error" if block.flag("is_error") else "")


def _plain(parts: list[dict[str, Any]]) -> Any:
    """Parts as one text, unless there are pictures among them."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _texts(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(name, value, "a string or an array of text blocks")
    return "\n".join(block.required_text("text") for block in objects(value, name))


def _tool(tool: Fields) -> dict[str, Any]:
    kind = tool.text("type") or "custom"
    if kind != "custom":
        raise wrong_value(tool.name("type"), kind, "custom: this server has no tools of its own")
    function: dict[str, Any] = {"name": tool.required_text("name"), "description": tool.text("description") or "",
                                "parameters": tool.object("input_schema") or {}}
    if tool.flag("strict") is not None:
        function["strict"] = tool.flag("strict")
    return {"type": "function", "function": function}


def _tool_choice(choice: Fields) -> Any:
    kind = choice.required_text("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.required_text("name")}}
    words = {"auto": "auto", "any": "required", "none": "none"}
    if kind not in words:
        raise wrong_value(choice.name("type"), kind, "auto, any, tool or none")
    return words[kind]
