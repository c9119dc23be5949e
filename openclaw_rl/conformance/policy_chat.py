"""Checks of Chat: form of a response, ids, versions, tools, bad input."""

from __future__ import annotations

import asyncio
import json
import time

import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Level, check
from openclaw_rl.conformance.policy_calls import (
    ANSWER,
    chat,
    check_tokens,
    finished,
    first_event,
    request,
    running,
    state,
    whole,
)
from openclaw_rl.conformance.refusal import Refusal
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1.turn_pb2 import (
    FINISH_REASON_TOOL_CALLS,
    ChatMessage,
    SamplingParams,
    ToolCall,
    ToolDefinition,
)

_POLICY = ("policy",)
#: Chats at the same time.
MANY = 12
#: Seconds until a cancelled answer makes no work any more.
FREED = 20.0
#: Tokens of an answer that is cancelled before it is complete.
LONG = 400
TOOL = ToolDefinition(name="get_weather", description="Tells the weather of a city.", parameters_json=json.dumps(
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}))


@check("policy.chat", "A chat is answered with one start, deltas and one end.", services=_POLICY, seconds=ANSWER,
       where="policy.proto: ChatResponse")
async def answered(kit: Context) -> None:
    answer = await chat(kit)
    kit.expect(answer.text or answer.end.message.tool_calls, "the answer to a greeting is empty")
    finished(kit, answer.end.generation.finish_reason, "the response")


@check("policy.chat.message", "The deltas of a response add up to the message of its end.", services=_POLICY,
       after=["policy.chat"], seconds=ANSWER, where="policy.proto: ChatDelta, ChatEnd.message")
async def adds_up(kit: Context) -> None:
    answer = await chat(kit, "Count from one to five.", tokens=24)
    message = answer.end.message
    kit.expect(message.role == "assistant", f"the message of the end has the role {message.role!r}, not 'assistant'")
    kit.expect(answer.text == message.content, f"the deltas make {answer.text[:80]!r}, the end says "
               f"{message.content[:80]!r}")
    calls = [call for delta in answer.deltas for call in delta.tool_calls]
    kit.expect(calls == list(message.tool_calls), f"the deltas have {len(calls)} tool calls, the end has "
               f"{len(message.tool_calls)}")


@check("policy.chat.ids", "A response has a unique turn id, its session and its model.",
       services=_POLICY, after=["policy.chat"], seconds=2 * ANSWER, where="policy.proto: ChatStart")
async def ids(kit: Context) -> None:
    session = kit.session()
    first, second = await chat(kit, session=session), await chat(kit)
    kit.expect(first.start.turn_id and second.start.turn_id, "`start` has no turn_id")
    kit.expect(first.start.turn_id != second.start.turn_id, f"two responses have the turn_id {first.start.turn_id!r}")
    kit.expect(first.start.session_id == session, f"`start` has the session {first.start.session_id!r}; the request "
               f"named {session!r}")
    kit.expect(second.start.session_id, "`start` has no session_id where the request named none: one is made, or found "
               "by the messages")
    model = (await state(kit)).model
    kit.expect(first.start.model == model, f"`start` names the model {first.start.model!r}, GetPolicy {model!r}")


@check("policy.chat.version", "A response names its version, and the version of each token.",
       services=_POLICY, after=["policy.chat"], seconds=ANSWER,
       where="policy.proto: ChatStart.policy_version, GenerationEnd.spans")
async def version(kit: Context) -> None:
    before = await state(kit)
    answer = await chat(kit)
    after = await state(kit)
    told, end = answer.start.policy_version, answer.end.generation
    kit.expect(told in (before.active_version, after.active_version),
               f"`start` says version {told}; version {before.active_version} is active")
    if before.vocab_size:
        kit.expect(answer.tokens, f"no token came with the deltas, though the model has token ids (vocab_size "
                   f"{before.vocab_size})")
        check_tokens(kit, answer.tokens, end, before.vocab_size, "the response")
        kit.expect(end.prompt_tokens > 0, "the end says that the prompt had no tokens")
        kit.expect(answer.tokens[0].version == told, f"`start` says version {told}, the first token "
                   f"{answer.tokens[0].version}")
    elif end.spans:
        kit.expect(all(span.version == told for span in end.spans), f"`start` says version {told}, a version span "
                   f"{end.spans[0].version}")


