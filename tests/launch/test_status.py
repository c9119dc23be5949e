"""What `status` shows of a component's alarms."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.launch import status as status_module
from openclaw_rl.launch.mesh_report import ComponentReport, MeshReport
from openclaw_rl.launch.supervisor import Process
from openclaw_rl.rpc.membership import Membership
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import Home, RunRecord, write_record
from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.v1.component_pb2 import Alarm, ComponentStatus

SINCE = Timestamp(seconds=1_700_000_000)


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> MeshReport:
    alarms = [Alarm(name="judge_failing", message="judge llm[x] does not work: key refused", since=SINCE),
              Alarm(name="transitions_waiting", message="7 turns wait", since=SINCE)]
    detail = "judge llm[x] does not work: key refused; 7 turns wait; 3 votes a turn"
    judge = ComponentReport("prm_judge", "DEGRADED", 7, "127.0.0.1:1", detail, ComponentStatus(alarms=alarms))
    others = [ComponentReport(name, "RUNNING", 8, "127.0.0.1:2", "all is well", ComponentStatus())
              for name in ("policy_server", "env_server", "trainer")]
    mesh = MeshReport([*others[:2], judge, others[2]])
    monkeypatch.setattr(status_module, "report", lambda home: mesh)
    return mesh


def test_alarms_are_shown_with_their_sentence_and_since_when(mesh: MeshReport) -> None:
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    [first] = [line for line in lines if line.startswith("prm_judge: judge llm[x]")]
    assert first.startswith("prm_judge: judge llm[x] does not work: key refused (for ") and "judge_failing)" in first
    assert any(line.startswith("prm_judge: 7 turns wait (for ") for line in lines)
    assert result.output.count("key refused") == 1, "the table does not say it again"
    assert "3 votes a turn" in result.output and "all is well" in result.output


def test_alarms_in_json(mesh: MeshReport) -> None:
    judge = mesh.json()["components"][2]
    since = "2023-11-14T22:13:20Z"
    assert judge["alarms"] == [
        {"name": "judge_failing", "message": "judge llm[x] does not work: key refused", "since": since},
        {"name": "transitions_waiting", "message": "7 turns wait", "since": since}]
    assert mesh.json()["components"][0]["alarms"] == []


def test_different_versions_in_one_mesh(mesh: MeshReport) -> None:
    for component, version in zip(mesh.components, ("0.4.0", "0.4.0", "0.3.9", ""), strict=True):
        assert component.status is not None
        component.status.package_version = version
    output = CliRunner().invoke(app, ["status"]).output
    assert "mesh: the components have different versions of openclaw-rl: 0.3.9 (prm_judge), " \
           "0.4.0 (policy_server, env_server); install the same one" in output
    assert len(mesh.json()["problems"]) == 1
    mesh["prm_judge"].status.package_version = "0.4.0"  # type: ignore[union-attr]
    assert mesh.json()["problems"] == []


@pytest.mark.parametrize(("process", "state", "detail"), [
    (Process("trainer", "BACKOFF", None, 0, 1, "no model", True, ""), "STARTING",
     "ended and is started again: no model"),
    (Process("trainer", "STARTING", 7, 0, 2, "no model", False, ""), "STARTING",
     "since 0 s; it ended before: no model"),
    (Process("trainer", "BACKOFF", None, 0, 3, "no model", True, ""), "DEGRADED", "has ended 3 times as soon as it was "
     "started; it is tried again after growing pauses (`openclaw-rl local-start` tries at once): no model"),
    (Process("trainer", "STARTING", 7, 0, 0, "", False, "loading the model"), "STARTING",
     "loading the model; since 0 s"),
    (Process("trainer", "RUNNING", 7, 0, 0, "", False, ""), "DEGRADED",
     "does not answer; see `openclaw-rl logs trainer`"),
    (Process("trainer", "EXITED", None, 0, 0, "", False, ""), "STOPPED",
     "was asked to end; `openclaw-rl local-start` starts it again")],
    ids=["pausing", "again", "often", "starting", "silent", "asked"])
def test_one_that_does_not_answer(process: Process, state: str, detail: str) -> None:
    process = replace(process, since=time.time())
    assert status_module._silent("trainer", process, True) == (state, detail)


async def test_another_mesh_at_a_recorded_address(tmp_path: Path) -> None:
    home = Home(tmp_path / "ours").create()
    ours = mesh_id.make(home)
    with activated(Ambient(identified=True, membership=Membership("mesh-b", "trainer"))):
        server = ComponentServer("trainer", "127.0.0.1", 0, Home(tmp_path / "theirs").create(), ComponentStatus)
        await server.start()
    try:
        write_record(home, RunRecord("trainer", 7, server.address, ""))
        trainer = (await asyncio.to_thread(status_module.report, home))["trainer"]
    finally:
        await server.stop(0)
    foreign = f"at {server.address} answers another mesh, mesh-b: it has taken the port, or the address is out of date"
    assert (trainer.state, trainer.detail) == ("STOPPED", foreign)
    assert trainer.status is None and ours != "mesh-b"
    running = Process("trainer", "RUNNING", 7, 0, 0, "", False, "")
    assert status_module._silent("trainer", running, True, foreign) == (
        "DEGRADED", f"{foreign}; see `openclaw-rl logs trainer`")
