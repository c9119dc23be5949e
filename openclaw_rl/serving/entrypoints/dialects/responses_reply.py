"""Response bodies of OpenAI's Responses API, whole and as events."""

from __future__ import annotations

from typing import Any

import orjson

from openclaw_rl.serving.entrypoints.dialects.blocks import BlockReply, Kind
from openclaw_rl.serving.entrypoints.dialects.blocks import event as encoded
from openclaw_rl.serving.interfaces import End, Start
from openclaw_rl.v1 import turn_pb2

#: Fields of the request that are repeated in the response, with their values when absent.
_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "store": True, "temperature": None, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_p": None, "truncation": "disabled", "user": None}


class ResponsesReply(BlockReply):
    """One response of /v1/responses.

    Args:
        asked: the request's body.
        as BlockReply.
    """

    def __init__(self, turn_id: str, session_id: str, model: str, created: int, asked: dict[str, Any]) -> None:
        super().__init__(turn_id, session_id, model, created)
        self.id = f"resp_{turn_id}"
        self._asked = {name: value if asked.get(name) is None else asked[name] for name, value in _ECHOED.items()}
        self._number = 0
        self._output: list[dict[str, Any]] = []

    def opening(self, choice: int, start: Start) -> bytes:
        body = self._body("in_progress", [], None)
        return self._event("response.created", response=body) + self._event("response.in_progress", response=body)

    def begin(self, kind: Kind) -> bytes:
        data = self._item_event("added", self._item(kind, None, "in_progress"))
        if kind == "reasoning":
            return data
        return data + self._text_event("response.content_part.added", part=_text(""))

    def piece(self, kind: Kind, text: str) -> bytes:
        return self._text_event(f"response.{_name(kind)}.delta", delta=text,
                                **({"logprobs": []} if kind == "text" else {}))

    def finish(self, kind: Kind, text: str) -> bytes:
        data = self._text_event(f"response.{_name(kind)}.done", text=text,
                                **({"logprobs": []} if kind == "text" else {}))
        if kind == "text":
            data += self._text_event("response.content_part.done", part=_text(text))
        return data + self._done(self._item(kind, text, "completed"))

    def call(self, call: turn_pb2.ToolCall) -> bytes:
        item = self._call(call)
        place = {"item_id": item["id"], "output_index": len(self._output)}
        return (self._item_event("added", {**item, "arguments": "", "status": "in_progress"})
                + self._event("response.function_call_arguments.delta", delta=call.arguments_json, **place)
                + self._event("response.function_call_arguments.done", arguments=call.arguments_json, name=call.name,
                              **place)
                + self._done(item))

    def tail(self, ends: list[End]) -> bytes:
        [end] = ends
        body = self._ended(end, self._output)
        return self._event(f"response.{body['status']}", response=body)

    def whole(self, ends: list[End]) -> bytes:
        [end] = ends
        message = end.message
        for kind, text in (("reasoning", message.reasoning_content), ("text", message.content)):
            if text or (kind == "text" and not message.tool_calls):
                self._output.append(self._item(kind, text, "completed"))  # type: ignore[arg-type]
        for call in message.tool_calls:
            self._output.append(self._call(call))
        return orjson.dumps(self._ended(end, self._output))

    def _ended(self, end: End, output: list[dict[str, Any]]) -> dict[str, Any]:
        cut = end.finish_reason == turn_pb2.FINISH_REASON_LENGTH
        return {**self._body("incomplete" if cut else "completed", output, _usage(end)),
                "incomplete_details": {"reason": "max_output_tokens"} if cut else None}

    def _body(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {"id": self.id, "object": "response", "created_at": self.created, "status": status, "error": None,
                "incomplete_details": None, "model": self.model, "output": output, "usage": usage,
                "session_id": self.session_id, **self._asked}

    def _item(self, kind: Kind, text: str | None, status: str) -> dict[str, Any]:
        """An item of text, at the end of the output; without content while `text` is None."""
        if kind == "reasoning":
            return {"type": "reasoning", "id": self._id("rs"), "summary": [], "status": status,
                    "content": [] if text is None else [{"type": "reasoning_text", "text": text}]}
        return {"type": "message", "id": self._id("msg"), "role": "assistant", "status": status,
                "content": [] if text is None else [_text(text)]}

    def _call(self, call: turn_pb2.ToolCall) -> dict[str, Any]:
        return {"type": "function_call", "id": self._id("fc"), "call_id": call.id, "name": call.name,
                "arguments": call.arguments_json, "status": "completed"}

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self.turn_id}_{len(self._output)}"

    def _done(self, item: dict[str, Any]) -> bytes:
        data = self._item_event("done", item)
        self._output.append(item)
        return data

    def _item_event(self, what: str, item: dict[str, Any]) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=len(self._output), item=item)

    def _text_event(self, kind: str, **fields: Any) -> bytes:
        item = self._id("rs" if "reasoning" in kind else "msg")
        return self._event(kind, item_id=item, output_index=len(self._output), content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return encoded({"type": kind, "sequence_number": self._number - 1, **fields})


def _name(kind: Kind) -> str:
    return "output_text" if kind == "text" else "reasoning_text"


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(end: End) -> dict[str, Any]:
    return {"input_tokens": end.prompt_tokens, "input_tokens_details": {"cached_tokens": end.cached_tokens or 0},
            "output_tokens": end.completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": end.prompt_tokens + end.completion_tokens}
