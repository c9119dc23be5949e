"""Response bodies of Anthropic's Messages API, whole and as events."""

from __future__ import annotations

from typing import Any

import orjson

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.entrypoints.dialects.blocks import BlockReply, Kind, event
from openclaw_rl.serving.interfaces import End, Start
from openclaw_rl.v1 import turn_pb2

_REASONS: dict[turn_pb2.FinishReason.ValueType, str] = {
    turn_pb2.FINISH_REASON_LENGTH: "max_tokens", turn_pb2.FINISH_REASON_TOOL_CALLS: "tool_use"}
_KINDS: dict[Kind, tuple[dict[str, Any], str, str]] = {
    "text": ({"type": "text", "text": ""}, "text_delta", "text"),
    "reasoning": ({"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking")}


class MessagesReply(BlockReply):
    """One response of /v1/messages."""

    _index = -1  # of the newest block

    def opening(self, choice: int, start: Start) -> bytes:
        usage = {"input_tokens": start.prompt_tokens, "output_tokens": 0}
        return event({"type": "message_start", "message": self._message([], None, None, usage)})

    def begin(self, kind: Kind) -> bytes:
        return self._begin(_KINDS[kind][0])

    def piece(self, kind: Kind, text: str) -> bytes:
        _, name, field = _KINDS[kind]
        return self._delta({"type": name, field: text})

    def finish(self, kind: Kind, text: str) -> bytes:
        return event({"type": "content_block_stop", "index": self._index})

    def call(self, call: turn_pb2.ToolCall) -> bytes:
        return (self._begin({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
                + self._delta({"type": "input_json_delta", "partial_json": call.arguments_json or "{}"})
                + event({"type": "content_block_stop", "index": self._index}))

    def tail(self, ends: list[End]) -> bytes:
        [end] = ends
        reason, stop = _stop(end)
        return event({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop},
                      "usage": _usage(end)}) + event({"type": "message_stop"})

    def whole(self, ends: list[End]) -> bytes:
        [end] = ends
        message, content = end.message, []
        if message.reasoning_content:
            content.append({"type": "thinking", "thinking": message.reasoning_content, "signature": ""})
        if message.content:
            content.append({"type": "text", "text": message.content})
        content += [{"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments_json)}
                    for call in message.tool_calls]
        return orjson.dumps(self._message(content, *_stop(end), _usage(end)))

    def _begin(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        return event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _message(self, content: list[dict[str, Any]], reason: str | None, stop: str | None,
                 usage: dict[str, int]) -> dict[str, Any]:
        return {"id": f"msg_{self.turn_id}", "type": "message", "role": "assistant", "model": self.model,
                "content": content, "stop_reason": reason, "stop_sequence": stop, "usage": usage,
                "session_id": self.session_id}


def _stop(end: End) -> tuple[str, str | None]:
    if end.stop and end.finish_reason == turn_pb2.FINISH_REASON_STOP:
        return "stop_sequence", end.stop
    return _REASONS.get(end.finish_reason, "end_turn"), None


def _usage(end: End) -> dict[str, int]:
    """Tokens read anew, read from the cache, and drawn."""
    cached = end.cached_tokens or 0
    return {"input_tokens": end.prompt_tokens - cached, "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0, "output_tokens": end.completion_tokens}


def _input(text: str) -> Any:
    """Arguments as an object. What is none, a weak model's mistake, is shown under a name that no tool has."""
    try:
        value = parse_json(text or "{}")
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"INVALID_JSON": text}
