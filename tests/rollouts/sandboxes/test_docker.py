"""The Docker API's back end, against a real engine of the test's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.environments.terminal.plugin import make as make_terminal
from openclaw_rl.rollouts.sandboxes import factory as make
from openclaw_rl.rollouts.sandboxes.docker import backend as module
from openclaw_rl.rollouts.sandboxes.docker.backend import Docker
from openclaw_rl.rollouts.sandboxes.interface import Limits, Sandbox, SandboxError, Spec
from openclaw_rl.rollouts.sandboxes.running import others_paused
from openclaw_rl.rollouts.tasks.task import Action
from tests.rollouts.sandboxes.engine import BUSYBOX

SPEC = Spec(Limits(memory=64 * 2**20, disk=8 * 2**20, processes=32), BUSYBOX, {"A": "b c"})
ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def docker(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Docker:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    return Docker(f"test{os.getpid()}")


@pytest.fixture
async def container(docker: Docker) -> AsyncIterator[Sandbox]:
    sandbox = await docker.make(SPEC)
    yield sandbox
    await sandbox.close()


async def test_processes_and_files(container: Sandbox) -> None:
    finished = await container.run(["sh", "-c", 'cat; echo "$A" >&2; pwd; id -u; exit 7'], stdin=b"in\n", folder="/tmp")
    assert (finished.output, finished.code) == (b"in\nb c\n/tmp\n1000\n", 7)
    data = os.urandom(2_000_000)
    await container.write("a folder/x", data)
    assert await container.read("a folder/x", 3_000_000) == data
    with pytest.raises(SandboxError, match="no such file"):
        await container.read("nothing")
    process = await container.start(["cat"])
    await process.write(b"one")
    assert await process.read() == b"one"
    await process.kill()
    finished = await container.run(["sh", "-c", "sleep 611 & sleep 612"], seconds=0.5)
    assert finished.timed_out and finished.code is None
    finished = await container.run(["cat", "/dev/zero"], most=1000)
    assert finished.truncated and len(finished.output) == 1000 and finished.code is None
    assert b"sleep 61" not in (await container.run(["ps"])).output
    process = await container.start(["sh", "-c", "n=0; while :; do n=$((n+1)); echo $n >n; done"])
    async with others_paused(container):
        first = await container.read("n")
        await asyncio.sleep(0.1)
        assert await container.read("n") == first
    deadline = time.monotonic() + 20
    while await container.read("n") == first:
        assert time.monotonic() < deadline
    await process.kill()


async def test_limits(container: Sandbox) -> None:
    program = "ip addr; touch /new; cat /proc/self/status; ls /var/run/docker.sock"
    said = (await container.run(["sh", "-c", program])).output
    assert b"lo:" in said and b"eth" not in said and b"Read-only file system" in said
    assert b"CapEff:\t0000000000000000" in said and b"NoNewPrivs:\t1" in said and b"No such file" in said
    finished = await container.run(["sh", "-c", "head -c 99000000 /dev/zero >f; head -c 99000000 /dev/zero >/tmp/f"])
    assert finished.code != 0
    finished = await container.run(["sh", "-c", "x=aaaaaaaa; while :; do x=$x$x; done"], seconds=20)
    assert finished.code == 137 and await container.killed() >= 1
    finished = await container.run(["sh", "-c", "b() { b | b & }; b; b; sleep 0.5"], seconds=5)
    assert b"can't fork" in finished.output or finished.timed_out
    await container.end_all()
    assert container.problem or (await container.run(["sh", "-c", "echo $(echo on)"])).output == b"on\n"


async def test_a_container_that_ends_says_so_and_leftovers_are_removed(docker: Docker) -> None:
    first, second, third = await asyncio.gather(*(docker.make(SPEC) for _ in range(3)))
    other = await Docker("another").make(SPEC)
    running = asyncio.ensure_future(first.run(["sleep", "60"], seconds=60))
    await asyncio.to_thread(docker._client.kill, first._container)  # type: ignore[attr-defined]
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 20)
    assert "ended from outside" in first.problem
    await second.close()
    await second.close()
    assert await asyncio.to_thread(module.remove_leftovers, docker._label) == 2  # the one that ended, and the third
    with pytest.raises(SandboxError):
        await third.run(["true"])
    assert (await other.run(["echo", "on"])).output == b"on\n"
    for sandbox in (first, third, other):
        await sandbox.close()
    assert await asyncio.to_thread(module.remove_leftovers, "another") == 0


async def test_an_image_built_here_serves_a_terminal(docker: Docker, tmp_path: Path) -> None:
    image = "openclaw/terminal-env:test"
    problem = str(await docker.validate(Spec(SPEC.limits, image)))
    assert f"servers/environment/build-image terminal --for docker --tag {image}" in problem
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(ROOT / "servers/environment/build-image"), "terminal", "--for", "docker",
                         "--tag", image], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = EnvironmentConfig(count=1, image=image, memory=128 * 2**20)
    auto = make.backend(config, tmp_path)
    kind = make_terminal(config, Context("terminal", tmp_path, auto))
    assert not await kind.validate() and auto.name == "docker"
    environment = await kind.make()
    try:
        await environment.reset(None, None)
        for command, text in (("cd /tmp; x=5; git --version", "git version"),
                              ("echo $x$PWD >&2; false", "5/tmp\n[exit"), ("python3 -c 'print(6 * 7)'", "42"),
                              ("sleep 30", "interrupted"), ("echo $x", "5")):
            said = (await environment.step(Action("run", {"command": command, "timeout": 3}), 30)).observation.text
            assert text in said
    finally:
        await environment.close()


async def test_an_engine_that_goes_away(docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await docker.validate(SPEC)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    began = time.monotonic()
    assert "no container engine answers" in str(await Docker("x").validate(SPEC))
    assert time.monotonic() - began < 30
    assert await asyncio.to_thread(module.remove_leftovers, "x") == 0
