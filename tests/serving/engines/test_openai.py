"""An API as the policy: the HTTP entrypoint over a stub engine plays the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import Config, ConfigError, PolicyServerConfig
from openclaw_rl.models.api_endpoints import (
    GLM_BASE_URL,
    ApiModel,
    check_credentials,
    policy_api,
    resolve_api,
    uses_api,
)
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.engines.openai.engine import UpstreamPolicy
from openclaw_rl.serving.entrypoints.openai.http import HttpServer
from openclaw_rl.serving.interfaces import ChatCall, Delta, End, Event, Start
from openclaw_rl.serving.token_policy import Transcript
from openclaw_rl.v1 import turn_pb2
from tests.support.waiting import eventually

ASK = [turn_pb2.ChatMessage(role="user", content="Hi")]


class Api:
    """An OpenAI-compatible API that answers with the given chunks, or with an error; `refuses` some fields with 400."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.authorization = ""
        self.chunks: list[dict[str, Any]] = []
        self.status, self.body, self.headers = 200, b"", {}
        self.url = ""
        self.refuses: dict[str, str] = {}  #: field -> what is said of it

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.requests.append(json.loads(body))
        for field in self.refuses.keys() & self.requests[-1].keys():
            await send({"type": "http.response.start", "status": 400, "headers": [
                (b"content-type", b"application/json")]})
            await send({"type": "http.response.body", "body": json.dumps(
                {"error": {"message": self.refuses[field], "type": "invalid_request_error"}}).encode()})
            return
        self.authorization = dict(scope["headers"])[b"authorization"].decode()
        kind = b"text/event-stream" if self.status == 200 else b"application/json"
        await send({"type": "http.response.start", "status": self.status, "headers": [
            (b"content-type", kind), *((k.encode(), v.encode()) for k, v in self.headers.items())]})
        if self.status == 200:
            for chunk in self.chunks:
                await send({"type": "http.response.body", "body": b"data: " + json.dumps(chunk).encode() + b"\n\n",
                            "more_body": True})
            self.body = b"data: [DONE]\n\n"
        await send({"type": "http.response.body", "body": self.body})


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    http = HttpServer("127.0.0.1", 0)
    http.start(api)
    api.url = f"{http.address}/v1"
    yield api
    await http.stop()


async def ask(api: Api, **kwargs: Any) -> tuple[list[Event], Transcript]:
    policy = UpstreamPolicy(ApiModel("glm-4-flash", api.url, "sekrit"), retry_seconds=0.1)
    transcript = Transcript()
    call = ChatCall(messages=ASK, **kwargs)
    call.sampling = policy.fill(call.sampling)
    try:
        return [event async for event in policy.chat(call, transcript)], transcript
    finally:
        await policy.stop()


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "glm-4-flash",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


async def test_text_and_usage(api: Api) -> None:
    api.chunks = [chunk({"role": "assistant", "content": ""}), chunk({"content": "Hel"}), chunk({"content": "lo"}),
                  chunk({}, "length"), {**chunk({}), "choices": [], "usage": {
                      "prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11,
                      "prompt_tokens_details": {"cached_tokens": 4}}}]
    events, transcript = await ask(api, sampling=turn_pb2.SamplingParams(temperature=0.5, max_tokens=7, stop=["x"]),
                                   extra={"thinking": {"type": "disabled"}, "n": 3})
    end = events[-1]
    assert isinstance(events[0], Start) and isinstance(end, End)
    assert end.message.content == "Hello" and end.finish_reason == turn_pb2.FINISH_REASON_LENGTH
    assert (end.prompt_tokens, end.completion_tokens, end.record, end.cached_tokens) == (9, 2, None, 4)
    assert transcript.first_token_at is not None and transcript.record() is None
    sent, = api.requests
    assert api.authorization == "Bearer sekrit"
    assert (sent["model"], sent["temperature"], sent["max_tokens"], sent["stop"]) == ("glm-4-flash", 0.5, 7, ["x"])
    assert sent["thinking"] == {"type": "disabled"} and "n" not in sent
    assert sent["messages"] == [{"role": "user", "content": "Hi"}]
    assert "top_p" not in sent and "seed" not in sent


