"""local_config.yaml against a real OpenAI-compatible server: an embedded policy server of another mesh."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import environment_pb2
from tests.mesh.mesh import Mesh, make_home, running
from tests.support.models import embedded_model
from tests.support.waiting import until

CONFIG = Path(__file__).parents[1] / "examples/local_config.yaml"
KEY = "sk-marker-of-the-test"
HINT = "Answer in one short sentence"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Mesh]:
    """A policy server that serves the embedded model as glm-4-flash, to those who show the key."""
    off = {"enabled": False}
    mesh = Mesh(make_home(tmp_path / "api", embedded_model(), {
        "policy_server": {"port": 0, "grpc_port": 0, "aliases": ["glm-4-flash"], "api_keys": [KEY], "max_tokens": 24},
        "env_server": off, "prm_judge": off, "trainer": off}))
    with running(mesh):
        yield mesh


def received(api: Mesh, text: str) -> list[Any]:
    """Messages of each conversation with a text in it that the API recorded, oldest first."""
    database = sqlite3.connect(f"file:{api.home.component('policy_server') / 'state.db'}?mode=ro", uri=True)
    try:
        events = [environment_pb2.PolicyEvent.FromString(row[0])
                  for row in database.execute("SELECT payload FROM outbox_turns ORDER BY seq")]
    finally:
        database.close()
    return [event.turn.messages for event in events
            if any(message.content == text for message in event.turn.messages)]


def test_an_api_model_learns_and_goes_back(api: Mesh, tmp_path: Path) -> None:
    # As it stands but for the ports, so that it disturbs no mesh on the default ones, and the length of what the
    # trainer asks for, since the API is a slow one.
    data = yaml.safe_load(CONFIG.read_text())
    for section in data["components"].values():
        section["port"] = 0
    data["components"]["policy_server"]["grpc_port"] = 0
    data["components"]["trainer"] |= {
        "gate": {"max_new_tokens": 12, "min_tokens_ratio": 0.0, "max_degenerate": 1.0, "min_relevant_ratio": 0.0},
        "playbook": {"max_tokens": 50}}
    home = Home(tmp_path / "home").create()
    file = tmp_path / "local_config.yaml"
    file.write_text(yaml.safe_dump(data))
    mesh = Mesh(home, {"ZHIPUAI_API_KEY": "", "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{api.url}/v1"})
    try:
        # A model as small as this gives no scores, which `local-start` says; the rules that stand guard are certain
        # of explicit feedback. Nor does it write a playbook, so that what becomes of it are the hints.
        started = mesh.command("local-start", "--config", str(file))
        others = [line for line in started.stderr.splitlines() if "DEGRADED" in line and "prm_judge" not in line]
        assert (started.returncode == 0 or "prm_judge: DEGRADED" in started.stderr) and not others, started.stderr
        for i in range(4):
            turn, = mesh.session(f"complain-{i}", "What is a heron?")
            httpx.post(f"{mesh.url}/v1/feedback", trust_env=False, timeout=30, json={
                "turn_id": turn, "score": -1, "comment": f"{HINT}, please."}).raise_for_status()
            mesh.session(f"complain-{i}", "Goodbye.", done=True)

        def active() -> int:
            return next((v["version"] for v in mesh.json("versions") if v["active"]), -1)

        until(lambda: active() == 1, 400, f"version 1 is active{mesh.logs()}")
        response = mesh.chat([{"role": "user", "content": "What is an owl?"}])
        assert response.headers["x-openclaw-policy-version"] == "1"
        system, asked = received(api, "What is an owl?")[-1]
        assert system.role == "system" and HINT in system.content and asked.content == "What is an owl?"

        shown = mesh.json("versions", "show", "1")
        assert any(HINT in entry["text"] for entry in shown["playbook"]) and shown["algorithm"] == "playbook"
        assert any(turn["score"] == -1 for turn in shown["turns"])
        assert f"+ {HINT}" in mesh.cli("versions", "diff", "0", "1")

        mesh.cli("rollback", "0")
        response = mesh.chat([{"role": "user", "content": "What is a crow?"}])
        assert response.headers["x-openclaw-policy-version"] == "0"
        assert [message.role for message in received(api, "What is a crow?")[-1]] == ["user"]
        written = [f for f in home.root.rglob("*") if f.is_file() and KEY.encode() in f.read_bytes()]
        assert not written, "a key gets into no file"
        assert not any(KEY in line for line in mesh.processes())
    finally:
        mesh.cli("stop-all")
    assert not mesh.processes()


def test_without_a_key_nothing_starts(tmp_path: Path) -> None:
    mesh = Mesh(Home(tmp_path / "home"), {"ZHIPUAI_API_KEY": "", "OPENAI_API_KEY": ""})
    done = mesh.command("local-start", "--config", str(CONFIG))
    assert done.returncode == 1 and "ZHIPUAI_API_KEY" in done.stderr and "smollm2-135m-instruct" in done.stderr
    assert not mesh.processes()
