"""versions show and diff, pause, resume and train-now against servers in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from openclaw_rl.cli.app import app
from openclaw_rl.home import Home
from openclaw_rl.mesh.errors import MeshError, failed_precondition
from openclaw_rl.mesh.server import ComponentServer
from openclaw_rl.v1 import (
    component_pb2,
    environment_pb2,
    environment_pb2_grpc,
    judge_pb2,
    judge_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    turn_pb2,
    weights_pb2,
)

AT = Timestamp(seconds=1_790_000_000)
MAIN = turn_pb2.TURN_CLASS_MAIN
LONG = "\u9e6d " * 60 + "[b]end"  # two cells each


def version(number: int, parent: int | None = None, turns: tuple[str, ...] = (), settings: dict[str, str] | None = None,
            **metrics: float) -> trainer_pb2.PolicyVersion:
    return trainer_pb2.PolicyVersion(
        manifest=weights_pb2.VersionManifest(
            version=number, parent=parent, digest=str(number) * 64,
            algorithm="base" if parent is None else "combine", settings=settings, turn_ids=turns, metrics=metrics,
            created_at=AT),
        active=number == 4, activated_at=AT if number else None, detail="" if number == 4 else "another one is active")


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    """0 <- 1 <- 2 <- 3, and 1 <- 4 after a rollback."""

    def __init__(self) -> None:
        self.versions = [
            version(0), version(1, 0, ("t1", "t2"), {"lr": "1e-5", "beta": "0.1"}, loss=0.5, pause_ms=12.4),
            version(2, 1, ("t3",), {"lr": "1e-5", "beta": "0.1"}, loss=0.5, kl=0.25),
            version(3, 2, ("t4",), {"lr": "2e-5"}, loss=0.4), version(4, 1, ("t5",), {"lr": "1e-5", "beta": "0.1"})]
        self.paused: str | None = None

    async def ListVersions(self, request: Any, context: Any) -> trainer_pb2.ListVersionsResponse:
        return trainer_pb2.ListVersionsResponse(versions=self.versions)

    async def ListSamples(self, request: Any, context: Any) -> trainer_pb2.ListSamplesResponse:
        return trainer_pb2.ListSamplesResponse()

    async def Pause(self, request: trainer_pb2.PauseRequest, context: Any) -> trainer_pb2.PauseResponse:
        self.paused = request.reason
        return trainer_pb2.PauseResponse()

    async def Resume(self, request: Any, context: Any) -> trainer_pb2.ResumeResponse:
        self.paused = None
        return trainer_pb2.ResumeResponse()

    async def TrainNow(self, request: Any, context: Any) -> trainer_pb2.TrainNowResponse:
        if self.paused is not None:
            raise failed_precondition("PAUSED", "training is paused; resume it first")
        return trainer_pb2.TrainNowResponse(samples=3, message="a step on 3 samples begins")


class Policy(policy_pb2_grpc.PolicyServiceServicer):
    async def GetPolicy(self, request: Any, context: Any) -> policy_pb2.GetPolicyResponse:
        return policy_pb2.GetPolicyResponse(state=policy_pb2.PolicyState(active_version=4))


class Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    """Knows all turns but t2, one on a page."""

    async def ListTurns(self, request: environment_pb2.ListTurnsRequest,
                        context: Any) -> environment_pb2.ListTurnsResponse:
        number = int(request.page_token or 5)
        turn = environment_pb2.TurnSummary(turn_id=f"t{number}", session_id=f"ses{number}", turn_class=MAIN,
                                           request_text="What?\nNow!" if number == 1 else LONG, response_text="So.")
        return environment_pb2.ListTurnsResponse(turns=[turn] * (number != 2),
                                                 next_page_token=str(number - 1) if number > 1 else "")


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    async def ListJudgements(self, request: judge_pb2.ListJudgementsRequest,
                             context: Any) -> judge_pb2.ListJudgementsResponse:
        return judge_pb2.ListJudgementsResponse(judgements=[turn_pb2.Judgement(turn_id=turn, score=-1)
                                                            for turn in request.turn_ids if turn != "t5"])


@dataclass
class Mesh:
    """The fakes; those named by `stop` are gone."""

    trainer: Trainer
    servers: dict[str, ComponentServer] = field(default_factory=dict)

    async def run(self, *args: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, args)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    async def json(self, *args: str) -> Any:
        code, output = await self.run(*args, "--json")
        assert code == 0
        return json.loads(output)

    async def stop(self, name: str) -> None:
        await self.servers[name].stop(0)


@pytest.fixture
async def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mesh]:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))
    home, mesh = Home(tmp_path).create(), Mesh(Trainer())
    async with AsyncExitStack() as stack:
        for name, add, servicer, service in (
                ("trainer", trainer_pb2_grpc.add_TrainerServiceServicer_to_server, mesh.trainer, "TrainerService"),
                ("policy_server", policy_pb2_grpc.add_PolicyServiceServicer_to_server, Policy(), "PolicyService"),
                ("prm_judge", judge_pb2_grpc.add_JudgeServiceServicer_to_server, Judge(), "JudgeService"),
                ("env_server", environment_pb2_grpc.add_EnvironmentServiceServicer_to_server, Environment(),
                 "EnvironmentService")):
            server = ComponentServer(name, "127.0.0.1", 0, home, component_pb2.ComponentStatus)
            server.add(add, servicer, f"openclaw_rl.v1.{service}")
            await server.start()
            stack.push_async_callback(server.stop, 0)
            mesh.servers[name] = server
        yield mesh


async def test_show_tells_what_made_a_version(mesh: Mesh) -> None:
    listed = {v["version"]: v for v in await mesh.json("versions")}
    shown = await mesh.json("versions", "show", "1")
    assert shown | {"turns": ["t1", "t2"]} == listed[1] | {
        "settings": {"lr": "1e-5", "beta": "0.1"}, "activated_at": "2026-09-21T14:13:20.000+00:00", "pause_ms": 12.4,
        "detail": "another one is active"}
    assert shown["turns"] == [
        {"turn": "t1", "session": "ses1", "score": -1, "request": "What?\nNow!", "response": "So."},
        {"turn": "t2", "session": None, "score": -1, "request": None, "response": None}]
    code, output = await mesh.run("versions", "show", "1")
    for text in ("1" * 64, "beta 0.1, lr 1e-5", "decoding paused for 12 ms; another one is active",
                 "loss 0.5, pause_ms 12.4", "t1  -1  ses1\n  < What? Now!\n  > So.\nt2  -1  session not known\n"):
        assert text in output
    code, output = await mesh.run("versions", "show", "4")
    assert code == 0 and "4 *" in output and "t5   ?  ses5" in output


@pytest.mark.parametrize("width", [60, 100])
async def test_texts_are_cut_to_the_terminal(mesh: Mesh, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_rl.cli.versions.out", Console(width=width))
    for args in (("show", "3"), ("diff", "3", "4")):
        lines = (await mesh.run("versions", *args))[1].splitlines()
        assert all(cell_len(line) <= width for line in lines)
        assert any("<" in line and line.rstrip().endswith("\u2026") for line in lines)


async def test_show_without_those_that_are_down(mesh: Mesh) -> None:
    await mesh.stop("env_server")
    await mesh.stop("prm_judge")
    assert (await mesh.json("versions", "show", "2"))["turns"] == [
        {"turn": "t3", "session": None, "score": None, "request": None, "response": None}]


async def test_diff_goes_forward_and_back(mesh: Mesh) -> None:
    found = await mesh.json("versions", "diff", "1", "3")
    assert [(v["change"], v["version"], [turn["turn"] for turn in v["turns"]]) for v in found["versions"]] == [
        ("added", 2, ["t3"]), ("added", 3, ["t4"])]
    assert found["settings"] == {"lr": ["1e-5", "2e-5"], "beta": ["0.1", None]}
    assert found["metrics"] == {"loss": [0.5, 0.4], "pause_ms": [12.4, None]}
    found = await mesh.json("versions", "diff", "3", "4")
    assert [(v["change"], v["version"]) for v in found["versions"]] == [("removed", 3), ("removed", 2), ("added", 4)]
    code, output = await mesh.run("versions", "diff", "3", "4")
    assert code == 0 and "- version 3: loss 0.4\n- t4  -1  ses4\n" in output and "+ version 4: \n+ t5" in output
    assert ["lr", "2e-5", "1e-5"] in [line.split() for line in output.splitlines()]
    assert await mesh.run("versions", "diff", "2", "2") == (0, "settings and metrics are the same\n")


@pytest.mark.parametrize("args", [("show", "9"), ("diff", "1", "9"), ("diff", "9", "1")])
async def test_a_version_that_there_is_not(mesh: Mesh, args: tuple[str, ...]) -> None:
    with pytest.raises(MeshError, match="there is no version '9'; `openclaw-rl versions` tells"):
        await mesh.run("versions", *args)


async def test_wrong_usage(mesh: Mesh) -> None:
    for args in (("show",), ("show", "-1"), ("show", "new"), ("diff", "1"), ("--json", "show", "1")):
        assert (await mesh.run("versions", *args))[0] == 2


async def test_training_is_paused_and_resumed(mesh: Mesh) -> None:
    assert await mesh.run("train-now") == (0, "a step on 3 samples begins\n")
    assert await mesh.json("train-now") == {"samples": 3, "message": "a step on 3 samples begins"}
    code, output = await mesh.run("pause", "--reason", "a demonstration")
    assert (code, mesh.trainer.paused) == (0, "a demonstration")
    assert "openclaw-rl resume" in output
    with pytest.raises(MeshError, match="training is paused"):
        await mesh.run("train-now")
    assert await mesh.run("resume") == (0, "training goes on\n") and mesh.trainer.paused is None
    await mesh.run("pause")
    assert mesh.trainer.paused == ""
