"""Anthropic's own SDK against the Messages API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import anthropic
import pytest

from openclaw_rl.v1 import turn_pb2
from tests.serving.entrypoints.conftest import Entrypoint, OpenEntrypoint

ASK: list[Any] = [{"role": "user", "content": "Hi"}]
TOOL: Any = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {
    "at": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the sky"}}\n</tool_call>'


Sdk = Callable[..., anthropic.AsyncAnthropic]


@pytest.fixture
async def sdk() -> AsyncIterator[Sdk]:
    """Makes clients of an entrypoint, and closes them."""
    async with AsyncExitStack() as stack:
        def make(entrypoint: Entrypoint, key: str = "none") -> anthropic.AsyncAnthropic:
            client = anthropic.AsyncAnthropic(base_url=entrypoint.url, api_key=key, max_retries=0)
            stack.push_async_callback(client.close)
            return client

        yield make


async def test_a_message(entrypoint: Entrypoint, sdk: Sdk) -> None:
    message = await sdk(entrypoint).messages.create(
        model="stub", max_tokens=50, messages=ASK, metadata={"user_id": "u1"},
        extra_body={"temperature": 0.5, "top_k": 5},
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.text for block in message.content if block.type == "text"] == ["Hello there!"]
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", "stub")
    assert message.usage.output_tokens > 5 and message.usage.input_tokens == len(entrypoint.engine.prompts[0])
    [turn] = entrypoint.turns()
    assert message.id == f"msg_{turn.turn_id}" and turn.api == "messages"
    assert [(said.role, said.content) for said in turn.messages] == [("system", "Be brief."), ("user", "Hi")]
    sampling = entrypoint.engine.samplings[0]
    assert (sampling.max_tokens, sampling.temperature) == (50, 0.5)
    assert sampling.shaping is not None and sampling.shaping.top_k == 5
    async with entrypoint.http() as http:
        assert (await http.post("/v1/feedback", json={"turn_id": message.id, "rating": "up"})).status_code == 200
    assert entrypoint.events()[-1].feedback.turn_id == turn.turn_id


async def test_why_it_ended(entrypoint: Entrypoint, sdk: Sdk) -> None:
    cut = await sdk(entrypoint).messages.create(model="stub", max_tokens=3, messages=ASK)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3
    stopped = await sdk(entrypoint).messages.create(model="stub", max_tokens=50, messages=ASK, stop_sequences=["there"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "there")


async def test_a_stream(entrypoint: Entrypoint, sdk: Sdk) -> None:
    async with sdk(entrypoint).messages.stream(model="stub", max_tokens=50, messages=ASK) as stream:
        events = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert message.content[0].type == "text" and message.content[0].text == "Hello there!"
    assert message.stop_reason == "end_turn" and message.usage.output_tokens > 5
    assert message.usage.input_tokens == len(entrypoint.engine.prompts[0])
    assert [event for event in events if event not in ("text", "content_block_delta")] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert events.count("content_block_delta") > 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_is_one_session(entrypoint: Entrypoint, sdk: Sdk, stream: bool) -> None:
    client = sdk(entrypoint)

    async def ask(messages: list[Any]) -> Any:
        asked: Any = {"model": "stub", "max_tokens": 200, "messages": messages, "tools": [TOOL],
                      "tool_choice": {"type": "auto"}}
        if not stream:
            return await client.messages.create(**asked)
        async with client.messages.stream(**asked) as streamed:
            return await streamed.get_final_message()

    entrypoint.says("Let me see." + CALL)
    first = await ask(ASK)
    assert [block.type for block in first.content] == ["text", "tool_use"] and first.stop_reason == "tool_use"
    call = first.content[1]
    assert (call.name, call.input) == ("look", {"at": "the sky"})
    entrypoint.says("It is blue.")
    await ask([*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "blue"}]},
        {"type": "text", "text": "Well?"}]}])
    one, two = entrypoint.turns()
    assert one.session_id == two.session_id
    assert [said.role for said in two.messages] == ["user", "assistant", "tool", "user"]
    assert two.messages[1].tool_calls[0].id == two.messages[2].tool_call_id == call.id
    assert two.messages[2].content == "blue" and two.messages[1].content == "Let me see."


async def test_the_choice_of_a_tool(entrypoint: Entrypoint, sdk: Sdk) -> None:
    entrypoint.says('{"at": "x"}}\n</tool_call>')
    message = await sdk(entrypoint).messages.create(
        model="stub", max_tokens=200, messages=ASK, tools=[TOOL], tool_choice={"type": "tool", "name": "look"})
    assert [block.type for block in message.content] == ["tool_use"]
    assert entrypoint.prompt().endswith('{"name": "look", "arguments":')


async def test_tokens_are_counted(entrypoint: Entrypoint, sdk: Sdk) -> None:
    counted = await sdk(entrypoint).messages.count_tokens(model="stub", messages=ASK, system="Be brief.", tools=[TOOL])
    await sdk(entrypoint).messages.create(model="stub", max_tokens=9, messages=ASK, system="Be brief.", tools=[TOOL])
    assert counted.input_tokens == len(entrypoint.engine.prompts[0])
    assert len(entrypoint.turns()) == 1


async def test_what_claude_code_sends(entrypoint: Entrypoint) -> None:
    """Its shape: blocks everywhere, cache marks, betas, contexts, a session in the user id, a request beside it."""
    body: dict[str, Any] = {
        "model": "stub", "max_tokens": 32000, "stream": True, "tools": [{**TOOL, "eager_input_streaming": True}],
        "metadata": {"user_id": "user_1_account__session_a"}, "context_management": {"edits": []},
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
        "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>x</system-reminder>"},
            {"type": "text", "text": "Fix it", "cache_control": {"type": "ephemeral"}}]}]}
    async with entrypoint.http() as http:
        reply = await http.post("/v1/messages?beta=true", json=body, headers={
            "x-api-key": "none", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"})
        assert reply.status_code == 200 and "message_stop" in reply.text
    [turn] = entrypoint.turns()
    assert turn.messages[1].content == "<system-reminder>x</system-reminder>\nFix it"


@pytest.mark.parametrize(("body", "param"), [
    ({}, "messages"), ({"messages": "Hi"}, "messages"), ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "source.type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ({"messages": ASK, "system": 5}, "system"), ({"messages": ASK, "max_tokens": 0}, "max_tokens"),
    ({"messages": ASK, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"messages": ASK, "tools": [{**TOOL, "input_schema": 5}]}, "input_schema"),
    ({"messages": ASK, "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"messages": ASK, "mcp_servers": [{}]}, "mcp_servers"),
    ({"messages": ASK, "stop_sequences": 5}, "stop_sequences")])
async def test_bad_requests_have_anthropics_errors(entrypoint: Entrypoint, body: dict[str, Any], param: str) -> None:
    async with entrypoint.http() as http:
        reply = await http.post("/v1/messages", json=body)
    data = reply.json()
    assert reply.status_code == 400 and data["type"] == "error", data
    assert data["error"]["type"] == "invalid_request_error" and data["error"]["param"].endswith(param), data
    assert entrypoint.turns() == []


async def test_errors_are_the_sdks(open_entrypoint: OpenEntrypoint, sdk: Sdk) -> None:
    entrypoint = await open_entrypoint(api_keys=("secret-key-of-16",))
    with pytest.raises(anthropic.AuthenticationError):
        await sdk(entrypoint, "wrong").messages.create(model="stub", max_tokens=9, messages=ASK)
    client = sdk(entrypoint, "secret-key-of-16")
    assert (await client.messages.create(model="stub", max_tokens=50, messages=ASK)).stop_reason == "end_turn"
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="other", max_tokens=9, messages=ASK)
    entrypoint.engine.fail_after = 4
    with pytest.raises(anthropic.APIStatusError, match="the accelerator is gone"):
        async with client.messages.stream(model="stub", max_tokens=50, messages=ASK) as stream:
            await stream.get_final_message()
    assert entrypoint.turns()[-1].finish_reason == turn_pb2.FINISH_REASON_ERROR
