"""Keys, scopes and limits: who comes in, and what one client may take."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openclaw_rl.config.security import LimitsConfig
from openclaw_rl.rpc.auth.keys import KeyFile, KeyRing
from openclaw_rl.rpc.limits import REMEMBERED, Limiter, LimitReached
from openclaw_rl.serving.admission import FairQueue
from openclaw_rl.serving.entrypoints.openai import access as access_module
from openclaw_rl.serving.entrypoints.openai.access import Access
from openclaw_rl.serving.entrypoints.openai.errors import ApiError
from openclaw_rl.serving.entrypoints.openai.listener import client_address
from openclaw_rl.v1 import turn_pb2
from tests.serving.entrypoints.conftest import Entrypoint, OpenEntrypoint
from tests.support.waiting import eventually

ASK = [{"role": "user", "content": "Hi"}]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


async def ask(entrypoint: Entrypoint, key: str = "", **options: Any) -> httpx.Response:
    async with entrypoint.http() as http:
        return await http.post("/v1/chat/completions", json={"messages": ASK, **options},
                               headers=bearer(key) if key else {})


async def test_a_key_opens_what_its_scopes_say(open_entrypoint: OpenEntrypoint, file: KeyFile) -> None:
    keys = {scope: file.add(scope, [scope])[0] for scope in ("chat", "read", "admin")}
    entrypoint = await open_entrypoint(ring=KeyRing(file.path))
    allowed = {"chat": {"chat/completions", "feedback"}, "read": {"models", "metrics"}}
    allowed["admin"] = allowed["chat"] | allowed["read"]
    async with entrypoint.http() as http:
        for scope, shown in keys.items():
            for path in ("chat/completions", "feedback", "models", "metrics"):
                url = f"/v1/{path}" if path != "metrics" else "/metrics"
                reply = await (http.get if path in ("models", "metrics") else http.post)(url, headers=bearer(shown))
                assert (reply.status_code == 403) == (path not in allowed[scope]), (scope, path)
                if reply.status_code == 403:
                    assert reply.json()["error"] == {
                        "message": f"key {scope} has not the scope {'chat' if scope == 'read' else 'read'!r} that this "
                                   f"needs; it has {scope}", "type": "permission_error", "param": None,
                        "code": "missing_scope"}
        assert (await http.get("/metrics")).status_code == 401 and (await http.get("/healthz")).status_code == 200
        metrics = (await http.get("/metrics", headers=bearer(keys["admin"]))).text
    assert 'openclaw_client_requests_total{client="read",status="403"} 2.0' in metrics
    assert 'openclaw_client_requests_total{client="",status="401"} 1.0' in metrics
    assert not any(shown in metrics for shown in keys.values())


async def test_revoking_ends_what_runs_and_what_comes(open_entrypoint: OpenEntrypoint, file: KeyFile,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "REVOKED_SECONDS", 0.02)
    shown, _ = file.add("laptop", ["chat"])
    other, _ = file.add("other", ["chat"])
    entrypoint = await open_entrypoint(ring=KeyRing(file.path))
    entrypoint.says("word " * 100)
    entrypoint.engine.gate = asyncio.Event()
    watch = asyncio.create_task(entrypoint.access.monitor_keys())
    async with entrypoint.http() as http, http.stream("POST", "/v1/chat/completions", headers=bearer(shown), json={
            "messages": ASK, "stream": True}) as stream:
        running = asyncio.create_task(ask(entrypoint, other))
        await eventually(lambda: entrypoint.engine.running == 2)
        file.revoke("laptop")
        text = "".join([part async for part in stream.aiter_text()])
    assert '"error"' in text and "revoked" in text and "[DONE]" not in text
    reply = await ask(entrypoint, shown)
    assert (reply.status_code, reply.json()["error"]["message"]) == (401, "this api key (laptop) has been revoked")
    entrypoint.engine.gate.set()
    assert (await running).status_code == 200
    watch.cancel()
    assert {turn.finish_reason for turn in entrypoint.turns()} == {
        turn_pb2.FINISH_REASON_CANCELLED, turn_pb2.FINISH_REASON_STOP}


async def test_keys_are_nowhere_to_be_read(
        open_entrypoint: OpenEntrypoint, file: KeyFile, caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("DEBUG")
    shown, _ = file.add("laptop", ["chat", "read"])
    entrypoint = await open_entrypoint(ring=KeyRing(file.path))
    texts = [(await ask(entrypoint, key)).text for key in (shown, shown[:-1], shown + "x")]
    async with entrypoint.http() as http:
        texts.append((await http.get("/metrics", headers=bearer(shown))).text)
        monkeypatch.setattr(entrypoint.service, "open", lambda *_: 1 / 0)
        texts.append((await ask(entrypoint, shown)).text)
    seen = "\n".join([*texts, caplog.text, *(str(event) for event in entrypoint.events())])
    assert "ZeroDivisionError" in seen and "Hello" in seen and shown[4:-1] not in seen
    assert b"".join(event.SerializeToString() for event in entrypoint.events()).find(shown[4:-1].encode()) < 0


async def test_too_many_requests_per_minute(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(api_keys=("one", "two"), requests_per_minute=3)
    first = await ask(entrypoint, "one")
    assert first.headers["x-ratelimit-limit-requests"] == "3"
    assert first.headers["x-ratelimit-remaining-requests"] == "2"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    await ask(entrypoint, "one")
    await ask(entrypoint, "one", stream=True)
    refused = await ask(entrypoint, "one")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
    assert "key config-1: 3 requests per minute" in error["message"] and "one" not in error["message"].split()
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert (await ask(entrypoint, "two")).status_code == 200
    with pytest.raises(openai.RateLimitError):
        await entrypoint.openai("one").chat.completions.create(model="stub", messages=ASK)


async def test_too_many_requests_at_once(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(concurrent=2, api_keys=("one",))
    entrypoint.engine.gate = asyncio.Event()
    running = [asyncio.create_task(ask(entrypoint, "one", stream=i == 0)) for i in range(2)]
    await eventually(lambda: entrypoint.engine.running == 2)
    refused = await ask(entrypoint, "one")
    assert refused.status_code == 429 and "key config-1: 2 requests at the same time" in refused.text
    entrypoint.engine.gate.set()
    assert [reply.status_code for reply in await asyncio.gather(*running)] == [200, 200]
    assert (await ask(entrypoint, "one")).status_code == 200


async def test_an_open_entrypoint_has_no_limits_for_its_own_machine(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(concurrent=2, requests_per_minute=3, connections=2)
    entrypoint.engine.gate = asyncio.Event()
    running = [asyncio.create_task(ask(entrypoint)) for _ in range(5)]
    await eventually(lambda: entrypoint.engine.running == 5)
    entrypoint.engine.gate.set()
    assert [reply.status_code for reply in await asyncio.gather(*running)] == [200] * 5
    for address, refusals in (("::1", 0), ("10.0.0.1", 2)):  # the latter comes through a proxy on this machine
        codes = []
        for _ in range(5):
            try:
                entrypoint.access.leave(entrypoint.access.enter({}, address, "chat"))
            except ApiError as error:
                codes.append(error.status)
        assert codes == [429] * refusals


async def test_guesses_use_up_an_address_and_no_key(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(api_keys=("right",), requests_per_minute=5)
    codes = [(await ask(entrypoint, f"wrong{i}")).status_code for i in range(7)]
    assert codes == [401] * 5 + [429] * 2
    assert (await ask(entrypoint, "right")).status_code == 200


async def test_a_bad_request_gives_its_place_back(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(concurrent=1, api_keys=("one",))
    for _ in range(3):
        assert (await ask(entrypoint, "one", temperature=9)).status_code == 400
    assert (await ask(entrypoint, "one")).status_code == 200


async def test_who_floods_does_not_starve_the_others(open_entrypoint: OpenEntrypoint) -> None:
    entrypoint = await open_entrypoint(api_keys=("flood", "calm"), concurrent=40)
    entrypoint.says("word " * 10)
    entrypoint.engine.delay = 0.004
    entrypoint.service.queue = FairQueue(8, 256)

    async def calm(times: int) -> float:
        """The middle one of the times that requests take."""
        took = []
        for _ in range(times):
            began = time.perf_counter()
            assert (await ask(entrypoint, "calm")).status_code == 200
            took.append(time.perf_counter() - began)
        return sorted(took)[times // 2]

    async def flood() -> None:
        async with entrypoint.http() as http:
            while True:
                await http.post("/v1/chat/completions", json={"messages": ASK}, headers=bearer("flood"))

    alone = await calm(3)
    floods = [asyncio.create_task(flood()) for _ in range(40)]
    await eventually(lambda: entrypoint.service.queue.waiting > 20)
    beside = await calm(5)
    for task in floods:
        task.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    # First come, first served would make it wait for 40 others: six times as long.
    assert beside < 3 * alone + 0.1, (alone, beside)


async def test_a_queue_is_fair() -> None:
    clock = [0.0]
    queue = FairQueue(4, 6, lambda: clock[0])
    order: list[str] = []
    ends = {}

    async def request(name: str) -> None:
        async with queue.slot(name[0]):
            order.append(name)
            ends[name] = asyncio.Event()
            await ends[name].wait()

    tasks = {}

    async def come(*names: str) -> None:
        for name in names:
            tasks[name] = asyncio.create_task(request(name))
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)

    async def end(name: str) -> None:
        ends[name].set()
        await tasks[name]
        await asyncio.sleep(0.001)

    await come("a1", "a2", "a3", "a4", "a5", "a6")
    assert order == ["a1", "a2", "a3", "a4"]  # alone it has all
    await come("b1", "c1")
    await end("a1")
    await end("a2")
    assert order[4:] == ["b1", "c1"]  # before a5, which came first
    await end("b1")
    assert order[6:] == ["a5"]
    await end("c1")
    assert len(order) == 7  # the last one is kept free
    await come("d1")
    assert order[7:] == ["d1"]
    tasks["a6"].cancel()
    await come("e1", "e2", "e3", "e4", "e5", "e6")
    with pytest.raises(Exception, match="wait already"):
        await request("e7")
    for name in ("e1", "e2", "e3", "e4", "e5", "e6", "d1", "a3", "a4", "a5"):
        tasks[name].cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert queue.waiting == 0
    clock[0] = 61.0
    await come("a7", "a8", "a9", "a0")
    assert order[8:] == ["a7", "a8", "a9", "a0"]  # alone again
    for name in ("a7", "a8", "a9", "a0"):
        await end(name)


def test_the_limiter_forgets_addresses_and_nobody_who_is_there() -> None:
    clock = [0.0]
    limiter = Limiter(LimitsConfig(requests_per_minute=60, concurrent=1), lambda: clock[0])
    limiter.take("here", "x")
    for i in range(3 * REMEMBERED):
        limiter.take(f"10.{i}", "x")
        limiter.give_back(f"10.{i}")
    assert len(limiter) <= REMEMBERED
    with pytest.raises(LimitReached, match="same time"):
        limiter.take("here", "x")
    limiter.give_back("here")
    for _ in range(59):
        limiter.take("here", "x")
        limiter.give_back("here")
    with pytest.raises(LimitReached, match="per minute"):
        limiter.take("here", "x")
    clock[0] += 1
    limiter.take("here", "x")


def test_addresses() -> None:
    assert client_address("2001:db8::1") == client_address("2001:db8::ffff") != client_address("2001:db8:0:1::1")
    assert client_address("::ffff:10.0.0.1") == client_address("10.0.0.1") == "10.0.0.1"
    assert client_address("fe80::1%eth0") == client_address("fe80::2") and len(client_address("x" * 999)) == 64


async def test_who_is_refused_all_the_time_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(access_module.asyncio, "sleep", sleep)
    monkeypatch.setattr(access_module.time, "monotonic", lambda: 5.0)
    access = Access()
    for _ in range(25):
        await access.hold_back("10.0.0.1")
    await access.hold_back("10.0.0.2")
    assert waits == [0.5] * 5
