"""Policies: chat calls in; text, tool calls and tokens out.

`TokenPolicy` drives an engine that works on token ids; `engines.openai.UpstreamPolicy` calls an API. Both write their
output into a `Transcript` as it comes, so that a response that is cut short is recorded as far as it came.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from openclaw_rl.rpc import errors
from openclaw_rl.serving import unsupported
from openclaw_rl.serving.engines.interface import (
    CallGrammar,
    EngineBusy,
    EngineError,
    Finished,
    Function,
    Grammar,
    GrammarError,
    PromptTooLong,
    Sampling,
    TokenEngine,
)
from openclaw_rl.serving.interfaces import ChatCall, Delta, End, Event, SampledToken, Start
from openclaw_rl.serving.long_input import PromptLimits, context_too_long, off_loop
from openclaw_rl.serving.response_reader import ResponseReader
from openclaw_rl.serving.text.hermes_tools import CLOSE, OPEN
from openclaw_rl.serving.text.parsers import Parsers
from openclaw_rl.serving.text.template import ChatTemplate, Prompt, TooLong
from openclaw_rl.serving.validation import check_sampling, check_version
from openclaw_rl.v1 import common_pb2, turn_pb2

BUILT_IN = Parsers()


@dataclass(slots=True)
class Transcript:
    """A response so far."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[turn_pb2.ToolCall] = field(default_factory=list)
    prompt_ids: list[int] | None = None  #: None for an API model
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    forced: list[int] = field(default_factory=list)  #: indexes of tokens that were no choice
    spans: list[common_pb2.VersionSpan] = field(default_factory=list)
    version: int = 0  #: of the first token
    first_token_at: float | None = None  #: seconds since the epoch

    def add(self, token: SampledToken) -> None:
        """Append a sampled token."""
        if not self.spans:
            self.first_token_at, self.version = time.time(), token.version
        if not self.spans or self.spans[-1].version != token.version:
            self.spans.append(common_pb2.VersionSpan(version=token.version, begin=len(self.response_ids)))
        if token.forced:
            self.forced.append(len(self.response_ids))
        self.response_ids.append(token.id)
        self.logprobs.append(token.logprob)
        self.model_logprobs.append(token.model_logprob)
        self.spans[-1].end = len(self.response_ids)

    def message(self) -> turn_pb2.ChatMessage:
        """The response as a message."""
        return turn_pb2.ChatMessage(role="assistant", content="".join(self.text), tool_calls=self.tool_calls,
                                    reasoning_content="".join(self.reasoning))

    def record(self) -> turn_pb2.TokenRecord | None:
        """The response as tokens; None for an API model."""
        if self.prompt_ids is None:
            return None
        return turn_pb2.TokenRecord(prompt_ids=self.prompt_ids, response_ids=self.response_ids,
                                    logprobs=self.logprobs, model_logprobs=self.model_logprobs, spans=self.spans,
                                    forced=self.forced)


class Policy(Protocol):
    """The interface of policies."""

    @property
    def version(self) -> int:
        """The active policy version."""
        ...

    @property
    def prompt_limits(self) -> PromptLimits | None:
        """What no prompt can exceed; None where that is not known."""
        ...

    def fill(self, sampling: turn_pb2.SamplingParams) -> turn_pb2.SamplingParams:
        """Fill in the defaults of sampling parameters.

        Raises:
            MeshError: INVALID_ARGUMENT, naming the field that is out of range.
        """
        ...

    def chat(self, call: ChatCall, transcript: Transcript) -> AsyncGenerator[Event, None]:
        """Generate a response: one Start, Deltas, one End.

        Raises:
            MeshError: before Start, the request can't be served; after it, the engine failed.
        """
        ...


