"""Streamed chats with the policy server under test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1.common_pb2 import VersionSpan
from openclaw_rl.v1.turn_pb2 import ChatMessage, FinishReason, SamplingParams, TurnOptions

#: Seconds for a whole answer of a few tokens; a model on a busy processor takes its time.
ANSWER = 60.0
#: Tokens of an answer, unless a check wants more.
TOKENS = 12


@dataclass
class Answer:
    """A whole chat response."""

    start: pb.ChatStart
    deltas: list[pb.ChatDelta]
    end: pb.ChatEnd

    @property
    def text(self) -> str:
        return "".join(delta.content for delta in self.deltas)

    @property
    def tokens(self) -> list[pb.TokenChunk]:
        return [token for delta in self.deltas for token in delta.tokens]


def request(text: str | Sequence[ChatMessage] = "Say hello.", *, tokens: int = TOKENS, session: str = "",
            record: bool = False, **fields: Any) -> pb.ChatRequest:
    """A request that leaves no record unless it is told to, and then one that is never trained on; fields of
    TurnOptions and of ChatRequest as keywords."""
    messages = [ChatMessage(role="user", content=text)] if isinstance(text, str) else text
    turn = TurnOptions(session_id=session, no_record=not record, turn_type="side" if record else "")
    for name in [name for name in fields if name in TurnOptions.DESCRIPTOR.fields_by_name]:
        setattr(turn, name, fields.pop(name))
    fields.setdefault("sampling", SamplingParams(temperature=0.0, max_tokens=tokens))
    return pb.ChatRequest(messages=messages, turn=turn, **fields)


async def chat(kit: Context, text: str | Sequence[ChatMessage] = "Say hello.", *,
               channel: grpc.aio.Channel | None = None, **fields: Any) -> Answer:
    """Ask, and look whether the answer is one: a start, deltas, an end, and nothing else."""
    return await whole(kit, request(text, **fields), channel)


async def whole(kit: Context, asked: pb.ChatRequest, channel: grpc.aio.Channel | None = None) -> Answer:
    """The same for a request."""
    call = kit.stream("Chat", asked, timeout=ANSWER, channel=channel)
    events: list[pb.ChatResponse] = []
    async for event in call:
        events.append(event)
    return complete(kit, events)


def complete(kit: Context, events: list[pb.ChatResponse]) -> Answer:
    """The answer that events make."""
    kinds = [event.WhichOneof("event") for event in events]
    kit.expect(kinds, "the response ended well without a single message")
    kit.expect(kinds[0] == "start", f"the first message of the response is `{kinds[0]}`, not `start`")
    kit.expect(kinds[-1] == "end", f"the last message of the response is `{kinds[-1]}`, not `end`")
    between = {kind for kind in kinds[1:-1]} - {"delta"}
    kit.expect(not between, f"between `start` and `end` there is a message `{next(iter(between), '')}`; `delta` alone "
               "may be there")
    return Answer(events[0].start, [event.delta for event in events[1:-1]], events[-1].end)


def check_spans(kit: Context, spans: Iterable[VersionSpan], tokens: int, what: str) -> None:
    """Spans must cover so many tokens without a gap, in order."""
    at = 0
    for span in spans:
        kit.expect(span.begin == at and span.end > span.begin,
                   f"a version span of {what} goes from {span.begin} to {span.end}; the one before it ended at {at}")
        at = span.end
    kit.expect(at == tokens, f"the version spans of {what} cover {at} of its {tokens} tokens")


def check_tokens(kit: Context, tokens: Sequence[pb.TokenChunk], end: pb.GenerationEnd, vocabulary: int, what: str
                 ) -> None:
    """Tokens of a response: as many as its end says, ids of the vocabulary, log-probabilities, each of the version
    that its span says."""
    kit.expect(len(tokens) == end.completion_tokens, f"{len(tokens)} tokens of {what} were sent; its end says "
               f"{end.completion_tokens}")
    check_spans(kit, end.spans, len(tokens), what)
    for i, token in enumerate(tokens):
        kit.expect(0 <= token.id < vocabulary, f"token {i} of {what} has the id {token.id}; the vocabulary has "
                   f"{vocabulary}")
        kit.expect(token.logprob <= 1e-6 and token.model_logprob <= 1e-6,
                   f"token {i} of {what} has the log-probabilities {token.logprob:g} and {token.model_logprob:g}; none "
                   "is above 0")
    for span in end.spans:
        wrong = next((token.version for token in tokens[span.begin : span.end] if token.version != span.version), None)
        kit.expect(wrong is None, f"tokens {span.begin} to {span.end} of {what} are told to be of version "
                   f"{span.version}, and one of them of version {wrong}")


def finished(kit: Context, reason: int, what: str) -> None:
    """A response that ended well must say why it ended."""
    kit.expect(reason in (FinishReason.FINISH_REASON_STOP, FinishReason.FINISH_REASON_LENGTH,
                          FinishReason.FINISH_REASON_TOOL_CALLS),
               f"{what} ended well, and its finish_reason is {FinishReason.Name(reason)}")  # type: ignore[arg-type]


async def policy(kit: Context) -> pb.GetPolicyResponse:
    """What GetPolicy says now."""
    answer: pb.GetPolicyResponse = await kit.unary("GetPolicy")
    return answer


async def state(kit: Context) -> pb.PolicyState:
    """The same without the manifests."""
    return (await policy(kit)).state


async def running(kit: Context) -> float | None:
    """Responses that are being made, as the status says; None when it does not say."""
    status = await kit.status()
    return status.gauges.get("running")


async def first_event(kit: Context, call: Any, seconds: float = ANSWER) -> Any:
    """The first message of a response that goes on."""
    return await kit.within(_read(call), seconds, f"no message of the response came within {seconds:g} s")


async def _read(call: Any) -> Any:
    reading = asyncio.ensure_future(call.read())
    return await asyncio.shield(reading)  # giving a read up would cancel the call
