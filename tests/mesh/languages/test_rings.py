"""Rings in which components are of another make: they take their places by configuration alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from openclaw_rl.runtime.home import Home
from tests.mesh.fake_api import FakeApi
from tests.mesh.languages.stacks import MESH, Foreign
from tests.mesh.mesh import Mesh, make_home
from tests.support.ports import free_port
from tests.support.waiting import until

HINT = "Answer in one short sentence"
Start = Callable[..., Foreign]


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Start]:
    """Starts a server in another language; all of them have to end well when they are stopped."""
    started: list[Foreign] = []

    def start(language: str, name: str, *options: str, **variables: str) -> Foreign:
        started.append(Foreign(language, name, tmp_path, *options, **variables))
        return started[-1]

    yield start
    for server in reversed(started):
        server.stop()


def fates(mesh: Mesh) -> dict[str, str]:
    """Fate by turn, of the main turns."""
    return {turn["turn"]: turn["fate"] for turn in mesh.json("turns") if turn["class"] == "main"}


def active(mesh: Mesh) -> int:
    return next((version["version"] for version in mesh.json("versions") if version["active"]), -1)


@pytest.mark.timeout(900)
def test_a_judge_in_go_and_an_environment_in_typescript(model: Path, tmp_path: Path, foreign: Start) -> None:
    policy, trainer = free_port(), free_port()
    judge = foreign("go", "prm_judge", "--trainer", f"127.0.0.1:{trainer}")
    env = foreign("typescript", "env_server", "--judge", judge.address, "--policy", f"127.0.0.1:{policy}")
    mesh = Mesh(make_home(tmp_path / "home", model, {
        "policy_server": {"port": 0, "grpc_port": policy, "max_tokens": 16}, "env_server": {"address": env.address},
        "prm_judge": {"address": judge.address},
        "trainer": {"port": trainer, "min_samples": 4, "update_interval": 2, "gate": {"enabled": False}}},
        mesh_id=MESH))
    mesh.cli("local-start")
    try:
        assert mesh.all_running()
        turns = []
        for i in range(3):
            turns += mesh.session(f"s{i}", "What is a heron?", f"That is wrong. {HINT}, please.", done=True)
        judge.kill()  # what it acknowledged it has, what it did not is sent again
        turns += mesh.session("s3", "What is a heron?", f"That is wrong. {HINT}, please.", done=True)
        env.kill()
        turns += mesh.session("s4", "What is a heron?", f"That is wrong. {HINT}, please.", done=True)
        env.start()
        judge.start()

        until(lambda: active(mesh) > 0, 300, f"a new version{mesh.logs()}{judge.log.read_text()}{env.log.read_text()}")
        until(lambda: fates(mesh).keys() == {*turns} and "pending" not in fates(mesh).values(), 300, "all fates")
        found = fates(mesh)
        first = turns[::2]  # each was complained about
        assert all(found[turn].startswith("trained") for turn in first), found
        assert mesh.chat([{"role": "user", "content": "What is a stork?"}]).headers["x-openclaw-policy-version"] != "0"
        numbers = [str(version["version"]) for version in mesh.json("versions")]
        trained = [turn["turn"] for number in numbers for turn in mesh.json("versions", "show", number)["turns"]]
        assert len(trained) == len({*trained}) and {*first} <= {*trained}  # none twice
    finally:
        mesh.cli("stop-all")


@pytest.mark.timeout(900)
def test_a_policy_server_in_rust_and_a_trainer_in_java(tmp_path: Path, foreign: Start) -> None:
    api, environment = FakeApi(), free_port()
    try:
        policy = foreign("rust", "policy_server", "--http", "127.0.0.1:0", "--upstream", api.url, "--model",
                         "glm-4-flash", "--environment", f"127.0.0.1:{environment}", OPENAI_API_KEY="sk-1")
        trainer = foreign("java", "trainer", "--policy", policy.address, "--min-samples", "2",
                          "--update-interval", "1")
        home = Home(tmp_path / "home").create()
        home.config_file.write_text(yaml.safe_dump({"mesh_id": MESH, "components": {
            "policy_server": {"address": policy.address, "model": "glm-4-flash"}, "env_server": {"port": environment},
            "prm_judge": {"port": 0, "judge": "rules"}, "trainer": {"address": trainer.address}}}))
        mesh = Mesh(home)
        mesh.cli("local-start")
        try:
            assert mesh.all_running()
            url = policy.http_address()

            def post(path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
                answer = httpx.post(f"{url}/v1/{path}", json=body, headers=headers, timeout=60, trust_env=False)
                assert answer.status_code == 200, answer.text
                return answer

            def complain(session: str) -> str:
                turn = post("chat/completions", {"X-Session-Id": session}, model="glm-4-flash", messages=[
                    {"role": "user", "content": "What is a heron?"}]).headers["x-openclaw-turn-id"]
                post("feedback", turn_id=turn, score=-1, comment=f"{HINT}, please.")
                post("chat/completions", {"X-Session-Id": session, "X-Session-Done": "1"}, messages=[
                    {"role": "user", "content": "What is a heron?"},
                    {"role": "assistant", "content": "A heron is a bird. "}, {"role": "user", "content": "Goodbye."}])
                return turn

            turns = [complain("s0"), complain("s1")]
            policy.kill()
            policy.start()
            url = policy.http_address()
            turns.append(complain("s2"))
            trainer.kill()
            turns.append(complain("s3"))
            trainer.start()

            until(lambda: active(mesh) > 0, 120, f"a version{policy.log.read_text()}{trainer.log.read_text()}")
            until(lambda: all(fates(mesh).get(turn, "").startswith("trained") for turn in turns), 120,
                  f"all are trained on {fates(mesh)}")
            until(lambda: active(mesh) == max(v["version"] for v in mesh.json("versions")), 60, "the newest is active")
            answer = post("chat/completions", messages=[{"role": "user", "content": "What is an owl?"}])
            assert int(answer.headers["x-openclaw-policy-version"]) > 0
            system, asked = api.asked[-1]
            assert system["role"] == "system" and HINT in system["content"] and asked["content"] == "What is an owl?"

            done = mesh.json("forget", "--session", "s1", "--yes")
            assert done["void_versions"] and done["outcome"] == "rebuilt", done
            assert turns[1] not in fates(mesh)
            assert all(fates(mesh)[turn].startswith("trained") for turn in (turns[0], *turns[2:])), fates(mesh)
            assert active(mesh) == done["active_version"] > max(done["void_versions"])

            mesh.cli("rollback", "0")
            assert active(mesh) == 0
            post("chat/completions", messages=[{"role": "user", "content": "What is an owl?"}])
            assert [message["role"] for message in api.asked[-1]] == ["user"]
        finally:
            mesh.cli("stop-all")
    finally:
        api.close()
