"""The documentation's commands and programs, run against the mesh: what a page says works."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.launch.status import report
from openclaw_rl.runtime.home import Home
from tests.docs.blocks import ROOT, Block, blocks, documents
from tests.docs.shell import Reader
from tests.mesh.mesh import Mesh
from tests.support.waiting import until

_PORTS = {"policy_server": 50051, "env_server": 50052, "prm_judge": 50053, "trainer": 50054}


@pytest.fixture(scope="module")
def lesson(mesh: Mesh) -> Iterator[dict[str, str]]:
    """What the pages speak of: a session, a turn, a version that was trained, a lease. Afterwards the newest version
    answers, as before."""
    turns = [turn for n in range(2) for turn in
             mesh.session(f"docs-{n}", "What is a heron?", "That is wrong. Answer in one short sentence.", done=True)]
    mesh.session("docs-forgotten", "What is a stork?")

    def kept() -> int:
        return next((v["version"] for v in reversed(mesh.json("versions")) if v["active"]), 0)

    version = until(kept, 180, "a version")
    with EnvironmentServiceClient(home=mesh.home) as environments:
        lease = environments.acquire(lease_id="docs-lease", type="tool_call", ttl=Duration(seconds=600),
                                     wait=Duration(seconds=60)).lease_id
        environments.reset(lease_id=lease)
        yield {"TURN": turns[0], "SESSION": "docs-0", "LEASE": lease,
               "EPISODE": "$(openclaw-rl episodes list --json | jq -r '.[0].episode')",
               **{f"127.0.0.1:{port}": mesh.record(name).address for name, port in _PORTS.items()},
               "http://127.0.0.1:30000": mesh.url, "~/.openclaw-rl": str(mesh.home.root),
               **{f"{words} 1": f"{words} {version}" for words in ("rollback", "pin", "show", "diff 0", "--version")}}
        environments.release(lease_id=lease)
    mesh.cli("unpin")
    mesh.settle()  # else the next version is on its way before the newest one is gone back to

    def as_before() -> bool:
        newest = next(version for version in reversed(mesh.json("versions"))
                      if not version["state"].startswith(("rejected", "refused", "void")))
        return newest["active"] or mesh.command("rollback", str(newest["version"])).returncode == 0

    until(as_before, 120, "the newest version answers again")
    mesh.cli("resume")


@pytest.fixture(scope="module")
def reader(mesh: Mesh, lesson: dict[str, str], grpcurl: str, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    work = tmp_path_factory.mktemp("reader")
    several = next(block for file in documents() for block in blocks(file, "yaml") if "mode: distributed" in block.text)
    (work / "distributed_config.yaml").write_text(several.text)
    mine = next(block for file in documents() for block in blocks(file, "yaml") if "id: count-lines" in block.text)
    (work / "my-tasks").mkdir()
    (work / "my-tasks" / "mine.yaml").write_text(mine.text)
    known = lesson | {"/srv/my-tasks": str(work / "my-tasks")}
    return Reader(work, mesh.home.root, known, [str(Path(grpcurl).parent)] if "/" in grpcurl else [])


@pytest.mark.parametrize("page", documents(), ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_commands(page: Path, reader: Reader) -> None:
    wrong = reader.read(page)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("block", [block for file in documents() for block in blocks(file, "python")], ids=str)
def test_programs(block: Block, mesh: Mesh, lesson: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(block.text).replace("http://127.0.0.1:30000", mesh.url))
    done = subprocess.run([sys.executable, str(program)], env=mesh.env, text=True, capture_output=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_command_is_found(tmp_path: Path, mesh: Mesh) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nopenclaw-rl versions show 99999   # there isn't\necho fine\n```\n")
    (tmp_path / "work").mkdir()
    (wrong,) = Reader(tmp_path / "work", mesh.home.root, {}, []).read(page)
    assert "versions show 99999" in wrong and "ended with 1" in wrong and "fine" not in wrong


def test_troubles_at_a_request(mesh: Mesh) -> None:
    """What the table of troubles says of versions, fields, classes and a pause."""
    request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    url = f"{mesh.url}/v1/chat/completions"
    other = httpx.post(url, json=request, headers={"X-OpenClaw-Exact-Version": "99999"}, timeout=60, trust_env=False)
    assert other.status_code == 409 and other.json()["error"]["code"] == "version_not_active"
    assert float(other.headers["retry-after"]) > 0
    wrong = httpx.post(url, json=request | {"temperature": "hot"}, timeout=60, trust_env=False)
    assert wrong.status_code == 400 and "temperature" in wrong.text
    mesh.chat(request["messages"], headers={"X-Session-Id": "docs-side", "X-Turn-Type": "side"}, max_tokens=4)
    (turn,) = until(lambda: mesh.turns("docs-side"), 30).values()
    assert turn["class"] == "side" and "side" in turn["class_reason"]
    mesh.cli("pause", "--reason", "the documentation")
    try:
        trainer = mesh.json("status")["components"][3]
        assert "the documentation" in trainer["detail"] and "openclaw-rl resume" in trainer["detail"]
        done = mesh.command("train-now")
        assert done.returncode == 1 and "openclaw-rl resume" in done.stderr
    finally:
        mesh.cli("resume")


def test_a_silent_judge_says_why(tmp_path: Path) -> None:
    """A model's address that refuses: the alarm, and what to look at."""
    home = Home(tmp_path / "home").create()
    config = tmp_path / "config.yaml"
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    config.write_text(yaml.safe_dump({"components": {"prm_judge": {
        "port": 0, "model": "a-model", "base_url": f"http://127.0.0.1:{port}/v1", "vote_timeout": 8}}}))
    mesh = Mesh(home, {"OPENAI_API_KEY": "a key"})
    with subprocess.Popen([sys.executable, str(ROOT / "servers/judge/serve.py"), str(config)], env=mesh.env,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as judge:
        try:
            def silent() -> dict[str, Any]:
                return next((c for c in report(home).json()["components"]
                             if c["name"] == "prm_judge" and c["state"] == "DEGRADED"), {})

            told = until(silent, 60, "the alarm")
            assert told["alarms"][0]["name"] == "judge_failing"
            assert "components.prm_judge.base_url" in told["detail"] and "turns wait" in told["detail"]
        finally:
            judge.terminate()
