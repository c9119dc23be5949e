from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import PolicyServerConfig
from openclaw_rl.serving.engines.interface import Finished, Sampling, Token
from openclaw_rl.serving.engines.sglang import worker_manager
from openclaw_rl.serving.engines.sglang.engine import SglangEngine
from tests.serving.engines.sglang.fake import FakeSglang
from tests.support.waiting import eventually

Make = Callable[..., Awaitable[SglangEngine]]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_manager, "_BACKOFF", (0.01,))
    monkeypatch.setattr(worker_manager, "_CHECK_SECONDS", 0.03)
    monkeypatch.setattr(worker_manager, "_OWN_MISSED", 2)


@pytest.fixture
async def fakes(tiny: Path) -> AsyncIterator[list[FakeSglang]]:
    """Two servers of the model `tiny`."""
    servers = [FakeSglang(str(tiny)), FakeSglang(str(tiny))]
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        await server.stop()


@pytest.fixture
async def make(tiny: Path, tmp_path: Path, fakes: list[FakeSglang]) -> AsyncIterator[Make]:
    """Makes and starts an engine over servers that run; by disk unless told otherwise."""
    async with AsyncExitStack() as stack:
        async def make(*servers: FakeSglang, **settings: Any) -> SglangEngine:
            sglang = {"addresses": [server.address for server in servers], "update": "disk", "start_timeout": 5,
                      **settings.pop("sglang", {})}
            engine = SglangEngine(tiny, PolicyServerConfig(engine="sglang", sglang=sglang, **settings),
                                  tmp_path / "sglang", tmp_path / "logs")
            stack.push_async_callback(engine.stop)
            await engine.start()
            await eventually(lambda: all(worker.state != "starting" for worker in engine.status().workers))
            return engine

        yield make


async def respond(engine: SglangEngine, prompt: list[int], most: int = 12, **fields: Any) -> list[Token]:
    session = fields.pop("session", "")
    items = [item async for item in engine.generate(prompt, Sampling(max_tokens=most, **fields), session=session)]
    assert isinstance(items[-1], Finished)
    return [item for item in items if isinstance(item, Token)]
