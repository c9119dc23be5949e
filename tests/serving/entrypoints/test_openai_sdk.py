"""The openai SDK, unchanged, against a real server."""

from __future__ import annotations

import json

import openai
import pytest

from openclaw_rl.v1 import turn_pb2
from tests.serving.entrypoints.conftest import Entrypoint
from tests.support.waiting import eventually

ASK = [{"role": "user", "content": "Hi"}]
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


async def test_a_whole_answer_and_its_turn(entrypoint: Entrypoint) -> None:
    client = entrypoint.openai()
    raw = await client.chat.completions.with_raw_response.create(
        model="stub", messages=ASK, extra_headers={"X-Session-Id": "s1", "X-Turn-Type": "main"}, temperature=0.5,
        max_tokens=100, seed=7)
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello there!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.session_id == "s1"
    assert answer.model == "stub"
    turn, = entrypoint.turns()
    assert raw.headers["x-openclaw-turn-id"] == turn.turn_id
    assert raw.headers["x-openclaw-policy-version"] == "3"
    assert answer.id == f"chatcmpl-{turn.turn_id}"
    assert answer.usage.prompt_tokens == len(turn.tokens.prompt_ids) == len(entrypoint.engine.prompts[0])
    assert answer.usage.completion_tokens == len(turn.tokens.response_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert list(turn.tokens.prompt_ids) == entrypoint.engine.prompts[0]
    assert len(turn.tokens.logprobs) == len(turn.tokens.model_logprobs) == len(turn.tokens.response_ids)
    assert [(s.version, s.begin, s.end) for s in turn.tokens.spans] == [(3, 0, len(turn.tokens.response_ids))]
    assert turn.session_source == turn_pb2.SESSION_SOURCE_CLIENT
    assert (turn.declared_type, turn.session_done, turn.api) == ("main", False, "chat.completions")
    assert turn.response.content == "Hello there!"
    assert turn.finish_reason == turn_pb2.FINISH_REASON_STOP
    assert turn.sampling.temperature == 0.5 and turn.sampling.seed == 7 and turn.sampling.top_p == 1
    assert turn.HasField("first_token_at") and turn.client


async def test_a_stream_tells_the_same_as_the_whole(entrypoint: Entrypoint) -> None:
    text = "Grüße, 世界 👋🏽! the end"
    entrypoint.says(text)
    entrypoint.engine.cached = 5
    stream = await entrypoint.openai().chat.completions.create(
        model="stub", messages=ASK, stream=True, stream_options={"include_usage": True},
        extra_body={"session_id": "s2"})
    chunks = [chunk async for chunk in stream]
    assert all(chunk.session_id == "s2" for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert "".join(pieces) == text
    assert len(pieces) > 8
    assert not any("\ufffd" in piece for piece in pieces)
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(
        entrypoint.turns()[0].tokens.response_ids)
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert entrypoint.turns()[0].response.content == text


async def test_the_turn_is_recorded_before_the_client_has_the_last_chunk(entrypoint: Entrypoint) -> None:
    stream = await entrypoint.openai().chat.completions.create(model="stub", messages=ASK, stream=True)
    async for chunk in stream:
        if chunk.choices[0].finish_reason:
            assert len(entrypoint.turns()) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls(entrypoint: Entrypoint, stream: bool) -> None:
    entrypoint.says('Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>')
    request = {"model": "stub", "messages": ASK, "tools": [WEATHER]}
    client = entrypoint.openai()
    if stream:
        chunks = [c async for c in await client.chat.completions.create(**request, stream=True)]
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or []]
        reason = chunks[-1].choices[0].finish_reason
        assert [call.index for call in calls] == [0]
    else:
        choice = (await client.chat.completions.create(**request)).choices[0]
        text, calls, reason = choice.message.content, choice.message.tool_calls, choice.finish_reason
    assert text.strip() == "Let me look."
    assert [call.function.name for call in calls] == ["weather"]
    assert json.loads(calls[0].function.arguments) == {"city": "Köln"}
    assert calls[0].id and calls[0].type == "function"
    assert reason == "tool_calls"
    assert '"weather"' in entrypoint.prompt() and "<tools>" in entrypoint.prompt()
    turn, = entrypoint.turns()
    assert turn.response.tool_calls[0].name == "weather"
    assert turn.finish_reason == turn_pb2.FINISH_REASON_TOOL_CALLS
    assert turn.tools[0].name == "weather"


async def test_a_conversation_with_tool_results(entrypoint: Entrypoint) -> None:
    entrypoint.says("It rains.")
    await entrypoint.openai().chat.completions.create(model="stub", tools=[WEATHER], messages=[
        *ASK, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rom"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain, 12 degrees"}])
    prompt = entrypoint.prompt()
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>' in prompt
    assert "<|im_start|>user\n<tool_response>\nrain, 12 degrees\n</tool_response><|im_end|>" in prompt


