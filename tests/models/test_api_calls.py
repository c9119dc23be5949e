"""Calls of APIs: what is tried again and for how long, budgets, canaries, and keys that stay secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import openai
import pytest

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.models import api_calls
from openclaw_rl.models.api_calls import Budget, Names, client, probe, retry_after
from openclaw_rl.models.api_endpoints import ApiModel
from openclaw_rl.observability.journal import Journal
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.interface import VoteError
from openclaw_rl.reward.judges.llm import LlmJudge
from openclaw_rl.reward.panel import Panel
from openclaw_rl.reward.queue import SCHEMA, JudgeQueue
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.engines.openai.engine import UpstreamPolicy
from openclaw_rl.serving.interfaces import ChatCall
from openclaw_rl.serving.token_policy import Transcript
from openclaw_rl.training.backends.playbook.writer import Writer, WriterError
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.playbook_pb2 import Playbook
from tests.reward.factory import transition
from tests.reward.fake_api import FakeApi, error, serve
from tests.serving.engines.test_openai import Api, chunk
from tests.serving.engines.test_openai import api as stream_api
from tests.support.canary import canary, redirecting
from tests.support.waiting import eventually

KEY = "sk-marker-of-the-calls"
NAMES = Names.of("components.policy_server", "glm-4-flash", None)
ASK = [turn_pb2.ChatMessage(role="user", content="Hi")]

__all__ = ["stream_api"]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serve() as found:
        yield found


def failed(status: int, **headers: str) -> openai.APIStatusError:
    response = httpx.Response(status, headers=headers, request=httpx.Request("POST", "http://x"))
    return openai.APIStatusError("no", response=response, body=None)


@pytest.mark.parametrize(("said", "seconds"), [
    ("7", 7), ("0.5", 0.5), ("-3", 0), ("soon", None), ("", None), ("nan", None), ("inf", None),
    (900, 900), (-900, 0)])
def test_how_long_a_server_asks_to_wait(said: str | int, seconds: float | None) -> None:
    if isinstance(said, int):  # as a date
        said = format_datetime(datetime.now(UTC) + timedelta(seconds=said), usegmt=True)
    found = retry_after(failed(429, **{"Retry-After": said}))
    assert (found is None) if seconds is None else found == pytest.approx(seconds, abs=60)
    assert retry_after(ValueError()) is None


async def test_a_wait_beyond_the_deadline_is_not_begun(api: FakeApi) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=3600), usegmt=True)
    api.answer = lambda _: error(429, "slow down", headers={"Retry-After": soon})
    connection = client(ApiModel("m", api.url, KEY), 5)

    async def ask() -> Any:
        return await connection.chat.completions.create(model="m", messages=[])

    async with asyncio.timeout(5):
        with pytest.raises(openai.RateLimitError):
            await api_calls.call(ask, 30)
    assert len(api.requests) == 1
    await connection.close()


@pytest.mark.parametrize(("reply", "words"), [
    (error(401, f"Incorrect API key provided: {KEY}"), "refuses the key in ZHIPUAI_API_KEY or OPENAI_API_KEY"),
    (error(404, "The model `x` does not exist", "model_not_found"), "check components.policy_server.model"),
    (error(400, "model does not exist", "1211"), "check components.policy_server.model"),
    (error(404, "Not Found"), "check components.policy_server.base_url"), ("fine", "")])
async def test_a_probe_names_key_model_and_url_apart(api: FakeApi, reply: Any, words: str) -> None:
    api.answer = lambda _: reply
    model = ApiModel("glm-4-flash", api.url, KEY)
    async with client(model, 5) as connection:
        problem = await probe(connection, model, NAMES, 5)
    assert words in problem and bool(words) == bool(problem) and KEY not in problem


async def test_a_web_page_is_no_answer(api: FakeApi) -> None:
    api.answer = lambda _: (200, b"<html><body>Welcome!</body></html>", {"Content-Type": "text/html"})
    model, words = ApiModel("glm-4-flash", api.url, KEY), "no chat completion; check base_url"
    async with client(model, 5) as connection:
        assert words in await probe(connection, model, NAMES, 5)
    with pytest.raises(WriterError, match=words):
        await Writer(model, NAMES, Budget(None)).write(Playbook(), [], 400, 20)
    with pytest.raises(VoteError, match=words) as vote:
        await LlmJudge(model, 5, None, NAMES).vote(transition())
    assert vote.value.outage
    policy = UpstreamPolicy(model, retry_seconds=0.1)
    with pytest.raises(MeshError, match=words) as caught:
        _ = [event async for event in policy.chat(ChatCall(messages=ASK), Transcript())]
    assert caught.value.code.name == "UNAVAILABLE"
    await policy.stop()


async def test_a_server_that_asks_for_no_wait_is_not_asked_all_the_time(api: FakeApi) -> None:
    api.answer = lambda _: error(429, "slow down", headers={"Retry-After": "0"})
    async with client(ApiModel("m", api.url, KEY), 5) as connection:
        with pytest.raises(openai.RateLimitError):
            await api_calls.call(lambda: connection.chat.completions.create(model="m", messages=[]), 1)
    assert len(api.requests) == 2


async def test_a_probe_of_nobody() -> None:
    model = ApiModel("glm-4-flash", "http://127.0.0.1:9/v1", KEY)
    async with client(model, 5) as connection:
        problem = await probe(connection, model, NAMES, 1)
    assert "can't be reached" in problem and "components.policy_server.base_url" in problem


@pytest.fixture(params=["http_proxy", "all_proxy"])
def proxied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A proxy that nobody runs, named by the environment."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    proxy = "http://me:secret@127.0.0.1:9" if request.param == "http_proxy" else "socks5://me:secret@127.0.0.1:9"
    monkeypatch.setenv(request.param, proxy)
    return proxy


async def test_what_is_on_this_machine_goes_through_no_proxy(api: FakeApi, proxied: str) -> None:
    model = ApiModel("glm-4-flash", api.url, KEY)
    async with client(model, 5) as connection:
        assert await probe(connection, model, NAMES, 5) == ""


async def test_an_error_names_the_proxy_that_it_went_through(proxied: str) -> None:
    model = ApiModel("glm-4-flash", "http://api.example/v1", KEY)
    async with client(model, 5) as connection:
        problem = await probe(connection, model, NAMES, 1)
    assert f"can't be reached through the proxy {proxied.replace('me:secret', '***')} that" in problem


async def test_a_proxy_that_can_not_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "spared.example")
    with pytest.raises(ConfigError, match=r"through the proxy gopher://127\.0\.0\.1:9 .*NO_PROXY"):
        client(ApiModel("glm-4-flash", "http://api.example/v1", KEY), 5)
    async with client(ApiModel("glm-4-flash", "http://spared.example/v1", KEY), 5):
        pass


async def test_a_probe_of_a_model_without_max_tokens(api: FakeApi) -> None:
    api.answer = lambda body: error(400, "Unsupported parameter: 'max_tokens'") if "max_tokens" in body else "yes"
    model = ApiModel("glm-4-flash", api.url, KEY)
    async with client(model, 5) as connection:
        assert await probe(connection, model, NAMES, 5) == "" and len(api.requests) == 2


async def test_a_budget_holds_in_any_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = 100.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(api_calls.asyncio, "sleep", sleep)
    budget = Budget(3, lambda: now)
    for _ in range(10):
        await budget.take()
        made.append(now)
        now += 1.0
    assert all(later - earlier >= 60 for earlier, later in zip(made, made[3:], strict=False))
    assert made[3] == 160.0
    free = Budget(None)
    await free.take()
    assert free.wait == 0


async def test_turns_wait_for_the_judges_budget(api: FakeApi, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw_rl.config import JournalConfig
    from openclaw_rl.storage.database import Database
    from openclaw_rl.storage.outbox import Outbox

    monkeypatch.setattr(api_calls, "_MINUTE", 1.5)
    judge = LlmJudge.of(PrmJudgeConfig(model="m1", base_url=api.url, vote_timeout=1, requests_per_minute=2),
                        {"OPENAI_API_KEY": KEY})
    store = Database(tmp_path / "state.db", "group", SCHEMA)
    journal = Journal(tmp_path, JournalConfig(enabled=False))
    service = JudgeService(Panel(judge, 1, 1.0), JudgeQueue(store, Outbox(store, "samples")), Broadcast(), journal, 4)
    service.start()
    try:
        await service.accept([transition("thanks", turn_id=f"t{i}") for i in range(4)])
        seen = False

        def judged() -> bool:
            nonlocal seen
            seen = seen or "budget of 2 requests a minute" in service.status().detail
            return service.queue.counters["judgements"] == 4

        await eventually(judged, 20)
        assert service.queue.counters["judgements_failed"] == 0, "waiting is no part of a vote's time"
        assert seen and len(api.requests) == 5  # with the probe's
        assert service.status().gauges["budget_waiting"] == 0
    finally:
        await service.stop()
        journal.close()
        store.close()


async def ask(url: str, **fields: Any) -> list[Any]:
    policy = UpstreamPolicy(ApiModel("glm-4-flash", url, KEY), retry_seconds=20.0)
    try:
        return [event async for event in policy.chat(ChatCall(messages=ASK, **fields), Transcript())]
    finally:
        await policy.stop()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_the_policy_asks_again_before_the_first_token(stream_api: Api, status: int) -> None:
    stream_api.chunks = [chunk({"content": "Yes."}, "stop")]
    stream_api.status, stream_api.headers = status, {"retry-after": "0"}
    stream_api.body = b'{"error": {"message": "later"}}'
    asking = asyncio.create_task(ask(stream_api.url))
    await eventually(lambda: len(stream_api.requests) >= 3, 15)
    stream_api.status = 200
    assert (await asyncio.wait_for(asking, 15))[-1].message.content == "Yes."


async def test_the_callers_deadline_ends_it(stream_api: Api) -> None:
    stream_api.status, stream_api.headers = 429, {"retry-after": "30"}
    stream_api.body = b'{"error": {"message": "later"}}'
    async with asyncio.timeout(10):
        with pytest.raises(MeshError) as caught:
            await ask(stream_api.url, seconds=2.0)
    assert caught.value.retry_after == 30 and len(stream_api.requests) == 1


async def test_a_stream_that_breaks_is_not_begun_again() -> None:
    """Its first token has reached the client."""
    asked = 0

    async def serve_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        data = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,' \
               b'"delta":{"content":"Ye"},"finish_reason":null}]}\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n" + data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve_half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    policy = UpstreamPolicy(ApiModel("glm-4-flash", f"http://127.0.0.1:{port}/v1", KEY))
    transcript = Transcript()
    with pytest.raises(MeshError) as caught:
        async for _ in policy.chat(ChatCall(messages=ASK), transcript):
            pass
    assert caught.value.code.name == "UNAVAILABLE" and (transcript.text, asked) == (["Ye"], 1)
    await policy.stop()
    server.close()


async def test_the_key_is_nowhere(stream_api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stream_api.status, stream_api.body = 401, b'{"error": {"message": "Incorrect API key: %s"}}' % KEY.encode()
    policy = UpstreamPolicy(ApiModel("glm-4-flash", stream_api.url, KEY))
    with pytest.raises(MeshError) as caught:
        async for _ in policy.chat(ChatCall(messages=ASK), Transcript()):
            pass
    watching = asyncio.create_task(policy.monitor(0.01))
    await eventually(lambda: len(stream_api.requests) >= 3, 10)
    watching.cancel()
    assert "refuses the key" in policy.problem
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("openclaw_rl"))
    assert "refuses the key" in ours
    assert KEY not in ours + policy.problem + str(caught.value) + caught.value.message + repr(policy._api)
    await policy.stop()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_an_api_leads_to_no_other_server(status: int) -> None:
    async with canary() as inside, redirecting(status, f"http://{inside.address}/latest/meta-data") as address:
        api = ApiModel("glm-4-flash", f"http://{address}/v1", KEY)
        connection = client(api, 10)
        try:
            problem = await probe(connection, api, NAMES, 1)
        finally:
            await connection.close()
    assert inside.visits == []
    assert f"it redirects to http://{inside.address}/latest/meta-data, which is another server" in problem
    assert "check components.policy_server.base_url" in problem


@pytest.mark.parametrize(("key", "left"), [("a", "a bad key: a-a"), ("", "a bad key: -"),
                                           ("none", "a bad key: none-none"),
                                           ("local-key-17", "a bad key: [redacted]-[redacted]")])
def test_a_key_as_short_as_a_word_eats_no_words(key: str, left: str) -> None:
    assert api_calls.redact(f"a bad key: {key}-{key}", ApiModel("m", "http://x", key)) == left
