"""Bad input: each gets OpenAI's error body, which names the field, the value and what is allowed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.serving.entrypoints.conftest import Entrypoint, OpenEntrypoint

ASK = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def called(arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


CALLED = called("{}")


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


BAD_CHAT: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, "messages", "Missing required parameter"),
    ({"messages": None}, "messages", "Missing required parameter"),
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": ASK * 10_001}, "messages", "maximum context length"),
    ({"messages": ASK, "tools": [TOOL] * 1001}, "tools", "at most 1000"),
    ({"messages": "hi"}, "messages", "an array, but got a string"),
    ({"messages": ["hi"]}, "messages[0]", "an object"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "Missing"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role", "'wizard'"),
    ({"messages": [{"role": 3, "content": "hi"}]}, "messages[0].role", "a string"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "Missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "got an integer"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0].type", "'audio'"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]},
     "messages[0].content", "sees no images"),
    ({"messages": [*ASK, {"role": "tool", "tool_call_id": "c1", "content": "x"}]}, "messages[1].role", "tool_calls"),
    ({"messages": [*ASK, CALLED, {"role": "tool", "tool_call_id": "c2", "content": "x"}]},
     "messages[2].tool_call_id", "'c2'"),
    ({"messages": [*ASK, CALLED, *ASK, {"role": "tool", "tool_call_id": "c1", "content": "x"}]},
     "messages[3].role", "tool"),
    ({"messages": [{**CALLED, "role": "user", "content": ""}]}, "messages[0].tool_calls", "assistant"),
    ({"messages": ASK, "temperature": "hot"}, "temperature", "'hot'"),
    ({"messages": ASK, "temperature": 2.5}, "temperature", "from 0 to 2"),
    ({"messages": ASK, "temperature": True}, "temperature", "a boolean"),
    ({"messages": ASK, "top_p": -0.1}, "top_p", "from 0 to 1"),
    ({"messages": ASK, "max_tokens": 0}, "max_tokens", "from 1"),
    ({"messages": ASK, "max_tokens": 1.5}, "max_tokens", "an integer"),
    ({"messages": ASK, "max_tokens": 10**30}, "max_tokens", "max_tokens"),
    ({"messages": ASK, "max_completion_tokens": -1}, "max_completion_tokens", "-1"),
    ({"messages": ASK, "n": 9}, "n", "from 1 to 8"),
    ({"messages": ASK, "n": "2"}, "n", "an integer"),
    ({"messages": ASK, "seed": 2**63}, "seed", "seed"),
    ({"messages": ASK, "stop": 5}, "stop", "a string or an array"),
    ({"messages": ASK, "stop": ["a", 5]}, "stop[1]", "a string"),
    ({"messages": [*ASK, called(nested(900))]}, "messages[1].tool_calls[0].function.arguments", "nested too deeply"),
    ({"messages": [*ASK, called([1])]}, "messages[1].tool_calls[0].function.arguments", "a string"),
    ({"messages": ASK, "stop": ["x"] * 17}, "stop", "at most 16"),
    ({"messages": ASK, "stream": "yes"}, "stream", "a boolean"),
    ({"messages": ASK, "stream_options": 1}, "stream_options", "an object"),
    ({"messages": ASK, "logprobs": 3}, "logprobs", "a boolean"),
    ({"messages": ASK, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"messages": ASK, "top_logprobs": 2}, "top_logprobs", "logprobs"),
    ({"messages": ASK, "tools": {}}, "tools", "an array"),
    ({"messages": ASK, "tools": [{"type": "function"}]}, "tools[0].function", "Missing"),
    ({"messages": ASK, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name",
     "'a b'"),
    ({"messages": ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
     "tools[0].function.parameters", "an object"),
    ({"messages": ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": nested(900)}}]},
     "tools[0].function.parameters", "nested too deeply"),
    ({"messages": ASK, "tools": [TOOL, TOOL]}, "tools[1].function.name", "unique"),
    ({"messages": ASK, "tool_choice": "required"}, "tool_choice", "no tools"),
    ({"messages": ASK, "tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "'maybe'"),
    ({"messages": ASK, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice", "'g'"),
    ({"messages": ASK, "response_format": {"type": "json_object"}}, "response_format", "can't be held"),
    ({"messages": ASK, "response_format": "json"}, "response_format", "an object"),
    ({"messages": ASK, "session_id": 5}, "session_id", "a string"),
    ({"messages": ASK, "session_id": "x" * 300}, "session_id", "256"),
    ({"messages": ASK, "session_id": "a\nb"}, "session_id", "printable"),
    ({"messages": ASK, "session_done": "perhaps"}, "session_done", "'perhaps'"),
    ({"messages": ASK, "session_done": {}}, "session_done", "a boolean"),
    ({"messages": ASK, "metadata": []}, "metadata", "an object"),
    ({"messages": ASK, "model": 5}, "model", "a string"),
]


async def test_bad_chat_requests(entrypoint: Entrypoint, subtests: pytest.Subtests) -> None:
    async with entrypoint.http() as http:
        for body, param, text in BAD_CHAT:
            with subtests.test(body=str(body)[:80]):
                reply = await http.post("/v1/chat/completions", content=json.dumps(body))
                error = reply.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert (reply.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
                assert text in error["message"]
        assert (await http.post("/v1/chat/completions", json={"messages": ASK})).status_code == 200
    assert len(entrypoint.turns()) == 1  # the good one


async def test_bodies_that_are_no_json_object(entrypoint: Entrypoint) -> None:
    async with entrypoint.http() as http:
        for body in (b"", b"{", b"[1]", b"nul", b'{"messages": "\xff\xfe"}', b'{"a": NaN}', b"[" * 100_000,
                     b'"' + b"x" * 1000):
            reply = await http.post("/v1/chat/completions", content=body)
            assert reply.status_code == 400 and reply.json()["error"]["message"], body[:40]


async def test_unknown_fields_are_ignored(entrypoint: Entrypoint) -> None:
    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": ASK, "wibble": 1, "user": "x", "stop": None,
                                                              "presence_penalty": 0, "tools": [], "model": None})
    assert reply.status_code == 200


BAD_COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": ""}, "prompt"), ({"prompt": [1, 999_999]}, "prompt[1]"), ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [[1, -7]]}, "prompt[0][1]"),
    ({"prompt": [2**70]}, None), ({"prompt": ["a"] * 9}, "prompt"), ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "logprobs": 6}, "logprobs"), ({"prompt": "a", "logprobs": True}, "logprobs")]
BAD_FEEDBACK: list[tuple[dict[str, Any], str | None]] = [
    ({}, "turn_id"), ({"turn_id": "t"}, "rating"), ({"turn_id": "t", "rating": "meh"}, "rating"),
    ({"turn_id": "t", "rating": []}, "rating"), ({"turn_id": "t", "score": 5}, "score"),
    ({"turn_id": 5, "score": 1}, "turn_id"), ({"session_id": "s", "comment": 5}, "comment")]


@pytest.mark.parametrize(("path", "table"), [("/v1/completions", BAD_COMPLETIONS), ("/v1/feedback", BAD_FEEDBACK)])
async def test_bad_requests_of_other_routes(
        entrypoint: Entrypoint, path: str, table: list[tuple[dict[str, Any], str | None]]) -> None:
    async with entrypoint.http() as http:
        for body, param in table:
            reply = await http.post(path, content=json.dumps(body))
            assert reply.status_code == 400, body
            assert param is None or reply.json()["error"]["param"] == param, body
    assert entrypoint.events() == []


async def test_the_sdk_raises_what_its_users_expect(entrypoint: Entrypoint) -> None:
    client = entrypoint.openai()
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-9", messages=ASK)
    assert missing.value.code == "model_not_found" and "gpt-9" in missing.value.message
    with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
        await client.embeddings.create(model="stub", input="x")
    with pytest.raises(openai.BadRequestError) as long:
        await client.chat.completions.create(model="stub", messages=[{"role": "user", "content": "x" * 5000}])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    assert "2048" in long.value.message
    entrypoint.engine.busy = True
    with pytest.raises(openai.RateLimitError) as busy:
        await client.chat.completions.create(model="stub", messages=ASK, stream=True)
    assert busy.value.response.headers["retry-after"] == "3"
    assert entrypoint.turns() == []
    async with entrypoint.http() as http:
        reply = await http.get("/v1/chat/completions")
        assert reply.status_code == 405 and reply.json()["error"]["message"]


VERSIONS = ("X-OpenClaw-Min-Version", "X-OpenClaw-Exact-Version")


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("value", ["newest", "-1", "1.5", "0x3", "1_000", "3, 4", str(2**63), "9" * 5000])
async def test_a_version_that_is_no_integer(entrypoint: Entrypoint, name: str, value: str) -> None:
    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": ASK}, headers={name: value})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, name, "invalid_value")
    assert name in error["message"] and "an integer from 0" in error["message"] and not entrypoint.turns()


@pytest.mark.parametrize("headers", [{VERSIONS[0]: "4"}, {VERSIONS[1]: "2"}, {VERSIONS[0]: "3", VERSIONS[1]: "4"}])
@pytest.mark.parametrize(("path", "ask"), [("chat/completions", {"messages": ASK}), ("completions", {"prompt": "Hi"})])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_version_that_is_not_active(entrypoint: Entrypoint, headers: dict[str, str], path: str,
                                            ask: dict[str, Any], stream: bool) -> None:
    async with entrypoint.http() as http:
        reply = await http.post(f"/v1/{path}", json={**ask, "stream": stream}, headers=headers)
    error = reply.json()["error"]
    assert (reply.status_code, reply.headers["retry-after"], error["code"]) == (409, "1", "version_not_active")
    assert "version 3 is active" in error["message"] and not entrypoint.turns() and not entrypoint.engine.prompts


@pytest.mark.parametrize("headers", [{VERSIONS[0]: "2"}, {VERSIONS[0]: "3"}, {VERSIONS[1]: "3"},
                                     {VERSIONS[0]: "", VERSIONS[1]: ""}, {VERSIONS[0]: "0", VERSIONS[1]: "3"}])
async def test_a_version_that_answers(entrypoint: Entrypoint, headers: dict[str, str]) -> None:
    async with entrypoint.http() as http:
        for path, ask in (("chat/completions", {"messages": ASK}), ("completions", {"prompt": ["Hi", "Ho"]})):
            reply = await http.post(f"/v1/{path}", json=ask, headers=headers)
            assert (reply.status_code, reply.headers["x-openclaw-policy-version"]) == (200, "3")
    assert len(entrypoint.turns()) == 3


async def test_keys(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(api_keys=("sekrit", "other"))
    async with entrypoint.http() as http:
        for headers, text in (({}, "missing bearer token"), ({"Authorization": ""}, "missing bearer token"),
                              ({"Authorization": "Basic abc"}, "missing bearer token"),
                              ({"Authorization": "Bearer"}, "missing bearer token"),
                              ({"Authorization": "Bearer wrong"}, "invalid api key"),
                              ({"Authorization": "Bearer schlüssel".encode()}, "invalid api key")):
            reply = await http.post("/v1/chat/completions", json={"messages": ASK}, headers=headers)
            assert (reply.status_code, reply.json()["error"]["message"]) == (401, text)
        assert (await http.get("/healthz")).status_code == 200
    with pytest.raises(openai.AuthenticationError, match="invalid api key"):
        await entrypoint.openai("wrong").chat.completions.create(model="stub", messages=ASK)
    assert await entrypoint.openai("other").chat.completions.create(model="stub", messages=ASK)


async def test_a_body_that_is_too_large(entrypoint: Entrypoint) -> None:
    async def chunks() -> Any:
        for _ in range(30):
            yield b"x" * 50_000

    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", content=b"x" * (2**20 + 1))
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
        reply = await http.post("/v1/chat/completions", content=chunks())
        assert reply.status_code == 413


async def test_metrics_name_apis_not_what_clients_write(entrypoint: Entrypoint) -> None:
    async with entrypoint.http() as http:
        for path in ("/v1/models/nope", "/v1/models/%ff%00x"):
            assert (await http.get(path)).status_code == 404
        await http.post("/v1/chat/completions", json={"messages": ASK, "n": 99})
        metrics = (await http.get("/metrics")).text
    labels = [line for line in metrics.splitlines() if line.startswith("openclaw_requests_total")]
    assert labels == ['openclaw_requests_total{api="models",status="404"} 2.0',
                      'openclaw_requests_total{api="chat.completions",status="400"} 1.0']


async def test_a_fault_of_ours_is_openais_error_too(entrypoint: Entrypoint, monkeypatch: pytest.MonkeyPatch,
                                                   caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(entrypoint.service, "open", broken)
    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": ASK})
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
    incident = reply.json()["error"]["message"].rpartition(" ")[2]
    assert incident in caplog.text and "boom" in caplog.text


async def test_starting(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(ready=False)
    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": ASK})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
        assert "getting ready" in reply.json()["error"]["message"]
        reply = await http.get("/healthz")
        assert reply.status_code == 503 and reply.json()["ok"] is False


@pytest.mark.parametrize(("headers", "body", "session", "kind", "done"), [
    ({"X-Session-Id": "h", "X-Turn-Type": "side", "X-Session-Done": "On"}, {}, "h", "side", True),
    ({"X-Session-Id": "", "X-Turn-Type": "", "X-Session-Done": ""}, {"session_id": "b", "turn_type": "main"}, "b",
     "main", False),
    ({"X-Session-Id": "h"}, {"session_id": "b", "session_done": True}, "h", "", True),
    ({"X-Session-Id": b"J\xfcrgen"}, {}, "Jürgen", "", False),
    ({"X-Session-Id": "Jürgen".encode()}, {"session_done": "no"}, "Jürgen", "", False),
    ({"X-Session-Done": "0"}, {"session_id": "b", "session_done": 1}, "b", "", True)])
async def test_what_agents_say_of_a_turn(entrypoint: Entrypoint, headers: dict[str, Any], body: dict[str, Any],
                                         session: str, kind: str, done: bool) -> None:
    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": ASK, **body}, headers=headers)
    assert reply.json()["session_id"] == session
    turn, = entrypoint.turns()
    assert (turn.session_id, turn.declared_type, turn.session_done) == (session, kind, done)


@pytest.mark.parametrize(("value", "background"), [("1", True), ("true", True), ("0", False), ("", False)])
async def test_a_request_of_the_background(entrypoint: Entrypoint, value: str, background: bool) -> None:
    async with entrypoint.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": ASK},
                                headers={"X-OpenClaw-Background": value})
    assert reply.status_code == 200
    assert entrypoint.engine.samplings[-1].background is background