@check("policy.chat.min_version", "A request for a version that is not active is rejected with VERSION_NOT_ACTIVE, "
                                  "retryable.", services=_POLICY, after=["policy.chat"], seconds=2 * ANSWER,
       where="turn.proto: TurnOptions.min_version, exact_version")
async def wanted_version(kit: Context) -> None:
    active = (await state(kit)).active_version
    await chat(kit, min_version=active, exact_version=active)
    for field, value in (("min_version", active + 1000), ("exact_version", active + 1000)):
        refused = await kit.refused(whole(kit, request(**{field: value})),  # type: ignore[arg-type]
                                    grpc.StatusCode.FAILED_PRECONDITION,
                                    what=f"a chat with {field} {value}, where version {active} is active,")
        kit.expect(refused.reason == "VERSION_NOT_ACTIVE", f"a chat with {field} {value} was refused for the reason "
                   f"{refused.reason!r}, not VERSION_NOT_ACTIVE")
        kit.expect(refused.retry_after is not None, f"a chat with {field} {value} was refused without a RetryInfo, "
                   "though the version may become active")


@check("policy.chat.tools", "Tools are offered to the model; the calls of a response are complete, and its "
       "finish_reason says so.", services=_POLICY, after=["policy.chat"], seconds=4 * ANSWER,
       where="policy.proto: ChatRequest.tools")
async def tools(kit: Context) -> None:
    for choice in ("", "none"):
        answer = await chat(kit, "What is the weather in Bern?", tools=[TOOL], tool_choice=choice, tokens=40)
        _check_calls(kit, answer.end)
        if choice == "none":
            kit.expect(not answer.end.message.tool_calls, "with tool_choice \"none\" the response calls a tool")
    called = [ChatMessage(role="user", content="What is the weather in Bern?"),
              ChatMessage(role="assistant", tool_calls=[ToolCall(id="call_1", name=TOOL.name,
                                                                 arguments_json='{"city": "Bern"}')]),
              ChatMessage(role="tool", tool_call_id="call_1", content="It rains.")]
    _check_calls(kit, (await chat(kit, called, tools=[TOOL])).end)


def _check_calls(kit: Context, end: pb.ChatEnd) -> None:
    calls, reason = end.message.tool_calls, end.generation.finish_reason
    for call in calls:
        kit.expect(call.id and call.name, "a tool call has no id or no name")
        try:
            fine = isinstance(parse_json(call.arguments_json or "{}"), dict)
        except ValueError:
            fine = False
        kit.expect(fine, f"the arguments of a call of {call.name} are no JSON object: {call.arguments_json[:80]!r}")
    kit.expect(bool(calls) == (reason == FINISH_REASON_TOOL_CALLS),
               f"the response has {len(calls)} tool calls, and its finish_reason is {reason}")


def _named(refused: Refusal, field: str) -> bool:
    return any(field in name for name in refused.violations)


@check("policy.chat.bad_input", "Invalid input is rejected with INVALID_ARGUMENT, naming the field; the next request "
                                "succeeds.", services=_POLICY, after=["policy.chat"], seconds=2 * ANSWER,
       where="common.proto; policy.proto: "
       "ChatRequest")
