"""The documentation's commands and programs, run against the mesh: what a page says works."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.client.environment import EnvironmentServiceClient
from tests.docs.blocks import Block, blocks, documents
from tests.docs.shell import Reader

from .mesh import Mesh, until

_PORTS = {"policy_server": 50051, "env_server": 50052, "prm_judge": 50053, "trainer": 50054}


@pytest.fixture(scope="module")
def lesson(mesh: Mesh) -> Iterator[dict[str, str]]:
    """What the pages speak of: a session, a turn, a version that was trained, a lease. Afterwards the newest version
    answers, as before."""
    turns = [turn for n in range(4) for turn in
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
    for command in (("unpin",), ("resume",), ("rollback", str(version))):
        mesh.command(*command)


@pytest.fixture(scope="module")
def reader(mesh: Mesh, lesson: dict[str, str], grpcurl: str, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    work = tmp_path_factory.mktemp("reader")
    several = next(block for file in documents() for block in blocks(file, "yaml") if "mode: distributed" in block.text)
    (work / "distributed_config.yaml").write_text(several.text)
    return Reader(work, mesh.home.root, lesson, [str(Path(grpcurl).parent)] if "/" in grpcurl else [])


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
