"""Response bodies of OpenAI's chat and text completions, whole and in chunks."""

from __future__ import annotations

import math
from typing import Any, Protocol

import orjson

from openclaw_rl.serving.interfaces import Delta, End, Start
from openclaw_rl.serving.text.openai_json import call_json
from openclaw_rl.v1 import turn_pb2

_REASONS: dict[turn_pb2.FinishReason.ValueType, str] = {
    turn_pb2.FINISH_REASON_STOP: "stop", turn_pb2.FINISH_REASON_LENGTH: "length",
    turn_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls"}
DONE = b"data: [DONE]\n\n"


class Reply(Protocol):
    """Writes the bodies of one response, of one or several choices. See `ChatReply`, `dialects.blocks`."""

    def served_by(self, fingerprint: str) -> None: ...

    def opening(self, choice: int, start: Start) -> bytes: ...

    def chunk(self, choice: int, delta: Delta) -> bytes: ...

    def ending(self, choice: int, end: End) -> bytes: ...

    def tail(self, ends: list[End]) -> bytes: ...

    def note(self, choice: int, delta: Delta) -> None: ...

    def whole(self, ends: list[End]) -> bytes: ...


class ChatReply:
    """One response of /v1/chat/completions.

    Chunks are assembled from bytes made once: only the text itself is encoded for each token.
    """

    kind = "chat.completion"
    _chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl-"

    def __init__(self, turn_id: str, session_id: str, model: str, created: int, choices: int, n: int,
                 logprobs: bool, include_usage: bool = False, *, token_ids: bool = False) -> None:
        """
        Args:
            choices: number of responses.
            n: responses of each prompt.
            token_ids: report the ids of prompt and response, in a whole response.
        """
        self.head = {"id": self.prefix + turn_id, "created": created, "model": model, "session_id": session_id}
        self.logprobs, self._n, self._token_ids = logprobs, n, token_ids
        self._usage_null = {"usage": None} if include_usage else {}
        self._calls = [0] * choices  # tool calls that each choice has begun to send
        self._complete = [0] * choices  # and those that it has ended
        self._tokens: list[list[dict[str, Any]]] = [[] for _ in range(choices)]
        self.served_by("")

    def served_by(self, fingerprint: str) -> None:
        """Say what answers, before anything else is sent: a change means that equal seeds may draw other tokens."""
        self.head["system_fingerprint"] = fingerprint
        self._chunk = orjson.dumps({**self.head, "object": self._chunk_kind, **self._usage_null})[:-1]
        self._plain = [self._around(i) for i in range(len(self._calls))]

    def opening(self, choice: int, start: Start) -> bytes:
        """The first chunk of a choice."""
        return self._event(choice, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, choice: int, delta: Delta) -> bytes:
        """A chunk; empty when there is nothing to send yet."""
        calls = self._call_chunks(choice, delta) if delta.tool_calls or delta.pieces else []
        if not calls and not self.logprobs and not delta.reasoning:
            if not delta.text:
                return b""
            before, after = self._plain[choice]
            return before + orjson.dumps(delta.text) + after
        if not (delta.text or calls or delta.logprobs or delta.reasoning):
            return b""
        shown: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if delta.reasoning:
            shown["reasoning_content"] = delta.reasoning
        if calls:
            shown["tool_calls"] = calls
        return self._event(choice, shown, delta.logprobs, None)

    def _call_chunks(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """The parts of tool calls in a chunk: those that come piece by piece, and whole ones."""
        parts: list[dict[str, Any]] = []
        for piece in delta.pieces:
            if piece.id:
                self._calls[choice] += 1
                parts.append({"index": piece.index, "id": piece.id, "type": "function",
                              "function": {"name": piece.name, "arguments": piece.arguments}})
            else:
                parts.append({"index": piece.index, "function": {"arguments": piece.arguments}})
        for call in delta.tool_calls:
            index = self._complete[choice]
            self._complete[choice] += 1
            if index == self._calls[choice]:  # of which no pieces came
                self._calls[choice] += 1
                parts.append({"index": index, **call_json(call)})
        return parts

    def ending(self, choice: int, end: End) -> bytes:
        """The last chunk of a choice."""
        return self._event(choice, {}, None, _REASONS.get(end.finish_reason, "stop"))

    def tail(self, ends: list[End]) -> bytes:
        """The end of the stream, with a usage chunk for clients that requested it."""
        if not self._usage_null:
            return DONE
        return b"data: " + orjson.dumps({**self.head, "object": self._chunk_kind, "choices": [],
                                         "usage": usage(ends, self._n)}) + b"\n\n" + DONE

    def note(self, choice: int, delta: Delta) -> None:
        """Collect what an unstreamed response needs of a delta."""
        if delta.logprobs:
            self._tokens[choice].extend(delta.logprobs)

    def whole(self, ends: list[End]) -> bytes:
        """The whole response."""
        choices = [self._choice(i, ends[i]) | {"index": index} | self._ids(ends[i])
                   for index, i in enumerate(self._chosen(ends))]
        return orjson.dumps({**self.head, "object": self.kind, "choices": choices, "usage": usage(ends, self._n)})

    def _chosen(self, ends: list[End]) -> list[int]:
        """The responses that are choices."""
        return list(range(len(ends)))

    def _ids(self, end: End) -> dict[str, Any]:
        if not self._token_ids or end.record is None:
            return {}
        return {"prompt_token_ids": list(end.record.prompt_ids), "token_ids": list(end.record.response_ids)}

    def _choice(self, choice: int, end: End) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": end.message.content, "refusal": None}
        if end.message.reasoning_content:
            message["reasoning_content"] = end.message.reasoning_content
        if end.message.tool_calls:
            message["content"] = end.message.content or None
            message["tool_calls"] = [call_json(call) for call in end.message.tool_calls]
        return {"index": choice, "message": message, "finish_reason": _REASONS.get(end.finish_reason, "stop"),
                "logprobs": {"content": self._tokens[choice], "refusal": None} if self.logprobs else None}

    def _event(self, choice: int, delta: dict[str, Any], logprobs: list[dict[str, Any]] | None,
               reason: str | None) -> bytes:
        body = {"index": choice, "delta": delta, "finish_reason": reason,
                "logprobs": {"content": logprobs, "refusal": None} if logprobs else None}
        return b"data: %b,\"choices\":[%b]}\n\n" % (self._chunk, orjson.dumps(body))

    def _around(self, choice: int) -> tuple[bytes, bytes]:
        """The bytes before and after the text of a chunk without anything else."""
        before = b"data: %b,\"choices\":[{\"index\":%d,\"delta\":{\"content\":" % (self._chunk, choice)
        return before, b"},\"finish_reason\":null,\"logprobs\":null}]}\n\n"


class CompletionReply(ChatReply):
    """One response of /v1/completions."""

    kind = "text_completion"
    _chunk_kind = "text_completion"
    prefix = "cmpl-"

    def __init__(self, *args: Any, best: int, **kwargs: Any) -> None:
        """Args: best: choices of each prompt, the likeliest of its `n` responses."""
        super().__init__(*args, **kwargs)
        self._best = best
        self._echo = [""] * len(self._calls)
        self._offset = [0] * len(self._calls)

    def opening(self, choice: int, start: Start) -> bytes:
        return b""

    def chunk(self, choice: int, delta: Delta) -> bytes:
        if not delta.text and not delta.logprobs and not delta.echo:
            return b""
        return self._text_event(choice, delta.echo + delta.text, delta.logprobs, None)

    def note(self, choice: int, delta: Delta) -> None:
        super().note(choice, delta)
        self._echo[choice] += delta.echo

    def ending(self, choice: int, end: End) -> bytes:
        return self._text_event(choice, "", None, _REASONS.get(end.finish_reason, "stop"))

    def _chosen(self, ends: list[End]) -> list[int]:
        if self._best == self._n:
            return super()._chosen(ends)
        groups = [sorted(range(begin, begin + self._n), key=lambda i: -_likelihood(ends[i]))
                  for begin in range(0, len(ends), self._n)]
        return [i for group in groups for i in group[:self._best]]

    def _choice(self, choice: int, end: End) -> dict[str, Any]:
        return {"index": choice, "text": self._echo[choice] + end.message.content,
                "finish_reason": _REASONS.get(end.finish_reason, "stop"),
                "logprobs": self._old_logprobs(choice, self._tokens[choice]) if self.logprobs else None}

    def _text_event(self, choice: int, text: str, logprobs: list[dict[str, Any]] | None,
                    reason: str | None) -> bytes:
        body = {"index": choice, "text": text, "finish_reason": reason,
                "logprobs": self._old_logprobs(choice, logprobs) if logprobs else None}
        return b"data: %b,\"choices\":[%b]}\n\n" % (self._chunk, orjson.dumps(body))

    def _old_logprobs(self, choice: int, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        """Log-probabilities in the older shape: parallel lists."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset[choice])  # of the prompt, which may come first
            self._offset[choice] += len(token["token"])
        return {"tokens": [token["token"] for token in tokens],
                "token_logprobs": [token["logprob"] for token in tokens], "text_offset": offsets,
                "top_logprobs": [_by_text(token["top_logprobs"]) for token in tokens]}


def _by_text(top: list[dict[str, Any]] | None) -> dict[str, float] | None:
    """Alternatives by their text, the likeliest of equal ones; null for the first token of a prompt."""
    return None if top is None else {item["token"]: item["logprob"] for item in reversed(top)}


def _likelihood(end: End) -> float:
    """The mean log-probability of a response's tokens."""
    values = end.record.model_logprobs if end.record is not None else []
    return sum(values) / len(values) if values else -math.inf


def usage(ends: list[End], n: int) -> dict[str, Any]:
    """Token usage of a request, each prompt counted once; `n`: responses of each prompt."""
    prompt, completion = sum(end.prompt_tokens for end in ends[::n]), sum(end.completion_tokens for end in ends)
    cached = [end.cached_tokens for end in ends[::n] if end.cached_tokens is not None]
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            **({"prompt_tokens_details": {"cached_tokens": sum(cached)}} if cached else {})}