async def bad_input(kit: Context) -> None:
    user = ChatMessage(role="user", content="Hello.")
    cases: list[tuple[str, str, pb.ChatRequest]] = [
        ("without messages", "messages", request([])),
        ("with a message of the role 'wizard'", "role", request([ChatMessage(role="wizard", content="Hello.")])),
        ("with a tool message that answers no call", "messages", request([user, ChatMessage(
            role="tool", tool_call_id="call_9", content="It rains.")])),
        ("with temperature -1", "temperature", request([user], sampling=SamplingParams(temperature=-1.0))),
        ("with top_p 2", "top_p", request([user], sampling=SamplingParams(top_p=2.0))),
        ("with max_tokens 0", "max_tokens", request([user], sampling=SamplingParams(max_tokens=0))),
        ("with two tools of one name", "tools", request([user], tools=[TOOL, TOOL])),
        ("with a tool whose parameters are no JSON", "tools", request([user], tools=[ToolDefinition(
            name="broken", parameters_json="{")])),
        ("with a tool_choice that is no tool", "tool_choice", request([user], tools=[TOOL], tool_choice="fly")),
        ("with a session_id of 300 characters", "session_id", request([user], session="x" * 300))]
    for what, field, asked in cases:
        refused = await kit.refused(whole(kit, asked), grpc.StatusCode.INVALID_ARGUMENT, what=f"a chat {what}")
        kit.expect(_named(refused, field), f"a chat {what} was refused, but no field violation names {field!r} (named: "
                   f"{', '.join(refused.violations) or 'none'})")
    await chat(kit)


@check("policy.chat.cancel", "Cancelling a chat, or its deadline, ends its generation: the slot is free again.",
       services=_POLICY, after=["policy.chat"], seconds=4 * ANSWER, where="policy.proto: Chat")
async def cancelled(kit: Context) -> None:
    asked = request("Tell me a long story about a heron, in many sentences.", tokens=LONG)
    for _ in range(MANY):
        call = kit.stream("Chat", asked, timeout=ANSWER)
        kind = (await first_event(kit, call)).WhichOneof("event")
        kit.expect(kind == "start", f"the first message of the response is `{kind}`, not `start`")
        call.cancel()
    late = await _late(kit, asked)
    kit.expect(late in ("OK", "DEADLINE_EXCEEDED", "CANCELLED"),
               f"a chat with a deadline of 50 ms ended with {late}, not DEADLINE_EXCEEDED")
    end = time.monotonic() + FREED
    count = await running(kit)
    while count:
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.1)
        count = await running(kit)
    kit.expect(not count, f"{FREED:g} s after {MANY} chats were cancelled the status says that {count:g} are running")
    began = time.monotonic()
    await chat(kit)
    took = time.monotonic() - began
    kit.expect(took < ANSWER / 2, f"after {MANY} cancelled chats the next one took {took:.0f} s")


async def _late(kit: Context, asked: pb.ChatRequest) -> str:
    """The code that a chat with a deadline of 50 ms ends with; one that is quick may be complete by then."""
    try:
        async for _ in kit.stream("Chat", asked, timeout=0.05):
            pass
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


@check("policy.chat.many", f"{MANY} chats at the same time are all answered, each for itself.", services=_POLICY,
       after=["policy.chat"], seconds=4 * ANSWER, where="policy.proto: Chat")
async def many(kit: Context) -> None:
    sessions = [kit.session() for _ in range(MANY)]
    answers = await asyncio.gather(*(chat(kit, f"What is {i} and {i}?", session=session)
                                     for i, session in enumerate(sessions)))
    turns = {answer.start.turn_id for answer in answers}
    kit.expect(len(turns) == MANY, f"{MANY} chats at the same time have {len(turns)} turn ids")
    mixed = [answer for answer, session in zip(answers, sessions, strict=True) if answer.start.session_id != session]
    kit.expect(not mixed, f"{len(mixed)} of {MANY} chats at the same time were told another one's session")


@check("policy.chat.slow_reader", "A client that does not read delays no other.", services=_POLICY,
       after=["policy.chat"], seconds=2 * ANSWER, where="policy.proto: Chat", level=Level.SHOULD)
async def slow_reader(kit: Context) -> None:
    channel = kit.connect()
    for _ in range(3):
        kit.stream("Chat", request("Tell me a long story.", tokens=100), timeout=ANSWER, channel=channel)
    began = time.monotonic()
    await chat(kit)
    took = time.monotonic() - began
    kit.expect(took < ANSWER / 2, f"while three clients did not read their answers another one waited {took:.0f} s")