@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_is_part_of_the_prompt(entrypoint: Entrypoint, stream: bool) -> None:
    entrypoint.says(' {"city": "Rom"}}\n</tool_call> and more that is never asked for')
    answer = await entrypoint.openai().chat.completions.create(
        model="stub", messages=ASK, tools=[WEATHER], stream=stream,
        tool_choice={"type": "function", "function": {"name": "weather"}})
    if stream:
        calls = [call async for c in answer for call in c.choices[0].delta.tool_calls or []]
    else:
        calls = answer.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"city": "Rom"}')]
    assert entrypoint.prompt().endswith('<tool_call>\n{"name": "weather", "arguments":')
    turn, = entrypoint.turns()
    assert list(turn.tokens.prompt_ids) == entrypoint.engine.prompts[0]
    sampled = b"".join(entrypoint.template.tokens.table[i] for i in turn.tokens.response_ids).decode()
    assert sampled.startswith(' {"city"') and "never" not in sampled


async def test_tool_choice_none_and_required(entrypoint: Entrypoint) -> None:
    client = entrypoint.openai()
    await client.chat.completions.create(model="stub", messages=ASK, tools=[WEATHER], tool_choice="none")
    assert "weather" not in entrypoint.prompt()
    entrypoint.says('clock", "arguments": {}}\n</tool_call>')
    clock = {"type": "function", "function": {"name": "clock"}}
    answer = await client.chat.completions.create(model="stub", messages=ASK, tools=[WEATHER, clock],
                                                  tool_choice="required")
    assert entrypoint.prompt().endswith('<tool_call>\n{"name": "')
    assert answer.choices[0].message.tool_calls[0].function.name == "clock"


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(entrypoint: Entrypoint, stream: bool) -> None:
    entrypoint.says("é the")
    answer = await entrypoint.openai().chat.completions.create(
        model="stub", messages=ASK, logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        content = [t async for c in answer if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    else:
        content = answer.choices[0].logprobs.content
    assert bytes(b for token in content for b in token.bytes).decode() == "é the"
    assert [token.token for token in content][-1] == " the"
    assert content[0].token == "\ufffd" and content[0].bytes == [0xC3]
    assert all(token.logprob == -0.25 and len(token.top_logprobs) == 2 for token in content)


async def test_stop_texts_across_tokens(entrypoint: Entrypoint) -> None:
    entrypoint.says("one two STOP three")
    client = entrypoint.openai()
    answer = await client.chat.completions.create(model="stub", messages=ASK, stop=["STOP", "never"])
    assert answer.choices[0].message.content == "one two "
    assert answer.choices[0].finish_reason == "stop"
    stream = await client.chat.completions.create(model="stub", messages=ASK, stop="STOP", stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "one two "
    assert len(entrypoint.turns()[0].tokens.response_ids) < len(entrypoint.template.encode("one two STOP three"))
    await eventually(lambda: entrypoint.engine.running == 0)


async def test_n_choices_are_turns_of_their_own(entrypoint: Entrypoint) -> None:
    client = entrypoint.openai()
    raw = await client.chat.completions.with_raw_response.create(
        model="stub", messages=ASK, n=3, seed=5, extra_headers={"X-Session-Done": "yes"})
    answer = raw.parse()
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    base = raw.headers["x-openclaw-turn-id"]
    turns = {turn.turn_id: turn for turn in entrypoint.turns()}
    assert set(turns) == {base, f"{base}-1", f"{base}-2"}
    assert [turns[f"{base}-2"].choice_index, turns[base].choice_index] == [2, 0]
    assert sum(turn.session_done for turn in turns.values()) == 1
    assert sorted(sampling.seed for sampling in entrypoint.engine.samplings) == [5, 6, 7]
    assert answer.usage.prompt_tokens == len(entrypoint.engine.prompts[0])
    assert answer.usage.completion_tokens == 3 * len(turns[base].tokens.response_ids)
    stream = await client.chat.completions.create(model="stub", messages=ASK, n=2, stream=True)
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "Hello there!", 1: "Hello there!"}


async def test_max_tokens_and_length(entrypoint: Entrypoint) -> None:
    answer = await entrypoint.openai().chat.completions.create(model="stub", messages=ASK, max_completion_tokens=3,
                                                         max_tokens=50)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3
    assert entrypoint.turns()[0].finish_reason == turn_pb2.FINISH_REASON_LENGTH


async def test_versions_within_a_response(entrypoint: Entrypoint) -> None:
    entrypoint.engine.swap_after = {4: 5}
    raw = await entrypoint.openai().chat.completions.with_raw_response.create(model="stub", messages=ASK)
    turn, = entrypoint.turns()
    assert [(s.version, s.begin, s.end) for s in turn.tokens.spans] == [
        (3, 0, 4), (5, 4, len(turn.tokens.response_ids))]
    assert turn.policy_version == 3 and raw.headers["x-openclaw-policy-version"] == "3"


async def test_sessions_are_inferred_and_never_shared(entrypoint: Entrypoint) -> None:
    client = entrypoint.openai()
    first = await client.chat.completions.create(model="stub", messages=ASK, user="ann")
    other = await client.chat.completions.create(model="stub", messages=[{"role": "user", "content": "Yo"}], user="bob")
    more = [*ASK, {"role": "assistant", "content": "Hello there!"}, {"role": "user", "content": "More"}]
    second = await client.chat.completions.create(model="stub", messages=more, user="ann")
    third = await client.chat.completions.create(model="stub", messages=more, user="bob")
    assert second.session_id == first.session_id
    assert len({first.session_id, other.session_id, third.session_id}) == 3
    assert [turn.session_source for turn in entrypoint.turns()] == [
        turn_pb2.SESSION_SOURCE_NEW, turn_pb2.SESSION_SOURCE_NEW, turn_pb2.SESSION_SOURCE_INFERRED,
        turn_pb2.SESSION_SOURCE_NEW]


async def test_a_client_that_goes_away_cancels_its_response(entrypoint: Entrypoint) -> None:
    import asyncio

    entrypoint.engine.gate = asyncio.Event()
    stream = await entrypoint.openai().chat.completions.create(model="stub", messages=ASK, stream=True)
    await anext(aiter(stream))
    assert entrypoint.engine.running == 1
    await stream.close()
    await eventually(lambda: entrypoint.engine.running == 0)
    await eventually(entrypoint.turns)
    turn, = entrypoint.turns()
    assert turn.finish_reason == turn_pb2.FINISH_REASON_CANCELLED
    assert turn.response.content == "H" and len(turn.tokens.response_ids) == 1
    with pytest.raises(openai.APITimeoutError):
        await entrypoint.openai().chat.completions.create(model="stub", messages=ASK, timeout=0.3)
    await eventually(lambda: entrypoint.engine.running == 0)
    await eventually(lambda: len(entrypoint.turns()) == 2)
    assert entrypoint.turns()[1].finish_reason == turn_pb2.FINISH_REASON_CANCELLED


async def test_an_error_within_a_stream_is_an_event(entrypoint: Entrypoint) -> None:
    entrypoint.engine.fail_after = 4
    stream = await entrypoint.openai().chat.completions.create(model="stub", messages=ASK, stream=True)
    text = ""
    with pytest.raises(openai.APIError, match="the accelerator is gone"):
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "Hell"
    assert entrypoint.turns()[0].finish_reason == turn_pb2.FINISH_REASON_ERROR
    with pytest.raises(openai.InternalServerError) as caught:
        await entrypoint.openai().chat.completions.create(model="stub", messages=ASK)
    assert caught.value.status_code == 503


async def test_completions(entrypoint: Entrypoint) -> None:
    entrypoint.says(" and the end")
    client = entrypoint.openai()
    answer = await client.completions.create(model="stub", prompt="Once", echo=True)
    assert answer.choices[0].text == "Once and the end" and answer.object == "text_completion"
    assert entrypoint.prompt() == "Once"
    answer = await client.completions.create(model="stub", prompt=["a", "b"], n=2, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 2
    assert "".join(answer.choices[0].logprobs.tokens) == " and the end"
    assert answer.choices[0].logprobs.text_offset[1] == len(answer.choices[0].logprobs.tokens[0])
    stream = await client.completions.create(model="stub", prompt=entrypoint.template.encode("Once"), stream=True)
    assert "".join([c.choices[0].text async for c in stream]) == " and the end"
    assert entrypoint.prompt() == "Once"
    assert {turn.api for turn in entrypoint.turns()} == {"completions"}


async def test_models_and_feedback(entrypoint: Entrypoint) -> None:
    client = entrypoint.openai()
    assert [model.id async for model in client.models.list()] == ["stub"]
    assert (await client.models.retrieve("default")).id == "stub"
    answer = await client.chat.completions.create(model="default", messages=ASK)
    async with entrypoint.http() as http:
        for body, score in (({"rating": "up"}, 1), ({"rating": "thumbs_down"}, -1), ({"score": 0.25}, 0.25)):
            reply = await http.post("/v1/feedback", json={"turn_id": answer.id, "comment": "so", **body})
            assert reply.status_code == 200
            feedback = entrypoint.events()[-1].feedback
            assert (feedback.feedback_id, feedback.score) == (reply.json()["feedback_id"], score)
            assert feedback.turn_id == entrypoint.turns()[0].turn_id
        reply = await http.post("/v1/feedback", json={"session_id": "s", "rating": "up", "score": -1})
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "contradiction")
        assert (await http.get("/healthz")).json() == {"ok": True}
        metrics = (await http.get("/metrics")).text
    assert 'openclaw_requests_total{api="chat.completions",status="200"} 1.0' in metrics
