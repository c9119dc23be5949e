"""The commands `episodes` and `environments`, with an in-process environment server of fake environments."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.rollouts.servicer import SERVICE, EnvironmentServicer
from openclaw_rl.rpc.errors import CATALOGUE, MeshError
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2, environment_pb2_grpc
from tests.rollouts.episodes.rig import Rig, call, steps
from tests.support.waiting import eventually


class Mesh:
    def __init__(self, rig: Rig, server: ComponentServer) -> None:
        self.rig, self.server = rig, server

    async def run(self, *args: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, args)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    async def json(self, *args: str) -> Any:
        code, output = await self.run(*args, "--json")
        assert code == 0, output
        return json.loads(output)


@pytest.fixture
async def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mesh]:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    home, rig = Home(tmp_path / "home").create(), Rig(tmp_path)
    await rig.start()
    server = ComponentServer("env_server", "127.0.0.1", 0, home, component_pb2.ComponentStatus)
    server.add(environment_pb2_grpc.add_EnvironmentServiceServicer_to_server,
               EnvironmentServicer(rig.harness.tracker, rig.harness.store, rig.pool, rig.episodes), SERVICE)
    await server.start()
    yield Mesh(rig, server)
    await rig.episodes.close()
    await server.stop(0)
    await rig.stop()


async def test_a_run_and_what_is_told_of_it(mesh: Mesh) -> None:
    found = await mesh.json("episodes", "run", "--type", "fake", "--groups", "2", "--group-size", "3", "--seed", "1")
    [run] = found["runs"]
    assert found["cancelled"] is False
    assert (run["type"], run["groups"], run["total"], run["over"], run["broken"], run["success"], run["steps"]) == (
        "fake", 2, 6, 6, 0, 1.0, 12)
    listed = await mesh.json("episodes", "list", "--run", run["run"])
    assert sorted(episode["episode"] for episode in listed) == sorted(
        episode["episode"] for episode in run["episodes"])
    shown = await mesh.json("episodes", "show", listed[0]["episode"])
    assert [turn["step"] for turn in shown["turns"]] == [1, 2] and shown["outcome"] == 1.0
    code, output = await mesh.run("episodes", "show", listed[0]["episode"])
    assert code == 0 and "said 2" in output and 'say({"text": "done"})' in output
    code, output = await mesh.run("episodes", "run", "-t", "fake", "-g", "1", "--group-size", "2", "--no-train")
    assert code == 0 and "1/1" in output and "2/2" in output and "1.00" in output
    code, output = await mesh.run("episodes", "list")
    assert code == 0 and output.count("1.00") == 8


async def test_all_types(mesh: Mesh) -> None:
    found = await mesh.json("episodes", "run", "--type", "all", "--group-size", "1", "--split", "held_out")
    assert [(run["type"], run["total"]) for run in found["runs"]] == [("fake", 1)]
    mesh.rig.kind.trouble = "Xvfb is missing: apt-get install xvfb"
    mesh.rig.pool.warm_pool("fake").availability._checked_at = None
    await mesh.rig.pool.warm_pool("fake").availability.refresh()
    with pytest.raises(MeshError, match=r"no environment can be used: fake: .*Xvfb is missing"):
        await mesh.run("episodes", "run", "--type", "all")


async def test_what_went_wrong_is_said(mesh: Mesh) -> None:
    mesh.rig.policy.script = steps(MeshError(CATALOGUE["INVALID_ARGUMENT"][0], "INVALID_ARGUMENT", "no \x1b[31mtools"))
    code, output = await mesh.run("episodes", "run", "--type", "fake", "--groups", "1", "--group-size", "2")
    assert code == 1 and "2 broken off: no" in output and "\x1b[31m" not in output
    for args, text in ((("--type", "moon"), "there is no environment 'moon'"),
                       (("--type", "fake", "--task", "x"), "there is no task 'x'"),
                       (("--type", "fake", "--group-size", "5000"), "group_size: 5000")):
        with pytest.raises(MeshError, match=text):
            await mesh.run("episodes", "run", *args)
    code, output = await mesh.run("episodes", "run", "--type", "fake", "--split", "all")
    assert code == 2 and "--no-train" in output
    code, output = await mesh.run("episodes", "run", "--type", "all", "--task", "t0")
    assert code == 2
    with pytest.raises(MeshError, match="there is no episode 'ep_x'"):
        await mesh.run("episodes", "show", "ep_x")


async def test_environments_tasks_and_leases(mesh: Mesh) -> None:
    [listed] = await mesh.json("environments")
    assert (listed["type"], listed["capacity"], listed["leased"], listed["tasks"], listed["problem"]) == (
        "fake", 4, 0, 6, "")
    tasks = {task["task"]: task for task in await mesh.json("environments", "tasks", "fake")}
    assert tasks["h0"]["split"] == "held_out" and tasks["bad"]["problem"]
    await mesh.rig.pool.acquire("fake", "mine", holder="me")
    await mesh.rig.pool.reset("mine", "t0")
    [lease] = await mesh.json("environments", "leases")
    assert (lease["lease"], lease["holder"], lease["task"]) == ("mine", "me", "t0")
    watching = asyncio.create_task(mesh.run("environments", "watch", "mine"))
    await eventually(lambda: any(environment.views for environment in mesh.rig.kind.alive))  # one is the leased one
    await mesh.rig.pool.release("mine")
    code, output = await watching
    assert code == 0 and "the lease has ended" in output
    for args in (("environments",), ("environments", "tasks", "fake"), ("environments", "leases")):
        code, output = await mesh.run(*args)
        assert code == 0 and output
    with pytest.raises(MeshError, match="there is no environment 'moon'"):
        await mesh.run("environments", "tasks", "moon")


async def test_ctrl_c_cancels_the_run(mesh: Mesh) -> None:
    mesh.rig.policy.script = steps(call("say", {"text": "a"}), asyncio.get_running_loop().create_future())
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "openclaw-rl"), "episodes", "run", "--type", "fake", "--groups", "1",
        "--json", env=dict(os.environ), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    await eventually(lambda: mesh.rig.policy.running == 4, 60)
    process.send_signal(signal.SIGINT)
    output, errors = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 130 and b"their sandboxes released" in errors, errors
    assert json.loads(output)["cancelled"] is True
    await eventually(lambda: not mesh.rig.pool.leases() and mesh.rig.episodes.running == 0)
    assert {episode.error for episode in mesh.rig.listed()} == {"cancelled"}
