"""Forgetting in the whole mesh: the order of the calls, what becomes of the versions, what is done when one is down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.client import forget as module
from openclaw_rl.client.forget import forget
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import COMPONENTS, Home, RunRecord, read_record, remove_record, write_record
from openclaw_rl.v1 import (
    component_pb2,
    component_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    weights_pb2,
)


class FakeMesh(component_pb2_grpc.ComponentServiceServicer):
    """Four components behind one server each, which remember what they were asked, in order."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.asked: list[str] = []
        self.requests: list[component_pb2.ForgetRequest] = []
        self.state = policy_pb2.PolicyState(active_version=0, kept_versions=[0], highest_version=0)
        self.trainer = component_pb2.ForgetResponse()  #: its answer
        self.head, self.rebuilding, self.paused = 0, [0], False  #: one figure of `rebuilding` for each look
        self.parents: dict[int, int | None] = {0: None}
        self.arrives = -1  #: version that is activated a moment before another one is
        self.meanwhile = -1  #: version that is activated while the trainer's versions are listed
        self.servers = {name: self._serve(name) for name in COMPONENTS}

    def _serve(self, name: str) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(2))
        component_pb2_grpc.add_ComponentServiceServicer_to_server(_Component(self, name), server)
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(_Policy(self), server)
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(_Trainer(self), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        write_record(self.home, RunRecord(name, 1, f"127.0.0.1:{port}"))
        return server

    def close(self) -> None:
        for server in self.servers.values():
            server.stop(0)


class _Component(component_pb2_grpc.ComponentServiceServicer):
    def __init__(self, mesh: FakeMesh, name: str) -> None:
        self.mesh, self.name = mesh, name

    def Forget(self, request, context):
        mesh = self.mesh
        mesh.asked.append(self.name if not request.versions else f"{self.name} {list(request.versions)}")
        mesh.requests.append(request)
        answer = component_pb2.ForgetResponse(turn_ids=[*request.turn_ids], removed={"turns": 1})
        if self.name == "trainer":
            answer.MergeFrom(mesh.trainer)
        else:
            answer.turn_ids.extend({f"turn of {self.name}"}.difference(request.turn_ids))
        if mesh.state.active_version in request.versions:
            answer.message = "it answers"
        return answer

    def GetStatus(self, request, context):
        mesh = self.mesh
        left = mesh.rebuilding.pop(0) if len(mesh.rebuilding) > 1 else mesh.rebuilding[0]
        if not left and mesh.head:
            mesh.state.active_version = mesh.head
        return component_pb2.GetStatusResponse(status=component_pb2.ComponentStatus(
            policy_version=mesh.head, gauges={"rebuilding": left, "paused": float(mesh.paused)}))


class _Policy(policy_pb2_grpc.PolicyServiceServicer):
    def __init__(self, mesh: FakeMesh) -> None:
        self.mesh = mesh

    def GetPolicy(self, request, context):
        return policy_pb2.GetPolicyResponse(state=self.mesh.state)

    def ActivateVersion(self, request, context):
        self.mesh.asked.append(f"activate {request.version}" + (f" pin {request.pin}" * request.HasField("pin")))
        if self.mesh.arrives >= 0:
            self.mesh.state.kept_versions.append(self.mesh.arrives)
            self.mesh.head, self.mesh.arrives = self.mesh.arrives, -1
        self.mesh.state.active_version = request.version
        return policy_pb2.ActivateVersionResponse(state=self.mesh.state)


class _Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(self, mesh: FakeMesh) -> None:
        self.mesh = mesh

    def ListVersions(self, request, context):
        if self.mesh.meanwhile >= 0:
            self.mesh.state.active_version = self.mesh.meanwhile
        return trainer_pb2.ListVersionsResponse(versions=[
            trainer_pb2.PolicyVersion(manifest=weights_pb2.VersionManifest(version=version, parent=parent))
            for version, parent in self.mesh.parents.items()])

    def GetVersion(self, request, context):
        return trainer_pb2.GetVersionResponse(version=trainer_pb2.PolicyVersion(detail="not sent yet"))


@pytest.fixture
def mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMesh]:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.01)
    mesh = FakeMesh(Home(tmp_path).create())
    yield mesh
    mesh.close()


def learned(mesh: FakeMesh, kept: list[int]) -> None:
    """Versions 1 to 4, of which 3 and 4 were trained on the session; 4 answers."""
    mesh.state = policy_pb2.PolicyState(active_version=4, kept_versions=kept, highest_version=4)
    mesh.parents = {0: None, 1: 0, 2: 1, 3: 2, 4: 3}
    mesh.trainer = component_pb2.ForgetResponse(versions=[3, 4], base_version=2, rebuilding=5, message="it is rebuilt")


def test_components_are_asked_in_the_rings_order_and_told_of_the_turns(mesh: FakeMesh) -> None:
    done = forget(mesh.home, "s")
    assert mesh.asked == list(COMPONENTS)
    assert len({request.before.ToNanoseconds() for request in mesh.requests}) == 1
    assert list(mesh.requests[3].turn_ids) == ["turn of policy_server", "turn of env_server", "turn of prm_judge"]
    assert done.outcome == "nothing_trained" and len(done.turns) == 3 and done.removed["trainer"] == {"turns": 1}


