"""Servers that hang, are left paused, or are started anew at a bad moment; and whose checkpoints lie about."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import PolicyServerConfig
from openclaw_rl.serving.engines.interface import EngineError
from openclaw_rl.serving.engines.sglang import server_checks, worker_manager
from openclaw_rl.serving.engines.sglang.checkpoint import prepare
from openclaw_rl.serving.engines.sglang.client import ConnectionLost, HttpClient
from openclaw_rl.serving.engines.sglang.engine import SglangEngine
from openclaw_rl.serving.engines.sglang.transports import DiskTransport
from openclaw_rl.serving.engines.sglang.worker import Worker
from tests.serving.engines.sglang.conftest import Make, respond
from tests.serving.engines.sglang.fake import FakeSglang
from tests.support.waiting import eventually


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_manager, "_CHECK_TIMEOUT", 0.2)
    monkeypatch.setattr(worker_manager, "_RECOVERY_TIMEOUT", 0.2)


class FakeProcess:
    """A ServerProcess that is a FakeSglang."""

    def __init__(self, *_: Any) -> None:
        self.server: FakeSglang | None = None
        self.command: list[str] = []
        self.starts = 0
        self.key = ""
        self._end = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self.starts if self.server else None

    async def start(self) -> None:
        options = dict(zip(self.command, self.command[1:], strict=False))
        self.server = FakeSglang(options["--model-path"])
        self.server.version = options["--weight-version"]
        self._end.clear()
        await self.server.start()
        self.address, self.starts = self.server.address, self.starts + 1

    async def ended(self) -> str:
        await self._end.wait()
        return "it was stopped"

    async def stop(self) -> None:
        if self.server:
            await self.server.stop()
            self.server = None
            self._end.set()

    def last_error(self) -> str:
        return ""


async def test_a_process_that_hangs_is_started_anew(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                    impatient: None) -> None:
    monkeypatch.setattr(worker_manager, "ServerProcess", FakeProcess)
    engine = SglangEngine(tiny, PolicyServerConfig(engine="sglang", device="cpu", workers=1), tmp_path / "state",
                          tmp_path / "logs")
    await engine.start()
    try:
        process: Any = engine._manager.workers[0].process
        running = asyncio.create_task(respond(engine, [1], 80))
        await eventually(lambda: engine.status().counters["engine_tokens"] > 3)
        process.server.hangs = True
        assert len(await asyncio.wait_for(running, 20)) == 80
        assert process.starts == 2 and engine.status().workers[0].state == "serving"
    finally:
        await engine.stop()


async def test_a_response_leaves_a_server_that_hangs(make: Make, fakes: list[FakeSglang], impatient: None) -> None:
    engine = await make(*fakes)
    responses = [asyncio.create_task(respond(engine, [i], 60, session=f"s{i}")) for i in range(6)]
    await eventually(lambda: fakes[0].running > 0 and fakes[1].running > 0)
    fakes[0].hangs = True
    for response in await asyncio.wait_for(asyncio.gather(*responses), 20):
        assert len(response) == 60
    assert engine.status().workers[0].state == "out"
    fakes[0].hangs = False
    await eventually(lambda: engine.status().workers[0].state == "serving")


async def test_a_server_that_was_left_paused_goes_on(make: Make, fakes: list[FakeSglang]) -> None:
    fakes[0]._free.clear()
    engine = await asyncio.wait_for(make(fakes[0]), 20)
    assert len(await respond(engine, [1])) == 12


async def test_a_server_that_makes_no_token_is_told(make: Make, fakes: list[FakeSglang],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checks, "_HOOK_SECONDS", 0.1)
    fakes[0].delay = 30
    with pytest.raises(EngineError, match="generated no token"):
        await make(fakes[0])


async def test_checkpoints_go_while_a_worker_is_out(make: Make, fakes: list[FakeSglang], other: Path,
                                                    tmp_path: Path) -> None:
    engine = await make(*fakes)
    await fakes[1].stop()
    await eventually(lambda: engine.status().workers[1].state == "out")
    for version in (1, 2, 3):
        await engine.stage(version, other)
        await engine.activate(version)
    root = tmp_path / "sglang" / "checkpoints"
    await eventually(lambda: [folder.name.split("-")[0] for folder in root.iterdir()] == ["3"])
    engine._manager.workers[1].reading = engine._manager.active.folder
    await engine.stage(4, other)
    await engine.activate(4)
    await asyncio.sleep(0.05)
    assert len(list(root.iterdir())) == 2, "a server that starts still reads version 3"


async def test_a_version_that_is_staged_again_keeps_its_files(tiny: Path, other: Path, tmp_path: Path) -> None:
    assert prepare(1, other, tiny, tmp_path).folder != prepare(1, other, tiny, tmp_path).folder


async def test_what_cannot_be_loaded_leaves_no_files(make: Make, fakes: list[FakeSglang], other: Path, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await make(fakes[0])

    async def load(_: Any, __: Any) -> Any:
        raise OSError("no memory")

    monkeypatch.setattr(DiskTransport, "load", load)
    with pytest.raises(OSError, match="no memory"):
        await engine.stage(1, other)
    await eventually(lambda: not list((tmp_path / "sglang" / "checkpoints").iterdir()))


async def test_a_closed_link_is_gone() -> None:
    client = HttpClient("http://127.0.0.1:9")
    await client.close()
    with pytest.raises(ConnectionLost):
        await client.command("/model_info")
    with pytest.raises(ConnectionLost):
        await anext(client.generate({"rid": "a"}))  # type: ignore[call-overload]
    client.abort("a")
    task, = client._aborts
    await asyncio.wait({task})
    assert task.exception() is None


async def test_an_update_of_a_server_that_was_started_anew_meanwhile_does_not_count(fakes: list[FakeSglang]) -> None:
    worker = Worker(0, HttpClient(fakes[0].address))
    newer = HttpClient(fakes[1].address)

    class Slow(DiskTransport):
        async def send(self, client: Any, load: Any) -> None:
            worker.client, worker.version, worker.broken = newer, -1, False

    old = worker.client
    with pytest.raises(ConnectionLost, match="restarted during the update"):
        await worker.update(Slow(), None, 3)
    assert worker.version == -1 and not fakes[1].calls
    for client in (old, newer):
        assert client
        await client.close()


async def test_an_update_that_fails_in_an_unexpected_way_takes_the_worker_out(
        make: Make, fakes: list[FakeSglang], other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await make(fakes[0])
    fails = [RuntimeError("first"), RuntimeError("again")]
    plain = DiskTransport.send

    async def send(self: DiskTransport, client: Any, load: Any) -> None:
        if fails:
            raise fails.pop(0)
        await plain(self, client, load)

    monkeypatch.setattr(DiskTransport, "send", send)
    await engine.stage(1, other)
    with pytest.raises(EngineError, match="first"):
        await engine.activate(1)
    await eventually(lambda: engine.status().workers[0].state == "serving")
    assert not fails and engine.active_version == 0


async def test_all_that_there_is_room_for_may_wait_during_an_update(make: Make, fakes: list[FakeSglang]) -> None:
    engine = await make(fakes[0], max_batch=4, max_waiting=1)
    engine._manager.workers[0].updating = True
    waiting = [asyncio.create_task(respond(engine, [1])) for _ in range(4)]
    await eventually(lambda: engine.status().gauges["waiting"] == 4)
    engine._manager.workers[0].updating = False
    engine._changed()
    await asyncio.gather(*waiting)
