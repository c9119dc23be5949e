"""The policy server in Rust among our own three, with certificates: a playbook is learnt, taken back and forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from openclaw_rl.runtime.home import Home
from tests.mesh.fake_api import FakeApi
from tests.mesh.languages.stacks import MESH
from tests.mesh.languages.test_rings import HINT, Start, active, fates, foreign, free_port
from tests.mesh.mesh import Mesh
from tests.support.waiting import until

__all__ = ["foreign"]


@pytest.mark.timeout(600)
def test_it_takes_the_playbooks_of_our_trainer(tmp_path: Path, foreign: Start) -> None:
    api, environment = FakeApi(), free_port()
    home = Home(tmp_path / "home").create()
    mesh = Mesh(home, {"OPENAI_API_KEY": "sk-1", "ZHIPUAI_API_KEY": ""})
    mesh.cli("init")
    policy = foreign("rust", "policy_server", "--http", "127.0.0.1:0", "--upstream", api.url, "--model", "glm-4-flash",
                     "--environment", f"127.0.0.1:{environment}", "--certs", str(home.certs), OPENAI_API_KEY="sk-1")
    home.config_file.write_text(yaml.safe_dump({"mesh_id": MESH, "security": {"tls": "on"}, "components": {
        "policy_server": {"address": policy.address, "model": "glm-4-flash", "base_url": api.url},
        "env_server": {"port": environment}, "prm_judge": {"port": 0, "judge": "rules"},
        "trainer": {"port": 0, "min_samples": 2, "update_interval": 1, "gate": {"enabled": False}}}}))
    mesh.cli("local-start")
    try:
        url = policy.http_address()

        def post(path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
            answer = httpx.post(f"{url}/v1/{path}", json=body, headers=headers, timeout=60, trust_env=False)
            assert answer.status_code == 200, answer.text
            return answer

        turns = []
        for session in ("s0", "s1"):
            asked = [{"role": "user", "content": "What is a heron?"}]
            answer = post("chat/completions", {"X-Session-Id": session}, messages=asked)
            turns.append(answer.headers["x-openclaw-turn-id"])
            post("feedback", turn_id=turns[-1], score=-1, comment=f"{HINT}, please.")
            post("chat/completions", {"X-Session-Id": session, "X-Session-Done": "1"}, messages=[
                *asked, answer.json()["choices"][0]["message"], {"role": "user", "content": "Goodbye."}])
        until(lambda: active(mesh) > 0, 120, f"a version{mesh.logs()}{policy.log.read_text()}")
        until(lambda: all(fates(mesh).get(turn, "").startswith("trained") for turn in turns), 60, "all are trained on")
        learnt = active(mesh)
        answer = post("chat/completions", messages=[{"role": "user", "content": "What is an owl?"}])
        assert int(answer.headers["x-openclaw-policy-version"]) >= learnt
        status = {component["name"]: component for component in mesh.json("status")["components"]}
        assert status["policy_server"]["state"] == "RUNNING", status["policy_server"]
        mesh.cli("rollback", "0")
        answer = post("chat/completions", messages=[{"role": "user", "content": "What is a crow?"}])
        assert answer.headers["x-openclaw-policy-version"] == "0"
        mesh.cli("forget", "--session", "s0", "--yes")
        assert turns[0] not in fates(mesh)
    finally:
        mesh.cli("stop-all")
        api.close()
