"""Requests that real clients send although the reference has no place for them: taken, and what they mean is done."""

from __future__ import annotations

from typing import Any

from openclaw_rl.v1 import turn_pb2
from tests.serving.entrypoints.conftest import Entrypoint

ASK = [{"role": "user", "content": "Hi"}]


async def recorded(entrypoint: Entrypoint, **body: Any) -> turn_pb2.Turn:
    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": ASK, **body})
    assert reply.status_code == 200, reply.text
    turn: turn_pb2.Turn = entrypoint.turns()[-1]
    return turn


async def test_more_tokens_than_the_context_has_are_a_bound_not_a_demand(entrypoint: Entrypoint) -> None:
    context = entrypoint.engine.info.context_length
    for field, value in (("max_completion_tokens", 178_220), ("max_tokens", 2**40)):
        assert (await recorded(entrypoint, **{field: value})).sampling.max_tokens == context
    assert (await recorded(entrypoint, max_tokens=context - 1)).sampling.max_tokens == context - 1


async def test_top_p_of_zero_is_greedy(entrypoint: Entrypoint) -> None:
    sampling = (await recorded(entrypoint, top_p=0, temperature=0.9)).sampling
    assert (sampling.temperature, sampling.top_p) == (0, 1)


async def test_an_empty_stop_text_is_none(entrypoint: Entrypoint) -> None:
    assert not (await recorded(entrypoint, stop="")).sampling.stop
    assert list((await recorded(entrypoint, stop=["", "END"])).sampling.stop) == ["END"]


async def test_calls_with_arguments_as_an_object_and_tools_that_say_nothing(entrypoint: Entrypoint) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "the sky"}}}
    turn = await recorded(entrypoint, messages=[
        *ASK, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": None}])
    answered = turn.messages[-2:]
    assert answered[0].tool_calls[0].arguments_json == '{"at":"the sky"}'
    assert answered[1].role == "tool" and answered[1].content == ""


async def test_an_unknown_path_says_which_is_meant(entrypoint: Entrypoint) -> None:
    meant = {"/chat/completions": "There is POST /v1/chat/completions (a client's base URL ends with /v1).",
             "/v1/v1/chat/completions": "There is POST /v1/chat/completions (a client's base URL ends with /v1).",
             "/v1/model": "There is GET /v1/models (a client's base URL ends with /v1).",
             "/healthy": "There is GET /health.",
             "/v1/embeddings/x": "There is /v1/chat/completions, /v1/completions,"}
    async with entrypoint.http() as http:
        for path, words in meant.items():
            reply = await http.post(path, json={})
            assert reply.status_code == 404 and words in reply.json()["error"]["message"], reply.text
        assert (await http.get("/health")).json() == {"ok": True}
