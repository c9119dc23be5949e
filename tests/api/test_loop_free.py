"""Requests that have once held an event loop, in a whole mesh on one loop: none may hold it for long.

All four components and the client share the loop, so the limits are generous; while a request holds it, nobody's token
comes out, and no health check is answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.client import AsyncComponentServiceClient
from openclaw_rl.runtime.home import COMPONENTS
from openclaw_rl.serving.server import PolicyComponent
from tests.mesh.fake_api import FakeApi
from tests.mesh.in_process import in_process_mesh
from tests.support.loop import held_at_most

#: The judge needs no model, and the trainer takes samples but no step.
IDLE: dict[str, dict[str, Any]] = {"prm_judge": {"judge": "rules"},
                                   "trainer": {"min_samples": 100, "update_interval": 3600}}


class Talker:
    """A client with an open connection and requests encoded beforehand, so that only the mesh is measured."""

    def __init__(self, mesh: InProcessMesh, http: httpx.AsyncClient) -> None:
        self.mesh, self._http = mesh, http

    @staticmethod
    def body(*texts: str) -> bytes:
        return json.dumps({"messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": text}
                                        for i, text in enumerate(texts)]}).encode()

    async def chat(self, session: str, body: bytes) -> None:
        answer = await self._http.post("/v1/chat/completions", content=body, headers={
            "X-Session-Id": session, "Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text


@pytest.fixture
async def talker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
                 ) -> AsyncIterator[Talker]:
    api = FakeApi()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    try:
        async with in_process_mesh(tmp_path, "gpt-4o-mini", IDLE,
                                   **getattr(request, "param", {})) as mesh, \
                httpx.AsyncClient(base_url=mesh.http_address, trust_env=False, timeout=60) as http:
            talker = Talker(mesh, http)
            await talker.chat("first", talker.body("Hi"))  # imports what is imported with the first request
            await asyncio.sleep(0.5)
            yield talker
    finally:
        api.close()


async def test_a_request_of_5_mb(talker: Talker) -> None:
    body = talker.body("word " * 1_000_000)
    with held_at_most(0.3):
        await talker.chat("large", body)
        await asyncio.sleep(0.5)  # for the other components


async def test_10_000_messages_in_one_request(talker: Talker) -> None:
    body = talker.body(*["word"] * 9_999)
    with held_at_most(0.3):
        await talker.chat("many", body)
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("talker", [{"durability": "strict"}], indirect=True)
async def test_strict_durability(talker: Talker) -> None:
    bodies = [talker.body(f"Hello {i}") for i in range(30)]
    with held_at_most(0.1):
        for i, body in enumerate(bodies):
            await talker.chat(f"strict {i % 3}", body)
        await asyncio.sleep(0.5)


async def test_a_full_disk(talker: Talker) -> None:
    """Answers go on, turns wait in memory, and what tries to write them does not hold the loop."""
    policy = talker.mesh.component("policy_server")
    assert isinstance(policy, PolicyComponent)
    await policy.database.run(lambda db: db.execute("PRAGMA max_page_count = 1"))  # no more than there are now
    bodies = [talker.body(f"{i} " + "word " * 2_000) for i in range(20)]
    with held_at_most(0.1):
        for body in bodies:
            await talker.chat("full", body)
        await asyncio.sleep(1.5)  # one more try to write
    assert "turns_not_written" in {alarm.name for alarm in policy.status().alarms}


async def test_forgetting(talker: Talker) -> None:
    for i in range(20):
        await talker.chat("big", talker.body("word " * 100_000 + str(i)))
    removed = {}
    with held_at_most(0.1):
        for name in COMPONENTS:
            async with AsyncComponentServiceClient(component=name, home=talker.mesh.home) as component:
                removed[name] = dict((await component.forget(session_id="big", timeout=60)).removed)
    assert removed["policy_server"]["conversations"] and removed["env_server"]["turns"] == 20
