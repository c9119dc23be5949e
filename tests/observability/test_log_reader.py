"""Logs and spans as a component tells them to others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from openclaw_rl.client import AsyncComponentServiceClient
from openclaw_rl.client.spans import remote_components
from openclaw_rl.observability import log_reader, names
from openclaw_rl.observability.log_reader import Tail
from openclaw_rl.observability.span_reader import SpanReader
from openclaw_rl.observability.span_store import SpanStore
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2 as pb


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ComponentServer]:
    server = ComponentServer("trainer", "127.0.0.1", 0, Home(tmp_path).create(),
                             lambda: pb.ComponentStatus(state=pb.COMPONENT_STATE_RUNNING))
    await server.start()
    yield server
    await server.stop(0)


def test_last_lines_come_from_rotated_files_too(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text("5\n6\nhalf")
    (tmp_path / "trainer.log.1").write_text("3\n4\n")
    (tmp_path / "trainer.log.2").write_text("1\n2\n")
    os.utime(tmp_path / "trainer.log.2")  # the order is that of the names
    (tmp_path / "trainer.log.bak").write_text("not a log\n")
    assert Tail(tmp_path, "trainer").last(5) == ["2", "3", "4", "5", "6"]
    assert Tail(tmp_path, "trainer").last(0) == []
    tail = Tail(tmp_path, "trainer")
    assert tail.last(1) == ["6"]
    with (tmp_path / "trainer.log").open("a") as file:
        file.write(" a line\n7\n")
    assert list(tail.new()) == ["half a line", "7"]


def test_the_newest_journal_is_that_of_the_last_day(tmp_path: Path) -> None:
    for name in ("rl_trace_20260316.log", "rl_trace_20260316.2.log", "rl_trace_20260316.10.log",
                 "rl_trace_20260315.log"):
        (tmp_path / name).write_text(f"{name}\n")
    assert Tail(tmp_path).last(10) == ["rl_trace_20260315.log", "rl_trace_20260316.2.log", "rl_trace_20260316.10.log",
                                       "rl_trace_20260316.log"]


def test_many_lines_and_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_BLOCK", 100)
    (tmp_path / "trainer.log").write_text("".join(f"line {i}\n" for i in range(1000)) + "x" * 20_000 + "\n")
    lines = Tail(tmp_path, "trainer").last(301)
    assert lines[:2] == ["line 700", "line 701"] and len(lines) == 301
    assert lines[-1] == "x" * log_reader.MAX_LINE + "…"


async def test_a_component_tells_its_log(server: ComponentServer, tmp_path: Path) -> None:
    (tmp_path / "logs/rl_trace_20260316.log").write_text("[MAIN] Action\n")
    async with AsyncComponentServiceClient(server.address) as client:
        with pytest.raises(MeshError, match="no log 'trainer'"):
            [part async for part in client.read_logs()]
        with pytest.raises(MeshError, match="lines: 10001 is not allowed"):
            [part async for part in client.read_logs(lines=10_001)]
        (tmp_path / "logs/trainer.log").write_text("first\nkey sk-0123456789abcdef is wrong\n")
        told = [line async for part in client.read_logs(lines=1) for line in part.lines]
        assert told == ["key [redacted] is wrong"]
        journal = client.read_logs(source=pb.LOG_SOURCE_JOURNAL)
        assert [line async for part in journal for line in part.lines] == ["[MAIN] Action"]


async def test_it_goes_on_with_what_comes_and_ends_with_the_component(server: ComponentServer, tmp_path: Path) -> None:
    file = tmp_path / "logs/trainer.log"
    file.write_text("".join(f"{i} {'x' * 1000}\n" for i in range(2000)))
    async with asyncio.timeout(20), AsyncComponentServiceClient(server.address) as client:
        stream = client.read_logs(lines=2000, follow=True)
        lines: list[str] = []
        async for part in stream:
            assert part.ByteSize() < 2**20
            lines += part.lines
            if len(lines) == 2000:
                os.rename(file, tmp_path / "logs/trainer.log.1")
                file.write_text("after the rotation\n")
            if lines[-1] == "after the rotation":
                break
        assert len(lines) == 2001
        server.request_stop()
        async for _ in client.read_logs(lines=0, follow=True):
            pass


async def test_spans_of_a_component_elsewhere(server: ComponentServer, tmp_path: Path) -> None:
    store = SpanStore(tmp_path / "telemetry/trainer.db", 1000)
    spans = [{"trace": f"{i:032x}", "span": f"{i:016x}", "parent": "", "service": "trainer", "name": "train", "kind": 1,
              "start": i, "end": i + 1, "status": "", "message": "", "events": [], "links": [],
              "attributes": {names.TURN: f"turn_{i}", names.SESSION: "s",
                             names.TRAINED: 7}} for i in range(3)]
    store.add(spans)
    reader = SpanReader(Home(tmp_path / "another"), elsewhere=remote_components({"trainer": server.address}))
    assert await asyncio.to_thread(reader.turn, "turn_1") == [spans[1]]
    assert await asyncio.to_thread(reader.trained, 7) == spans == await asyncio.to_thread(reader.session, "s")
    assert not reader.problems and not reader.empty
    async with AsyncComponentServiceClient(server.address) as client:
        with pytest.raises(MeshError, match="0 values in all"):
            [part async for part in client.list_spans()]
        [part] = [part async for part in client.list_spans(turn_ids=["turn_0"], trace_ids=[spans[0]["trace"]])]
        assert [orjson.loads(span) for span in part.spans] == [spans[0]]
    gone = SpanReader(Home(tmp_path), elsewhere=remote_components({"trainer": "127.0.0.1:1"}))
    assert await asyncio.to_thread(gone.turn, "turn_1") == []
    assert "trainer does not answer at 127.0.0.1:1" in gone.problems[0]