def test_no_void_version_answers_and_the_rebuilt_one_is_waited_for(mesh: FakeMesh) -> None:
    learned(mesh, [0, 2, 3, 4])
    mesh.head, mesh.rebuilding = 5, [5, 2, 0]
    said: list[str] = []
    done = forget(mesh.home, "s", say=said.append)
    assert mesh.asked[4:] == ["activate 2", "policy_server [3, 4]"]
    assert (done.outcome, done.void, done.base, done.active, done.rebuilding) == ("rebuilt", [3, 4], 2, 5, 0)
    assert "version 5 is rebuilt from version 2" in done.message and any("2 samples" in line for line in said)


def test_a_version_that_was_rebuilt_meanwhile_is_not_rolled_back(mesh: FakeMesh) -> None:
    learned(mesh, [0, 2, 3, 4])
    mesh.head, mesh.meanwhile = 5, 5
    done = forget(mesh.home, "s")
    assert mesh.asked[4:] == ["policy_server [3, 4]"]
    assert (done.outcome, done.active) == ("rebuilt", 5)


def test_a_version_that_is_rebuilt_in_that_very_moment_answers_again(mesh: FakeMesh) -> None:
    learned(mesh, [0, 2, 3, 4])
    mesh.arrives = 5
    done = forget(mesh.home, "s")
    assert mesh.asked[4:] == ["activate 2", "activate 5", "policy_server [3, 4]"]
    assert (done.outcome, done.active) == ("rebuilt", 5)


def test_a_policy_server_that_does_not_keep_the_base_goes_to_what_it_was_made_from(mesh: FakeMesh) -> None:
    learned(mesh, [0, 1, 3, 4])
    mesh.trainer.rebuilding = 0
    done = forget(mesh.home, "s")
    assert mesh.asked[4] == "activate 1" and done.outcome == "rolled_back" and done.message == "it is rebuilt"


def test_a_pin_on_a_void_version_is_lifted_and_said(mesh: FakeMesh) -> None:
    learned(mesh, [0, 2, 3, 4])
    mesh.state.pinned, mesh.trainer.rebuilding = True, 0
    assert "the pin on version 4 is lifted" in forget(mesh.home, "s").message
    assert mesh.asked[4] == "activate 2 pin False"


def test_a_rebuild_that_is_not_waited_for_or_cannot_go_on_is_told(mesh: FakeMesh) -> None:
    learned(mesh, [0, 2, 3, 4])
    mesh.head, mesh.rebuilding = 0, [5]
    done = forget(mesh.home, "s", wait=False)
    assert (done.outcome, done.rebuilding, done.active) == ("rebuilding", 5, 2)
    mesh.paused = True
    assert forget(mesh.home, "s").outcome == "rebuilding"
    mesh.paused, mesh.rebuilding, mesh.head = False, [1, 0], 2
    done = forget(mesh.home, "s")
    assert done.outcome == "rolled_back" and "made no version that can be served" in done.message


def test_one_that_is_down_is_named_the_others_are_done_and_the_same_call_completes_it(mesh: FakeMesh) -> None:
    mesh.servers["prm_judge"].stop(0).wait()
    remove_record(mesh.home, "prm_judge")
    with pytest.raises(MeshError, match=r"Not done: prm_judge: .* Done: policy_server, env_server, trainer\.") as error:
        forget(mesh.home, "s")
    assert error.value.retryable and "repeat the command" in error.value.message
    mesh.servers["prm_judge"] = mesh._serve("prm_judge")
    assert forget(mesh.home, "s").outcome == "nothing_trained"


def test_further_policy_servers_forget_too(mesh: FakeMesh) -> None:
    record = read_record(mesh.home, "prm_judge")
    assert record is not None
    done = forget(mesh.home, "s", further=[record.address])
    assert mesh.asked == ["policy_server", "prm_judge", *COMPONENTS[1:]]
    assert f"policy_server {record.address}" in done.removed


def test_the_command_asks_before_it_forgets(mesh: FakeMesh) -> None:
    run = CliRunner().invoke
    assert run(app, ["forget", "--session", "s"], input="n\n").exit_code == 1 and not mesh.asked
    assert run(app, ["forget", "--session", ""]).exit_code == 2
    done = run(app, ["forget", "--session", "s"], input="y\n")
    assert done.exit_code == 0 and "forgotten: 3 turns of session s" in done.output
    done = run(app, ["forget", "--session", "s", "--yes", "--json"])
    assert json.loads(done.stdout)["outcome"] == "nothing_trained"


def test_the_commands_that_pin(mesh: FakeMesh) -> None:
    run = CliRunner().invoke
    assert "version 3 is pinned" in run(app, ["pin", "3", "--reason", "a demonstration"]).output
    assert "no version is pinned" in run(app, ["unpin"]).output
    assert mesh.asked == ["activate 3 pin True", "activate 0 pin False"]
    assert json.loads(run(app, ["pin", "--json"]).stdout)["active_version"] == 0
