"""A whole mesh in one process and on one event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.client import AsyncTrainerServiceClient
from openclaw_rl.config import ConfigError
from openclaw_rl.observability.span_store import SpanStore
from openclaw_rl.rpc.auth import ca
from openclaw_rl.runtime import runtime
from openclaw_rl.runtime.home import COMPONENTS, Home, read_record
from tests.mesh.fake_api import FakeApi
from tests.mesh.in_process import in_process_mesh, mesh_in_thread, tiny_model

#: A mesh whose judge needs no model, and whose trainer takes samples but no step.
IDLE: dict[str, dict[str, Any]] = {"prm_judge": {"judge": "rules"},
                                   "trainer": {"min_samples": 100, "update_interval": 3600}}


async def talk(url: str, *texts: str, session: str = "s") -> list[str]:
    """A conversation; the ids of its turns."""
    turns, messages = [], []
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, verify=False) as http:
        for text in texts:
            messages.append({"role": "user", "content": text})
            answer = await http.post("/v1/chat/completions", json={"messages": messages},
                                     headers={"X-Session-Id": session})
            assert answer.status_code == 200, answer.text
            messages.append(answer.json()["choices"][0]["message"])
            turns.append(answer.headers["x-openclaw-turn-id"])
    return turns


def spans(home: Home, component: str, turn: str) -> list[str]:
    """Names of the spans that a component has kept of a turn."""
    store = SpanStore(home.root / "telemetry" / f"{component}.db", 1000)
    try:
        return [span["name"] for span in store.of_turn(turn)]
    finally:
        store.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


async def test_a_ring_learns_in_one_process(tmp_path: Path, model: Path) -> None:
    """Turns are judged and trained on, the new version is served, and each component has its own telemetry."""
    async with in_process_mesh(tmp_path, model, {"policy_server": {"max_tokens": 4},
                                                 "trainer": {"gate": {"enabled": False}}}) as mesh:
        turns = await talk(mesh.http_address, "hi", "no, that is wrong", "no, that is wrong")
        async with AsyncTrainerServiceClient(home=mesh.home) as trainer, asyncio.timeout(60):
            while mesh.component("policy_server").status().policy_version < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert {sample.turn_id for sample in (await trainer.list_samples(turn_ids=turns)).samples} <= set(turns)
    assert all(read_record(mesh.home, name) is None for name in COMPONENTS)
    assert "turn record" in spans(mesh.home, "env_server", turns[0])
    assert spans(mesh.home, "policy_server", turns[0]) and spans(mesh.home, "trainer", turns[0])
    assert not set(spans(mesh.home, "policy_server", turns[0])) & set(spans(mesh.home, "env_server", turns[0]))
    assert runtime.current() == runtime.Ambient(), "nothing of it is left in the process"


async def test_each_component_has_its_own_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TLS a component is let in only in its role: the ring runs, so each one acts in its own."""
    api = FakeApi()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    home = Home(tmp_path).create()
    ca.make_authority(home.certs, "mesh")
    for role in (*COMPONENTS, "operator"):
        ca.issue(home.certs, role)
    try:
        async with in_process_mesh(tmp_path, "gpt-4o-mini", IDLE,
                                   security={"tls": "on", "http_tls": "off"}) as mesh:
            await talk(mesh.http_address, "hi", "no, that is wrong", "thanks")
            async with asyncio.timeout(30):
                while not mesh.component("trainer").status().counters["samples_accepted"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    finally:
        api.close()


async def test_a_component_that_can_not_run_leaves_no_other_running(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ConfigError, match="no-such"):
        async with in_process_mesh(tmp_path, "none", {"prm_judge": {"judge": "no-such"}}):
            pass
    assert all(read_record(Home(tmp_path), name) is None for name in COMPONENTS)
    assert asyncio.all_tasks() == before


def test_commands_find_a_mesh_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    try:
        with mesh_in_thread(tmp_path, "gpt-4o-mini", IDLE) as mesh:
            assert mesh.all_running()
            mesh.session("told", "Hi", "that is wrong")
            assert len(mesh.turns("told")) == 2
    finally:
        api.close()
    assert not list(mesh.home.run.glob("*.json"))
