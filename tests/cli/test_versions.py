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

from openclaw_rl.cli.commands import app
from openclaw_rl.rpc.errors import MeshError, failed_precondition
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
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
    pinned = False

    async def GetPolicy(self, request: Any, context: Any) -> policy_pb2.GetPolicyResponse:
        return policy_pb2.GetPolicyResponse(state=policy_pb2.PolicyState(active_version=4, pinned=self.pinned))


class Environment(environment_pb2_grpc.EnvironmentServiceServicer):
    """Knows all turns but t2."""

    async def ListTurns(self, request: environment_pb2.ListTurnsRequest,
                        context: Any) -> environment_pb2.ListTurnsResponse:
        return environment_pb2.ListTurnsResponse(turns=[environment_pb2.TurnSummary(
            turn_id=turn, session_id=f"ses{turn[1:]}", turn_class=MAIN, response_text="So.",
            request_text="What?\nNow!" if turn == "t1" else LONG) for turn in request.turn_ids if turn != "t2"])


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
        "detail": "another one is active", "judges": {}, "gate": None, "deliveries": [], "kept": False}
    assert shown["turns"] == [
        {"turn": "t1", "session": "ses1", "score": -1, "request": "What?\nNow!", "response": "So."},
        {"turn": "t2", "session": None, "score": -1, "request": None, "response": None}]
    code, output = await mesh.run("versions", "show", "1")
    for text in ("1" * 64, "beta 0.1, lr 1e-5", "decoding paused for 12 ms; another one is active",
                 "loss 0.5, pause_ms 12.4", "t1  -1  ses1\n  < What? Now!\n  > So.\nt2  -1  unknown session\n"):
        assert text in output
    code, output = await mesh.run("versions", "show", "4")
    assert code == 0 and "4 *" in output and "t5   ?  ses5" in output


async def test_versions_that_do_not_serve_are_marked(mesh: Mesh) -> None:
    refused, taken, rolled = mesh.trainer.versions[1:4]
    refused.manifest.gate.verdict = weights_pb2.GATE_VERDICT_FAILED
    taken.detail, rolled.detail = "taken back by the watch: mean score fell", "rolled back"
    taken.live.turns, taken.live.mean = 24, -0.5
    listed = await mesh.json("versions")
    assert [v["state"] for v in listed] == ["", "refused", "taken back", "rolled back", "active"]
    assert listed[2]["live"] == {"turns": 24, "mean": -0.5} and listed[1]["live"] is None
    code, output = await mesh.run("versions")
    assert code == 0
    for text in ("refused", "taken back", "rolled back", "active", "-0.50 of 24"):
        assert text in output
    Policy.pinned = True
    try:
        assert [v["state"] for v in await mesh.json("versions")][4] == "pinned"
    finally:
        Policy.pinned = False


def tried(number: int, *failures: str) -> weights_pb2.GateReport:
    report = weights_pb2.GateReport(
        verdict=weights_pb2.GATE_VERDICT_FAILED if failures else weights_pb2.GATE_VERDICT_PASSED, failures=failures,
        metrics={"perplexity": 10.0 + number, "mean_tokens": 20.0, "seconds": 3.0 + number},
        before={"perplexity": 9.0, "mean_tokens": 20.0})
    report.answers.add(prompt="Why?", answer=f"Because of {number}.", tokens=4)
    report.answers.add(prompt=f"Only {number}?", answer="Yes.", tokens=2)
    return report


async def test_show_tells_the_gate_the_judges_and_the_figures_before_and_after(mesh: Mesh) -> None:
    shown = mesh.trainer.versions[3]
    shown.manifest.gate.CopyFrom(tried(3, "answers are too long"))
    shown.manifest.judges.update({"rules": 2, "llm:m": 1})
    shown.manifest.metrics.update({"logprob_before": -1.5, "logprob_after": -1.25, "kl": 0.0, "kl_after": 0.02})
    shown.live.turns, shown.live.mean = 20, 0.25
    shown.deliveries.add(address="10.0.0.1:50051", detail="can't be reached")
    found = await mesh.json("versions", "show", "3")
    assert found["gate"]["verdict"] == "failed" and found["gate"]["failures"] == ["answers are too long"]
    assert found["gate"]["answers"][0] == {"prompt": "Why?", "answer": "Because of 3.", "tokens": 4}
    assert (found["judges"], found["live"]) == ({"llm:m": 1, "rules": 2}, {"turns": 20, "mean": 0.25})
    assert found["deliveries"] == [
        {"address": "10.0.0.1:50051", "active": False, "activated_at": None, "detail": "can't be reached"}]
    assert [v["deliveries"] for v in await mesh.json("versions") if v["version"] == 3] == [found["deliveries"]]
    code, output = await mesh.run("versions", "show", "3")
    assert code == 0
    for text in ("refused: answers are too long",
                 "failed: mean_tokens 20 (base model 20), perplexity 13 (base model 9)",
                 "kl 0 -> 0.02, logprob -1.5 -> -1.25", "+0.25 of 20", "llm:m 1, rules 2",
                 "10.0.0.1:50051: can't be reached", "held out  Why?\n  > Because of 3.\n"):
        assert text in output


async def test_diff_puts_answers_side_by_side(mesh: Mesh) -> None:
    for number in (2, 3):
        mesh.trainer.versions[number].manifest.gate.CopyFrom(tried(number))
    found = await mesh.json("versions", "diff", "2", "3")
    assert found["gate"] == {"perplexity": [12.0, 13.0]}
    assert found["answers"] == [{"prompt": "Why?", "old": "Because of 2.", "new": "Because of 3."},
                                {"prompt": "Only 2?", "old": "Yes.", "new": None},
                                {"prompt": "Only 3?", "old": None, "new": "Yes."}]
    code, output = await mesh.run("versions", "diff", "2", "3")
    assert code == 0
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "held out: perplexity 12 13" in lines
    assert "held-out prompt version 2 version 3" in lines
    assert "Why? Because of 2. Because of 3." in lines
    assert "Only 2? Yes. not asked" in lines


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
    assert await mesh.run("resume") == (0, "training resumed\n") and mesh.trainer.paused is None
    await mesh.run("pause")
    assert mesh.trainer.paused == ""
