"""The policy as a model behind an OpenAI-compatible API: it answers, but has no weights and no token ids."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import openai

from openclaw_rl.api_models import ApiModel, check_credentials
from openclaw_rl.gateway.messages import message_json
from openclaw_rl.gateway.port import ChatCall, Delta, End, Event, Start
from openclaw_rl.mesh import errors
from openclaw_rl.policy.chat import Transcript, check_sampling, check_version
from openclaw_rl.policy.engines.base import EngineInfo
from openclaw_rl.policy.tools import tool_json
from openclaw_rl.v1 import turn_pb2

__all__ = ["UpstreamPolicy", "check_credentials"]

log = logging.getLogger(__name__)

_REASONS = {"stop": turn_pb2.FINISH_REASON_STOP, "length": turn_pb2.FINISH_REASON_LENGTH,
            "tool_calls": turn_pb2.FINISH_REASON_TOOL_CALLS, "function_call": turn_pb2.FINISH_REASON_TOOL_CALLS}
#: Fields of the client's request that are ours to set, or that would change the answer's form.
_OURS = {"model", "messages", "stream", "stream_options", "n", "tools", "tool_choice"}


class UpstreamPolicy:
    """Passes calls on to an API, streaming. Its only version is 0."""

    version = 0

    def __init__(self, api: ApiModel, temperature: float | None = None, max_tokens: int | None = None,
                 timeout: float = 600.0) -> None:
        """Args: timeout: seconds for a whole response."""
        self.info = EngineInfo(name="openai", model=api.model, model_id="", context_length=0, vocab_size=0,
                               eos_ids=(), accepts_weights=False)
        self._model = api.model
        self._temperature, self._max_tokens = temperature, max_tokens
        self._client = openai.AsyncOpenAI(api_key=api.api_key, base_url=api.base_url, timeout=timeout, max_retries=1)

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.close()

    def fill(self, sampling: turn_pb2.SamplingParams) -> turn_pb2.SamplingParams:
        filled = turn_pb2.SamplingParams()
        if self._temperature is not None:
            filled.temperature = self._temperature
        if self._max_tokens is not None:
            filled.max_tokens = self._max_tokens
        filled.MergeFrom(sampling)
        check_sampling(filled)
        return filled

    async def chat(self, call: ChatCall, transcript: Transcript) -> AsyncGenerator[Event, None]:
        if call.prompt is not None or call.prompt_ids is not None:
            raise errors.failed_precondition(
                "NO_WEIGHTS", f"{self._model} is an API model: it continues no text or tokens; use chat completions")
        check_version(self.version, call)
        try:
            async with await self._client.chat.completions.create(**self._request(call)) as stream:
                async for event in self._events(stream, transcript):
                    yield event
        except openai.APIError as error:
            raise _public(error) from error

    async def _events(self, stream: Any, transcript: Transcript) -> AsyncGenerator[Event, None]:
        reason: turn_pb2.FinishReason.ValueType = turn_pb2.FINISH_REASON_STOP
        usage: Any = None
        calls: dict[int, turn_pb2.ToolCall] = {}
        async for chunk in stream:
            usage = chunk.usage or usage
            if not chunk.choices:
                continue
            choice = chunk.choices[0]
            if transcript.first_token_at is None:
                transcript.first_token_at = time.time()
                yield Start(self.version, 0)
            delta = Delta(text=choice.delta.content or "")
            if choice.logprobs and choice.logprobs.content:
                delta.logprobs = [token.model_dump() for token in choice.logprobs.content]
            for piece in choice.delta.tool_calls or []:
                whole = calls.setdefault(piece.index, turn_pb2.ToolCall())
                whole.id = whole.id or piece.id or ""
                if piece.function:
                    whole.name += piece.function.name or ""
                    whole.arguments_json += piece.function.arguments or ""
            if choice.finish_reason:
                reason = _REASONS.get(choice.finish_reason, turn_pb2.FINISH_REASON_STOP)
            if delta.text or delta.logprobs:
                transcript.text.append(delta.text)
                yield delta
        if transcript.first_token_at is None:
            yield Start(self.version, 0)
        if calls:
            transcript.tool_calls = [calls[index] for index in sorted(calls)]
            reason = turn_pb2.FINISH_REASON_TOOL_CALLS
            yield Delta(tool_calls=transcript.tool_calls)
        yield End(reason, transcript.message(), usage.prompt_tokens if usage else 0,
                  usage.completion_tokens if usage else 0)

    def _request(self, call: ChatCall) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._model, "messages": [message_json(message) for message in call.messages], "stream": True,
            "stream_options": {"include_usage": True},
            "extra_body": {key: value for key, value in call.extra.items() if key not in _OURS}}
        sampling = call.sampling
        for name in ("temperature", "top_p", "max_tokens", "seed"):
            if sampling.HasField(name):
                request[name] = getattr(sampling, name)
        if sampling.stop:
            request["stop"] = list(sampling.stop)
        if call.logprobs:
            request["logprobs"] = True
            if sampling.HasField("top_logprobs"):
                request["top_logprobs"] = sampling.top_logprobs
        if call.tools:
            request["tools"] = [tool_json(tool) for tool in call.tools]
            named = call.tool_choice not in ("auto", "none", "required")
            request["tool_choice"] = {"type": "function", "function": {"name": call.tool_choice}} if named \
                else call.tool_choice
            if not call.parallel_tool_calls:
                request["parallel_tool_calls"] = False
        return request


def _public(error: openai.APIError) -> errors.MeshError:
    """What our client gets: the API's own status where the fault is the client's, else that the API is at fault."""
    if isinstance(error, openai.APIStatusError):
        status, text = error.status_code, error.message
        retry = error.response.headers.get("retry-after", "")
        wait = float(retry) if retry.replace(".", "", 1).isdigit() else 1.0
        if status in (401, 403):
            # Our key, not the client's: to the client this is a server that is not set up well.
            log.error("the API refuses the key of the policy server: %s", text)
            return errors.MeshError(grpc.StatusCode.INTERNAL, "INTERNAL",
                                    "the API refuses the key of the policy server; its operator must set a valid one",
                                    metadata={"http_status": "502"})
        if status == 429:
            return errors.exhausted(text, wait)
        if status < 500:
            return errors.MeshError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", text,
                                    violations=[(str(error.param), text)] if error.param else [],
                                    metadata={"http_status": str(status)})
        return errors.unavailable(f"the API answered {status}: {text}", wait)
    if isinstance(error, openai.APIConnectionError):  # time-outs too
        return errors.unavailable(f"the API can't be reached: {error}")
    return errors.unavailable(f"the API failed: {error.message}")
