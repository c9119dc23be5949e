"""Long requests: what can't fit is refused unread, and what can is read beside the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.entrypoints.openai import app, fields, requests
from openclaw_rl.serving.entrypoints.openai.errors import ApiError
from openclaw_rl.serving.long_input import LONG_BYTES
from openclaw_rl.serving.text.template import ChatTemplate, TooLong
from openclaw_rl.v1.turn_pb2 import ChatMessage
from tests.serving.entrypoints.conftest import Entrypoint, OpenEntrypoint
from tests.serving.entrypoints.test_site_guard import say
from tests.support.loop import held_at_most, measured

JSON = {"Content-Type": "application/json"}


def ask(*contents: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in contents]}).encode()


def unread(*_: Any) -> Any:
    raise AssertionError("a request that can't fit was read")


def check_refused(response: httpx.Response) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "maximum context length" in error["message"] and len(error["message"]) < 400


async def chunks(body: bytes) -> Any:
    for at in range(0, len(body), 2**16):
        yield body[at:at + 2**16]


@pytest.mark.parametrize("how", [bytes, chunks], ids=["with a length", "in chunks"])
async def test_5_mb_are_refused_by_their_bytes(open_entrypoint: OpenEntrypoint, monkeypatch: pytest.MonkeyPatch,
                                               how: Callable[[bytes], Any]) -> None:
    entrypoint = await open_entrypoint(body=8 * 2**20)
    monkeypatch.setattr(app, "parse_object", unread)
    async with entrypoint.http() as http:
        body = ask("word " * 1_000_000)
        with held_at_most(0.1):
            check_refused(await http.post("/v1/chat/completions", content=how(body), headers=JSON))


async def test_a_client_that_asks_first_need_not_send(entrypoint: Entrypoint) -> None:
    got = await say(entrypoint.url, "POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Connection: close",
                    "Content-Type: application/json", "Content-Length: 500000", "Expect: 100-continue")
    assert got.startswith(b"HTTP/1.1 400 ") and b"context_length_exceeded" in got


async def test_9_900_messages_are_refused_by_their_number(entrypoint: Entrypoint, monkeypatch: pytest.MonkeyPatch
                                                          ) -> None:
    monkeypatch.setattr(requests, "parse_messages", unread)
    async with entrypoint.http() as http:
        with held_at_most(0.1):
            check_refused(await http.post("/v1/chat/completions", content=ask(*["a"] * 9_900), headers=JSON))


def test_messages_have_a_bound_without_a_known_context_too() -> None:
    with pytest.raises(MeshError, match="10001 of them; at most 10000"):
        requests.parse_chat(json.loads(ask(*["a"] * 10_001)), {})


@pytest.mark.parametrize("value", [b"{}", b"[]", b"0", b'""', b'{"role":"a"}'])
async def test_too_many_values_are_refused_by_their_number(entrypoint: Entrypoint, value: bytes,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    entrypoint.engine.info = dataclasses.replace(entrypoint.engine.info, context_length=10**6)
    monkeypatch.setattr(fields.orjson, "loads", unread)
    monkeypatch.setattr(fields, "MOST_VALUES", 20_000)
    body = b'{"messages":[%b]}' % b",".join([value] * (fields.MOST_VALUES + 1))
    async with entrypoint.http(timeout=120) as http:
        for path in ("/v1/chat/completions", "/v1/feedback"):
            response = await http.post(path, content=body, headers=JSON)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("text", [',{[' * 700_000, '","' * 700_000, '\\",' * 700_000, '\\' * 10 + '"[,' * 700_000,
                                  "x" * (fields._PART - 9) + "\\" * 300_001 + ',"' * 700_000])
def test_marks_within_texts_are_no_values(text: str) -> None:
    body = json.dumps({"a": text, "b": [1, 2]}).encode()
    assert sum(body.count(mark) for mark in (b",", b"{", b"[")) > 700_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "MOST_VALUES", 6)
        assert fields.parse_object(body) == {"a": text, "b": [1, 2]}
        patch.setattr(fields, "MOST_VALUES", 3)
        with pytest.raises(ApiError, match="more than 3 values"):
            fields.parse_object(body)


async def test_a_text_that_can_not_fit_is_refused_unrendered(entrypoint: Entrypoint, monkeypatch: pytest.MonkeyPatch
                                                             ) -> None:
    most = entrypoint.engine.info.context_length * entrypoint.template.token_bytes
    monkeypatch.setattr(ChatTemplate, "_conversation", unread)
    async with entrypoint.http() as http:
        check_refused(await http.post("/v1/chat/completions", content=ask("a" * (most + 1)), headers=JSON))


async def test_reasoning_that_templates_leave_out_does_not_count(template: ChatTemplate,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    long = "a" * (template.token_bytes * 100 + 1)
    with pytest.raises(TooLong):
        template.chat([ChatMessage(role="user", content=long)], most=100)
    with pytest.raises(TooLong):
        template.chat([ChatMessage(role="user", content="Hi"), ChatMessage(role="assistant", content=long)], most=100)
    monkeypatch.setattr(template, "_template", types.SimpleNamespace(render=lambda *_, **__: "short"))
    assert template.chat([ChatMessage(role="assistant", content=f"<think>{long}</think>Hi")], most=100).ids


async def test_long_requests_are_read_on_another_thread(open_entrypoint: OpenEntrypoint,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    entrypoint = await open_entrypoint()
    entrypoint.engine.info = dataclasses.replace(entrypoint.engine.info, context_length=200_000)
    seen: dict[str, set[bool]] = {}

    def watch(place: Any, name: str) -> None:
        whole = getattr(place, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.setdefault(name, set()).add(threading.current_thread() is threading.main_thread())
            return whole(*args, **kwargs)

        monkeypatch.setattr(place, name, watched)

    for place, name in ((app, "parse_object"), (requests, "parse_messages"), (requests, "both_digests"),
                        (ChatTemplate, "chat")):
        watch(place, name)
    async with entrypoint.http() as http:
        response = await http.post("/v1/chat/completions", content=ask("word " * (LONG_BYTES // 5 + 1)), headers=JSON)
        assert response.status_code == 200, response.text
        assert seen == {name: {False} for name in ("parse_object", "parse_messages", "both_digests", "chat")}
        seen.clear()
        await http.post("/v1/chat/completions", content=ask("word"), headers=JSON)
    assert seen == {name: {True} for name in ("parse_object", "parse_messages", "both_digests", "chat")}


async def test_tokenizing_leaves_the_interpreter_to_others(template: ChatTemplate) -> None:
    """It runs on a thread of its own, which is of no use while it holds the interpreter's lock."""
    with measured() as monitor:
        began = time.perf_counter()
        await asyncio.to_thread(template.encode, "word " * 400_000)
        took = time.perf_counter() - began
        await asyncio.sleep(0.02)
    assert monitor.longest < took / 4
