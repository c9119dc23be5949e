"""The lines of the servers' READMEs, run with the real grpcurl."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from openclaw_rl.rpc.membership import MESH_KEY
from openclaw_rl.runtime import mesh_id
from tests.mesh.mesh import Mesh

SERVERS = Path(__file__).parents[2] / "servers"
COMPONENTS = {"policy": "policy_server", "environment": "env_server", "judge": "prm_judge", "trainer": "trainer"}
#: Lines that end by their own time limit, which grpcurl reports as a failure.
ENDLESS = "-max-time"
LINES = [pytest.param(name, line, id=f"{name}-{line.rpartition('/')[2].rpartition(' ')[2]}")
         for name in COMPONENTS
         for line in re.findall(r"^grpcurl .*$", (SERVERS / name / "README.md").read_text(), re.M)]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_line(mesh: Mesh, grpcurl: str, name: str, line: str) -> None:
    address = mesh.record(COMPONENTS[name]).address
    line = re.sub(r"127\.0\.0\.1:5005\d", address, line).replace("grpcurl", grpcurl, 1)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False,
                          env={**mesh.env, "PATH": programs})
    if ENDLESS in line:
        assert "DeadlineExceeded" in done.stderr and done.stdout.count('"at"') >= 2, done.stdout + done.stderr
        return
    assert done.returncode == 0, line + done.stdout + done.stderr
    if line.endswith("list"):
        assert {"grpc.health.v1.Health", "openclaw_rl.v1.ComponentService"} <= set(done.stdout.split())
        assert any(f"openclaw_rl.v1.{name.capitalize()}Service" == service for service in done.stdout.split())
    elif "/alarms" in line:  # of a mesh that other tests have used
        assert 'SERVING"' in done.stdout
    elif "Health/Check" in line:
        assert '"SERVING"' in done.stdout


def test_each_has_a_unary_call_and_a_stream() -> None:
    for name in COMPONENTS:
        lines = [param.values[1] for param in LINES if param.values[0] == name]
        assert any("GetStatus" in str(line) for line in lines) and any("WatchStats" in str(line) for line in lines)


def test_an_error_names_the_field(mesh: Mesh, grpcurl: str) -> None:
    address = mesh.record("policy_server").address
    done = subprocess.run([grpcurl, "-plaintext", address, "openclaw_rl.v1.PolicyService/Chat"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert "InvalidArgument" in done.stderr and "messages" in done.stderr


def test_describing_a_method_shows_its_comment(mesh: Mesh, grpcurl: str) -> None:
    address = mesh.record("policy_server").address
    done = subprocess.run([grpcurl, "-plaintext", address, "describe", "openclaw_rl.v1.PolicyService.GetPolicy"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "is a method" in done.stdout and "// " in done.stdout and "rpc GetPolicy" in done.stdout


@pytest.mark.parametrize(("component", "rpc"), [
    ("policy_server", "PolicyService/SyncWeights"), ("env_server", "EnvironmentService/RecordTurns"),
    ("prm_judge", "JudgeService/JudgeTransitions"), ("trainer", "TrainerService/SubmitSamples")])
def test_bytes_that_are_no_message_of_a_ring_stream(mesh: Mesh, component: str, rpc: str) -> None:
    logs = [*mesh.home.logs.glob(f"{component}*")]
    before = sum(log.read_text().count("Traceback") for log in logs)
    with grpc.insecure_channel(mesh.record(component).address) as channel:
        call = channel.stream_stream(f"/openclaw_rl.v1.{rpc}")(
            iter([b"\xff" * 9]), timeout=30, metadata=((MESH_KEY, mesh_id.read(mesh.home)),))
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert sum(log.read_text().count("Traceback") for log in logs) == before


def test_a_stream_is_joined_by_the_name_of_the_mesh(mesh: Mesh, grpcurl: str) -> None:
    address, id = mesh.record("trainer").address, mesh_id.read(mesh.home)
    for header, says in (("x: y", f"send the metadata openclaw-mesh: {id}"),
                         ("openclaw-mesh: mesh-b", "a client of the mesh mesh-b calls trainer")):
        done = subprocess.run([grpcurl, "-plaintext", "-H", header, "-d", '{"samples": [{}]}', address,
                               "openclaw_rl.v1.TrainerService/SubmitSamples"], capture_output=True, text=True,
                              timeout=60, check=False)
        assert "FailedPrecondition" in done.stderr and says in done.stderr and "WRONG_MESH" in done.stderr