async def test_no_picture_is_fetched_from_within(api: Api) -> None:
    api.chunks = [chunk({"content": "A heron."}), chunk({}, "stop")]

    async def look(url: str, hosts: list[str]) -> list[Event]:
        policy = UpstreamPolicy(ApiModel("glm-4-flash", api.url, "sekrit"), image_hosts=hosts)
        call = ChatCall(messages=[turn_pb2.ChatMessage(role="user", parts=[turn_pb2.ContentPart(image_url=url)])])
        try:
            return [event async for event in policy.chat(call, Transcript())]
        finally:
            await policy.stop()

    with pytest.raises(MeshError) as caught:
        await look("http://169.254.169.254/latest/meta-data", [])
    assert caught.value.violations[0][0] == "messages[0].content[0].image_url" and api.requests == []
    await look("http://169.254.169.254/latest/meta-data", ["169.254.169.254"])
    await look("data:image/png;base64,AA==", [])
    assert len(api.requests) == 2


async def test_half_an_answer_is_none(api: Api) -> None:
    api.chunks = [chunk({"content": "Hel"})]
    with pytest.raises(MeshError, match="response broke off"):
        await ask(api)


async def test_reasoning_is_passed_on(api: Api) -> None:
    api.chunks = [chunk({"reasoning_content": "Hm."}), chunk({"content": "Hello"}), chunk({}, "stop")]
    events, _ = await ask(api)
    assert [event.reasoning for event in events if isinstance(event, Delta)] == ["Hm.", ""]
    assert isinstance(events[-1], End) and events[-1].message.reasoning_content == "Hm."


async def test_halves_of_surrogate_pairs(api: Api) -> None:
    token = {"token": "\ud83d", "bytes": None, "logprob": -1.0, "top_logprobs": []}
    api.chunks = [
        chunk({"content": "a\ud83d", "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {
            "name": "f", "arguments": '{"a": "\ud83d'}}]}), chunk({"reasoning_content": "\udc00b"}),
        chunk({"content": "\ude00c\ud800", "tool_calls": [{"index": 0, "function": {"arguments": '\ude00\ud800"}'}}]}),
        chunk({}, "stop")]
    api.chunks[0]["choices"][0]["logprobs"] = {"content": [token]}
    events, _ = await ask(api)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert [event.text for event in deltas] == ["a", "", "\U0001f600c", "\ufffd", ""]
    assert deltas[0].logprobs[0]["token"] == "\ufffd"
    message = events[-1].message  # type: ignore[union-attr]
    assert (message.content, message.reasoning_content, message.tool_calls[0].arguments_json) == (
        "a\U0001f600c\ufffd", "\ufffdb", '{"a": "\U0001f600\ufffd"}')


async def test_a_stream_without_anything_is_no_answer(api: Api) -> None:
    with pytest.raises(MeshError, match="no chat completion") as caught:
        await ask(api)
    assert caught.value.code.name == "UNAVAILABLE"


