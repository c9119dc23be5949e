"""A policy behind an OpenAI-compatible API: it has no weights and no token ids.

It learns a playbook, which becomes part of the system prompt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from openclaw_rl.models import api_calls
from openclaw_rl.models.api_calls import Names
from openclaw_rl.models.api_endpoints import ApiModel, check_credentials
from openclaw_rl.models.api_habits import ApiHabits
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.serving.engines.interface import EngineInfo, EngineStatus, Pause, WeightsError
from openclaw_rl.serving.engines.openai.call_pieces import CallPieces
from openclaw_rl.serving.engines.openai.images import check_images
from openclaw_rl.serving.interfaces import ChatCall, Delta, End, Event, Start
from openclaw_rl.serving.long_input import off_loop
from openclaw_rl.serving.text.detokenizer import WholePairs
from openclaw_rl.serving.text.openai_json import message_json, tool_json
from openclaw_rl.serving.token_policy import Transcript
from openclaw_rl.serving.validation import check_sampling, check_version
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.weights import playbook
from openclaw_rl.weights.format.safetensors import CorruptFile

__all__ = ["UpstreamPolicy", "check_credentials"]

logger = logging.getLogger(__name__)

_REASONS = {"stop": turn_pb2.FINISH_REASON_STOP, "length": turn_pb2.FINISH_REASON_LENGTH,
            "tool_calls": turn_pb2.FINISH_REASON_TOOL_CALLS, "function_call": turn_pb2.FINISH_REASON_TOOL_CALLS}
#: Fields of the client's request that are set here, or would change the form of the response.
_RESERVED = {"model", "messages", "stream", "stream_options", "n", "tools", "tool_choice"}


#: Seconds for which a request is retried before its first token; less if the caller's deadline is sooner.
RETRY_SECONDS = 60.0
#: Seconds between probes of an API that fails.
PROBE_SECONDS = 60.0
_PROBE_TOKENS = 16  # some APIs want as many at least
_NOTHING = ChoiceDelta()


class UpstreamPolicy:
    """Forwards calls to an API, streaming. Its versions are playbooks; that of version 0 is empty.

    It implements Engine for PolicyVersions. A response has the playbook and version that were active at its request.

    Args:
        api: its address and key.
        model_id: see models.identity.
        names: of its settings, for messages.
        timeout: seconds for a whole response.
        retry_seconds: see RETRY_SECONDS.
        image_hosts: that pictures may come from besides public ones; see `check_images`.

    Attributes:
        problem: why the API fails, for an operator; empty while it works, as far as is known.
        retries: number of retried requests.
    """

    def __init__(self, api: ApiModel, model_id: str = "", temperature: float | None = None,
                 max_tokens: int | None = None, timeout: float = 600.0, names: Names | None = None,
                 retry_seconds: float = RETRY_SECONDS, image_hosts: Collection[str] = ()) -> None:
        self.info = EngineInfo(name="openai", model=api.model, model_id=model_id, context_length=0, vocab_size=0,
                               eos_ids=(), accepts_weights=True)
        self.active_version = 0
        self.problem = ""
        self.retries = 0
        self._api, self._model, self._retry_seconds = api, api.model, retry_seconds
        self._names = names or Names.of("components.policy_server", api.model, None)
        self._temperature, self._max_tokens = temperature, max_tokens
        self._client = api_calls.client(api, timeout)
        self._habits = ApiHabits(api.model, ("stream_options",))
        self._image_hosts = frozenset(host.lower() for host in image_hosts)
        self._active = Playbook()
        self._text = ""  # the active playbook as it appears in the prompt
        self._staged: dict[int, Playbook] = {}

    @property
    def version(self) -> int:
        """The active version."""
        return self.active_version

    @property
    def prompt_limits(self) -> None:
        """Only the API knows."""
        return None

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def monitor(self, seconds: float = PROBE_SECONDS) -> None:
        """Probe the API at the start, and periodically while it fails. Never returns."""
        first = True
        while True:
            if first or self.problem:
                first, before = False, self.problem
                self.problem = await self._probe()
                if self.problem and self.problem != before:
                    logger.error("the policy's API fails: %s", self.problem)
                elif before and not self.problem:
                    logger.info("the policy's API works again")
            await asyncio.sleep(seconds)

    async def _probe(self) -> str:
        """Ask for a few words as clients do, and learn what the model does not take; returns what is wrong."""
        call = ChatCall(messages=[turn_pb2.ChatMessage(role="user", content="Say yes.")])
        call.sampling = self.fill(turn_pb2.SamplingParams(max_tokens=_PROBE_TOKENS))
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                stream, _ = await api_calls.call(lambda: self._begin(self._request(call, "")), PROBE_SECONDS / 2)
                await stream.close()
            return ""
        except TimeoutError:
            return f"{self._api.base_url} gave no answer within {PROBE_SECONDS:.0f} s"
        except (openai.OpenAIError, httpx.TransportError, ValueError) as error:
            return api_calls.explain(error, self._api, self._names)

    async def stage(self, version: int, folder: Path) -> None:
        """See Engine.stage."""
        try:
            self._staged[version] = await asyncio.to_thread(playbook.read, folder)
        except (playbook.PlaybookError, CorruptFile, OSError) as error:
            raise WeightsError(f"version {version} has no playbook that can be used: {error}") from error

    async def activate(self, version: int) -> Pause:
        """See Engine.activate. Running responses continue as they began, so nothing pauses."""
        if version not in self._staged:
            raise WeightsError(f"version {version} is not staged")
        self._active = self._staged.pop(version)
        self.active_version, self._text = version, playbook.render(self._active)
        return Pause(0.0, 0)

    def discard(self, version: int) -> None:
        """See Engine.discard."""
        self._staged.pop(version, None)

    def status(self) -> EngineStatus:
        """Instructions in the active playbook, retried requests, and whether the API fails; see Engine.status."""
        return EngineStatus({"playbook_entries": float(len(self._active.entries))}, {"api_retries": self.retries},
                            alarms=[("api_failing", self.problem)], notes=self._habits.notes)

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
        await check_images(call.messages, self._image_hosts)
        version, instructions = self.active_version, self._text
        size = sum(message.ByteSize() for message in call.messages)
        request = await off_loop(size, lambda: self._request(call, instructions))
        seconds = self._retry_seconds if call.seconds is None else min(self._retry_seconds, call.seconds)
        stream: Any = None
        try:
            # Failures before the first chunk are retried: the client has seen nothing yet.
            stream, chunks = await api_calls.call(lambda: self._begin(request), seconds)
            transcript.version = version
            async for event in self._events(chunks, version, transcript):
                yield event
            self.problem = ""
        except (openai.OpenAIError, httpx.TransportError) as error:
            raise self._mesh_error(error) from error
        finally:
            if stream is not None:
                await stream.close()

    async def _begin(self, request: dict[str, Any]) -> tuple[Any, AsyncIterator[Any]]:
        """Send the request and wait for its first chunk; returns the stream and its chunks."""
        try:
            # The client would transform each message on the event loop: 2 s for 10,000.
            # They and all that the package does not know are in `extra_body`.
            body = self._habits.adapt(request)
            stream = await self._client.chat.completions.create(
                model=self._model, messages=[], stream=True, extra_body=body)
            chunks = aiter(stream)
            try:
                first = [await anext(chunks)]
            except StopAsyncIteration:
                await stream.close()
                raise openai.OpenAIError(api_calls.NO_COMPLETION) from None
            except BaseException:
                await stream.close()
                raise
        except openai.BadRequestError as error:
            if not self._habits.learn(error, body):
                raise
            return await self._begin(request)
        except (openai.APIError, httpx.TransportError) as error:
            self.retries += api_calls.may_pass(error)
            raise

        async def resumed() -> AsyncIterator[Any]:
            for chunk in first:
                yield chunk
            async for chunk in chunks:
                yield chunk

        return stream, resumed()

    async def _events(self, chunks: AsyncIterator[Any], version: int,
                      transcript: Transcript) -> AsyncGenerator[Event, None]:
        reason: turn_pb2.FinishReason.ValueType | None = None
        usage: Any = None
        calls = CallPieces()
        text, reasoning = WholePairs(), WholePairs()
        async for chunk in chunks:
            usage = chunk.usage or usage
            if not chunk.choices:
                continue
            choice = chunk.choices[0]
            if choice.delta is None:  # where only the end is told
                choice.delta = _NOTHING
            if transcript.first_token_at is None:
                transcript.first_token_at = time.time()
                yield Start(version, 0)
            delta = Delta(text=text.feed(_text(choice.delta.content)), reasoning=reasoning.feed(_text(
                getattr(choice.delta, "reasoning_content", None) or getattr(choice.delta, "reasoning", None))))
            if choice.finish_reason:
                delta.text += text.finish()
                delta.reasoning += reasoning.finish()
            if choice.logprobs and choice.logprobs.content:
                delta.logprobs = [_well_formed(token.model_dump()) for token in choice.logprobs.content]
            for piece in choice.delta.tool_calls or []:
                calls.feed(piece)
            if choice.finish_reason:
                reason = _REASONS.get(choice.finish_reason, turn_pb2.FINISH_REASON_STOP)
            if delta.text or delta.logprobs or delta.reasoning:
                transcript.text.append(delta.text)
                if delta.reasoning:
                    transcript.reasoning.append(delta.reasoning)
                yield delta
        if reason is None:
            # Without a content length, a broken response looks like a complete one, unless it tells its usage.
            if usage is None:
                raise openai.OpenAIError("its response broke off")
            reason, rest = turn_pb2.FINISH_REASON_STOP, Delta(text=text.finish(), reasoning=reasoning.finish())
            if rest.text or rest.reasoning:
                transcript.text.append(rest.text)
                transcript.reasoning.append(rest.reasoning)
                yield rest
        if transcript.first_token_at is None:
            yield Start(version, 0)
        transcript.tool_calls = calls.calls()
        if transcript.tool_calls:
            reason = turn_pb2.FINISH_REASON_TOOL_CALLS
            yield Delta(tool_calls=transcript.tool_calls)
        details = usage.prompt_tokens_details if usage else None
        yield End(reason, transcript.message(), usage.prompt_tokens if usage else 0,
                  usage.completion_tokens if usage else 0, cached_tokens=details.cached_tokens if details else None)

    def _request(self, call: ChatCall, instructions: str) -> dict[str, Any]:
        messages = playbook.with_playbook(call.messages, instructions)
        request: dict[str, Any] = {
            "model": self._model, "messages": [message_json(message) for message in messages], "stream": True,
            "stream_options": {"include_usage": True},
            **{key: value for key, value in call.extra.items() if key not in _RESERVED}}
        sampling = call.sampling
        for name in ("temperature", "top_p", "seed"):
            if sampling.HasField(name):
                request[name] = getattr(sampling, name)
        if sampling.HasField("max_tokens") and "max_completion_tokens" not in request:
            request["max_tokens"] = sampling.max_tokens
        if sampling.stop:
            request["stop"] = list(sampling.stop)
        if call.logprobs:
            request["logprobs"] = True
            if sampling.HasField("top_logprobs"):
                request["top_logprobs"] = sampling.top_logprobs
        if call.tools:
            request["tools"] = [tool_json(tool) for tool in call.tools]
            for shown, tool in zip(request["tools"], call.tools, strict=True):
                if tool.strict:
                    shown["function"]["strict"] = True
            named = call.tool_choice not in ("auto", "none", "required")
            request["tool_choice"] = {"type": "function", "function": {"name": call.tool_choice}} if named \
                else call.tool_choice
            if not call.parallel_tool_calls:
                request["parallel_tool_calls"] = False
        return request

    def _mesh_error(self, error: openai.OpenAIError | httpx.TransportError) -> errors.MeshError:
        """Convert an API's error to the client's: the API's own status if the client is at fault. Never has the key."""
        text = api_calls.redact(str(getattr(error, "message", error)), self._api)
        if isinstance(error, openai.APIStatusError):
            return self._of_status(error, text)
        if isinstance(error, openai.APIConnectionError | httpx.TransportError):  # time-outs too
            return errors.unavailable(f"the API can't be reached: {text}")
        return errors.unavailable(f"the API failed: {text}")

    def _of_status(self, error: openai.APIStatusError, text: str) -> errors.MeshError:
        status, wait = error.status_code, api_calls.retry_after(error)
        if status in (401, 403):
            # The server's key, not the client's: to the client the server is misconfigured.
            self.problem = api_calls.explain(error, self._api, self._names)
            logger.error("%s", self.problem)
            return errors.MeshError(grpc.StatusCode.INTERNAL, "INTERNAL",
                                    "the API refuses the key of the policy server; its operator must set a valid one",
                                    metadata={"http_status": "502"})
        if status == 429:
            return errors.exhausted(text, 1.0 if wait is None else wait)
        if status < 500:
            return errors.MeshError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", text,
                                    violations=[(str(error.param), text)] if error.param else [],
                                    metadata={"http_status": str(status)})
        return errors.unavailable(f"the API answered {status}: {text}", 1.0 if wait is None else wait)


def _text(content: Any) -> str:
    """Text, or that of an array of parts, in which some APIs stream it."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def _well_formed(value: Any) -> Any:
    """Replace unpaired surrogates in all strings of a JSON value."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {key: _well_formed(item) for key, item in value.items()}
    return [_well_formed(item) for item in value] if isinstance(value, list) else value