class TokenPolicy:
    """A policy over an engine that works on token ids."""

    def __init__(self, engine: TokenEngine, template: ChatTemplate, temperature: float = 0.7,
                 max_tokens: int = 512, parsers: Parsers = BUILT_IN) -> None:
        self.engine = engine
        self.template = template
        self.parsers = parsers
        self.shown_tokens = parsers.shown(template.tokens)
        self._temperature, self._max_tokens = temperature, max_tokens

    @property
    def version(self) -> int:
        return self.engine.active_version

    @property
    def prompt_limits(self) -> PromptLimits:
        return PromptLimits(self.engine.info.context_length, self.template.token_bytes)

    def fill(self, sampling: turn_pb2.SamplingParams) -> turn_pb2.SamplingParams:
        filled = turn_pb2.SamplingParams(temperature=self._temperature, top_p=1.0, max_tokens=self._max_tokens)
        filled.MergeFrom(sampling)
        limit = self.engine.info.context_length
        check_sampling(filled)
        filled.max_tokens = min(filled.max_tokens, limit)  # a bound, not a demand: agents send one figure to all models
        self._check_ids("stop_token_ids", filled.stop_token_ids)
        return filled

    async def chat(self, call: ChatCall, transcript: Transcript) -> AsyncGenerator[Event, None]:
        check_version(self.version, call)
        prompt = await self.prompt(call)
        transcript.prompt_ids = prompt.ids
        wanted = call.sampling
        unsupported.refuse(call.extra)
        self._check_ids("logit_bias", list(call.shaping.logit_bias) if call.shaping else [])
        sampling = Sampling(
            temperature=wanted.temperature, top_p=wanted.top_p, max_tokens=wanted.max_tokens,
            seed=wanted.seed & (2**63 - 1) if wanted.HasField("seed") else None,
            stop_token_ids=tuple(wanted.stop_token_ids), top_logprobs=wanted.top_logprobs, background=call.background,
            shaping=call.shaping, grammar=self._grammar(call, prompt))
        reader = ResponseReader(call, prompt, self.shown_tokens, self.parsers, self.engine.info)
        reason: turn_pb2.FinishReason.ValueType = turn_pb2.FINISH_REASON_STOP
        cached = 0
        echo = await self._echo(call, prompt.ids, reader) if call.echo else None
        if call.echo_only and echo is not None:
            yield Start(self.version, len(prompt.ids))
            yield echo
            yield End(turn_pb2.FINISH_REASON_LENGTH, transcript.message(), len(prompt.ids), 0, transcript.record())
            return
        stream = self.engine.generate(prompt.ids, sampling, session=call.session)
        try:
            async with aclosing(stream):  # type: ignore[type-var]
                async for item in stream:
                    if isinstance(item, Finished):
                        if item.reason == "length":
                            reason = turn_pb2.FINISH_REASON_LENGTH
                        break
                    if not transcript.response_ids:
                        cached = item.cached_tokens
                        yield Start(item.version, len(prompt.ids))
                        if echo is not None:
                            yield echo
                    transcript.add(item)
                    delta = reader.feed(item)
                    if delta.text:
                        transcript.text.append(delta.text)
                    if delta.reasoning:
                        transcript.reasoning.append(delta.reasoning)
                    if delta.tool_calls:
                        transcript.tool_calls.extend(delta.tool_calls)
                    yield delta
                    if reader.done:
                        break
        except (EngineError, ValueError) as error:
            raise self._mesh_error(error, call) from error
        if not transcript.response_ids:
            yield Start(self.version, len(prompt.ids))
        last = reader.finish()
        transcript.text.append(last.text)
        transcript.reasoning.append(last.reasoning)
        transcript.tool_calls.extend(last.tool_calls)
        if last.text or last.tool_calls or last.logprobs or last.reasoning:
            yield last
        if transcript.tool_calls and not reader.cut:
            reason = turn_pb2.FINISH_REASON_TOOL_CALLS
        yield End(reason, transcript.message(), len(prompt.ids), len(transcript.response_ids), transcript.record(),
                  cached, reader.stop)

    def text(self, ids: list[int]) -> str:
        """The text of tokens.

        Raises:
            MeshError: INVALID_ARGUMENT, an id outside the vocabulary.
        """
        self._check_ids("tokens", ids)
        table = self.template.tokens.table
        return b"".join(table[i] for i in ids if i < len(table)).decode("utf-8", "replace")

    async def _echo(self, call: ChatCall, ids: list[int], reader: ResponseReader) -> Delta:
        """The prompt as text and, where wanted, as tokens with their log-probabilities."""
        delta = Delta(echo=self.text(ids) if call.prompt is None else call.prompt)
        if call.logprobs:
            try:
                read = await self.engine.read(ids, call.sampling.top_logprobs) if len(ids) > 1 else []
            except (EngineError, ValueError) as error:
                raise self._mesh_error(error, call) from error
            first = {**reader.named(ids[0], 0.0), "logprob": None, "top_logprobs": None}
            delta.logprobs = [first, *map(reader.logprob, read)]
        return delta

    async def score(self, token_ids: list[int], version: int | None) -> tuple[list[float], int]:
        """Score tokens: the log-probability of each but the first, and the version that scored.

        Raises:
            MeshError: ids that the engine rejects, or a version that is not active.
        """
        check_version(self.version, ChatCall(exact_version=version))
        if len(token_ids) < 2:
            raise errors.invalid("token_ids", token_ids, "at least two tokens: the first one has no log-probability")
        self._check_ids("token_ids", token_ids)
        try:
            return await self.engine.score(token_ids)
        except (EngineError, ValueError) as error:
            raise self._mesh_error(error, ChatCall(prompt_ids=token_ids), "token_ids") from error

    async def prompt(self, call: ChatCall) -> Prompt:
        """The tokens of a call's prompt.

        Raises:
            MeshError: INVALID_ARGUMENT, naming the field.
        """
        if call.grammar is not None and not self.engine.info.grammars:
            raise errors.invalid_many([(call.grammar.field, f"{call.grammar.kind} is not possible: this model's "
                                                            f"responses can't be held to a form")])
        if call.prompt_ids is not None:
            if not call.prompt_ids:
                raise errors.invalid(call.prompt_ids_field, [], "at least one token")
            self._check_ids(call.prompt_ids_field, call.prompt_ids)
            return Prompt(call.prompt_ids)
        limit = self.engine.info.context_length
        if call.prompt is not None:
            text = call.prompt
            size = len(text)

            def make() -> Prompt:
                return Prompt(self.template.encode(text, call.special_tokens, limit))
        else:
            size = sum(message.ByteSize() for message in call.messages) + sum(tool.ByteSize() for tool in call.tools)

            def make() -> Prompt:
                for i, message in enumerate(call.messages):
                    if any(part.WhichOneof("part") == "image_url" for part in message.parts):
                        raise errors.invalid(f"messages[{i}].content", "image_url", "text: this model sees no images")
                return self.template.chat(call.messages, call.tools, call.tool_choice, limit,
                                          continue_final=call.continue_final, values=call.template_values,
                                          generation_prompt=call.generation_prompt)

        try:
            prompt = await off_loop(size, make)
        except TooLong as error:
            raise self._too_long(call, error.least, limit, "at least ") from None
        if not prompt.ids:
            raise errors.invalid("prompt", call.prompt, "at least one token")
        if len(prompt.ids) >= limit:
            raise self._too_long(call, len(prompt.ids), limit)
        return prompt

    def _grammar(self, call: ChatCall, prompt: Prompt) -> Grammar | None:
        """What the engine is to hold the response to."""
        if not call.tools or call.tool_choice == "none" or not self.engine.info.grammars:
            return call.grammar
        if self.parsers.tool and not prompt.opening:
            return call.grammar  # calls are in the style of another model family
        named = call.tool_choice not in ("auto", "required")
        functions = tuple(
            Function(tool.name, tool.parameters_json, f"tools[{i}].function.parameters", tool.strict)
            for i, tool in enumerate(call.tools) if not named or tool.name == call.tool_choice)
        return CallGrammar(functions, (OPEN, CLOSE), prompt.opening, named or not call.parallel_tool_calls,
                           None if prompt.opening else call.grammar)

    def _check_ids(self, name: str, ids: Any) -> None:
        size = self.engine.info.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            at = next(i for i, token in enumerate(ids) if not 0 <= token < size)
            raise errors.invalid(f"{name}[{at}]", ids[at], f"a token id from 0 to {size - 1}")

    def _mesh_error(self, error: Exception, call: ChatCall, field_name: str = "") -> errors.MeshError:
        """Convert an engine's error to the client's."""
        if isinstance(error, EngineBusy):
            return errors.exhausted(str(error), error.retry_after)
        if isinstance(error, GrammarError):
            return errors.invalid_many([(error.field, error.reason)])
        if isinstance(error, PromptTooLong):
            return self._too_long(call, error.prompt_tokens, error.context_length)
        if isinstance(error, ValueError):
            return errors.invalid_many([(field_name or _prompt_field(call), str(error))])
        return errors.unavailable(f"the engine failed: {error}")

    @staticmethod
    def _too_long(call: ChatCall, tokens: int, limit: int, about: str = "") -> errors.MeshError:
        field_name = _prompt_field(call)
        return context_too_long(limit, f"{field_name} resulted in {about}{tokens} tokens", field_name)


def _prompt_field(call: ChatCall) -> str:
    if call.prompt is not None:
        return "prompt"
    return "messages" if call.prompt_ids is None else call.prompt_ids_field