async def test_tool_calls(api: Api) -> None:
    def piece(index: int, **fields: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, **fields}]})

    api.chunks = [piece(0, id="c1", type="function", function={"name": "f", "arguments": ""}),
                  piece(0, function={"arguments": '{"a"'}), piece(0, function={"arguments": ": 1}"}),
                  piece(1, id="c2", type="function", function={"name": "g", "arguments": "{}"}),
                  chunk({}, "tool_calls")]
    events, _ = await ask(api, tools=[turn_pb2.ToolDefinition(name="f")], tool_choice="f")
    end = events[-1]
    assert isinstance(end, End) and end.finish_reason == turn_pb2.FINISH_REASON_TOOL_CALLS
    assert [(call.id, call.name, call.arguments_json) for call in end.message.tool_calls] == [
        ("c1", "f", '{"a": 1}'), ("c2", "g", "{}")]
    assert api.requests[0]["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def called(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    """Chunks with a piece of a call each, and an end."""
    return [*(chunk({"role": None, "content": None, "tool_calls": [piece]}) for piece in pieces),
            chunk({}, "tool_calls")]


def call(name: str | None, arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **fields}


LOOKS = [("look", {"x": 1}), ("look", {"x": 2})]


@pytest.mark.parametrize(("pieces", "calls"), [
    ([call("look", '{"x": 1}', id="a"), call("look", '{"x": 2}', id="b")], LOOKS),
    ([call("look", '{"x": 1}', id="a", index=0), call("look", '{"x": 2}', id="b", index=0)], LOOKS),
    ([call("look", '{"x": 1}', index=0), call("look", '{"x": 2}', index=0)], LOOKS),
    ([call("look", {"x": 1}, id="a"), call("look", {"x": 2}, id="b")], LOOKS),
    ([call("look", '{"x"', id="a", index=0), call("look", ": 1}", id="a", index=0)], LOOKS[:1]),
    ([call("look", "", id="a"), call(None, '{"x": '), call(None, "1}")], LOOKS[:1]),
    ([call("look", '{"x": ', id="a", index=0), call("", "1}", id="", index=0)], LOOKS[:1]),
    ([call("look", '{"x": 1}', id="a", index=1), call("look", '{"x": 2}', id="b", index=2)], LOOKS),
    ([call("lo", "", id="a", index=0), call("ok", '{"x": 1}', index=0)], LOOKS[:1])])
async def test_calls_of_other_makers(api: Api, pieces: list[dict[str, Any]], calls: list[Any]) -> None:
    api.chunks = called(*pieces)
    events, _ = await ask(api, tools=[turn_pb2.ToolDefinition(name="look")])
    found = events[-1].message.tool_calls  # type: ignore[union-attr]
    assert [(made.name, json.loads(made.arguments_json)) for made in found] == calls


async def test_streams_of_other_makers(api: Api) -> None:
    end = chunk({}, "stop")
    end["choices"][0]["delta"] = None
    used = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}
    for chunks in ([chunk({"content": [{"type": "text", "text": "Hello"}]}), end],
                   [{**chunk({}), "choices": None}, chunk({"role": None, "content": "Hel"}), chunk({"content": None}),
                    chunk({"content": "lo"}), chunk({}, "stop"), used],
                   [chunk({"content": "Hello"}), used],  # without a reason, but whole
                   [chunk({"reasoning": "Hm."}), chunk({"content": "Hello"}), chunk({}, "stop")]):
        api.chunks = chunks
        events, _ = await ask(api)
        assert isinstance(events[-1], End) and events[-1].message.content == "Hello"
        assert events[-1].finish_reason == turn_pb2.FINISH_REASON_STOP
    assert events[-1].message.reasoning_content == "Hm."


async def test_a_field_goes_on_under_the_clients_name(api: Api) -> None:
    api.chunks = [chunk({"content": "Hello"}), chunk({}, "stop")]
    most = turn_pb2.SamplingParams(max_tokens=7)
    await ask(api, sampling=most, extra={"max_completion_tokens": 7, "top_k": 5, "logit_bias": {"5": 1}})
    sent = api.requests[-1]
    assert (sent["max_completion_tokens"], sent["top_k"], sent["logit_bias"]) == (7, 5, {"5": 1})
    assert "max_tokens" not in sent


async def test_what_a_model_refuses_is_learned_once_and_told(api: Api) -> None:
    api.chunks = [chunk({"content": "Hello"}), chunk({}, "stop")]
    api.refuses = {"max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                                 "'max_completion_tokens' instead.", "stream_options": "unknown field stream_options",
                   "temperature": "Unsupported value: 'temperature' does not support 0.5 with this model."}
    policy = UpstreamPolicy(ApiModel("glm-4-flash", api.url, "sekrit"), retry_seconds=0.1)

    async def say(**sampling: Any) -> Event:
        call = ChatCall(messages=ASK, sampling=turn_pb2.SamplingParams(**sampling))
        return [event async for event in policy.chat(call, Transcript())][-1]

    probing = asyncio.create_task(policy.monitor())  # as at the start
    try:
        await eventually(lambda: len(policy.status().notes) == 2 and len(api.requests) == 3)  # the third is taken
        assert policy.problem == ""
        assert set(policy.status().notes) == {"glm-4-flash takes max_completion_tokens in place of max_tokens",
                                              "glm-4-flash takes no stream_options"}
        before = len(api.requests)
        assert isinstance(await say(max_tokens=9), End)
        assert len(api.requests) == before + 1 and api.requests[-1]["max_completion_tokens"] == 9
        with pytest.raises(MeshError, match="temperature"):  # the client's own wish: it is told
            await say(temperature=0.5)
    finally:
        probing.cancel()
        await policy.stop()


@pytest.mark.parametrize(("status", "code", "http_status"), [
    (400, "INVALID_ARGUMENT", "400"), (404, "INVALID_ARGUMENT", "404"), (422, "INVALID_ARGUMENT", "422"),
    (401, "INTERNAL", "502"), (429, "RESOURCE_EXHAUSTED", None), (500, "UNAVAILABLE", None)])
async def test_errors_of_the_api(api: Api, status: int, code: str, http_status: str | None) -> None:
    api.status, api.body = status, b'{"error": {"message": "no such thing", "param": "p"}}'
    api.headers = {"retry-after": "7"} if status == 429 else {}
    with pytest.raises(MeshError) as caught:
        await ask(api)
    assert (caught.value.code.name, caught.value.metadata.get("http_status")) == (code, http_status)
    assert "sekrit" not in str(caught.value)
    assert status != 429 or caught.value.retry_after == 7


async def test_an_api_that_is_not_there(api: Api) -> None:
    api.url = "http://127.0.0.1:9/v1"
    async with asyncio.timeout(10):
        with pytest.raises(MeshError) as caught:
            await ask(api)
    assert caught.value.retryable and "can't be reached" in caught.value.message
    with pytest.raises(MeshError) as caught:
        await ask(api, prompt_ids=[1])
    assert caught.value.reason == "NO_WEIGHTS"


def test_where_the_api_is_and_its_key() -> None:
    environ = {"OPENAI_API_KEY": "a", "ZHIPUAI_API_KEY": "z", "MY_KEY": "m"}
    found = resolve_api("glm-4-flash", None, None, environ)
    assert (found.base_url, found.api_key) == (GLM_BASE_URL, "z")
    assert "api_key" not in repr(found)
    found = resolve_api("glm-4-flash", None, None, {"OPENAI_API_KEY": "a", "OPENAI_BASE_URL": "http://x/v1"})
    assert (found.base_url, found.api_key) == ("http://x/v1", "a")
    found = resolve_api("gpt-5", "http://y", "MY_KEY", environ)
    assert (found.base_url, found.api_key) == ("http://y", "m")
    assert resolve_api("gpt-5", None, None, environ).base_url == "https://api.openai.com/v1"
    with pytest.raises(ConfigError, match="http"):
        resolve_api("gpt-5", "y", None, environ)


def test_without_a_key_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ZHIPUAI_API_KEY or OPENAI_API_KEY.*smollm2-135m-instruct"):
        policy_api(PolicyServerConfig(model="glm-4-flash"), {"OPENAI_API_KEY": ""})
    config = Config.model_validate({"components": {"policy_server": {"model": "glm-4-flash"},
                                                   "prm_judge": {"model": "glm-4-flash"}}})
    with pytest.raises(ConfigError) as caught:
        check_credentials(config, {})
    assert len(str(caught.value).splitlines()) == 2
    check_credentials(config, {"OPENAI_API_KEY": "k"})
    check_credentials(Config(), {})
    assert [uses_api(PolicyServerConfig(model=model)) for model in
            ("glm-4-flash", "smollm2-135m-instruct", str(tmp_path), "./nothing/here")] == [True, False, False, False]
    assert uses_api(PolicyServerConfig(engine="openai"))
