"""Messages in the form of the GenAI conventions, for `capture_content: true`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from openclaw_rl.observability.context import CONTENT_LIMIT
from openclaw_rl.v1.turn_pb2 import ChatMessage


def messages(found: Iterable[ChatMessage]) -> str:
    """JSON of messages with their parts, cut to `CONTENT_LIMIT` characters."""
    return orjson.dumps([{"role": message.role, "parts": _parts(message)} for message in found]
                        ).decode()[:CONTENT_LIMIT]


def _parts(message: ChatMessage) -> list[dict[str, Any]]:
    texts = [message.content] * bool(message.content) + [part.text for part in message.parts if part.text]
    if message.role == "tool":
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": "\n".join(texts)}]
    return [{"type": "text", "content": text} for text in texts] + [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments_json}
        for call in message.tool_calls]
