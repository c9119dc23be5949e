"""A mesh handed on to another machine, and what status says of one that is not reached."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
import yaml

from openclaw_rl.config import ConfigError
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.distributed import export
from openclaw_rl.launch.distributed import plan as plans
from openclaw_rl.launch.distributed.plan import Plan
from openclaw_rl.launch.distributed.stop import everywhere
from openclaw_rl.launch.mesh_report import Answer, ComponentReport, MeshReport
from openclaw_rl.launch.start import local_start
from openclaw_rl.launch.status import report
from openclaw_rl.launch.supervisor import SupervisorError
from openclaw_rl.rpc import membership
from openclaw_rl.rpc.auth import ca
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.mesh_file import Cluster, MeshFile
from openclaw_rl.v1.component_pb2 import ComponentStatus


@pytest.fixture
def started(tmp_path: Path, plan: Plan) -> Home:
    """The home of the machine that started the mesh."""
    home = Home(tmp_path / "head").create()
    ca.make_authority(home.certs)
    ca.issue(home.certs, "operator")
    ca.issue(home.certs, "trainer")
    config = plans.for_clients(plan.config, plan.hosts)
    config.components.policy_server.api_keys = ["very-secret"]
    config.components.trainer.policy_servers = ["10.0.0.9:50051"]
    mesh_file.write(home, MeshFile(config, "https://10.0.0.1:30000", plan.hosts,
                                   Cluster("m", "10.0.0.1:6379", True, "10.0.0.1", plan.all_hosts)))
    return home


def test_export_and_join(started: Home, tmp_path: Path) -> None:
    file, home = tmp_path / "access.yaml", Home(tmp_path / "laptop")
    export.export(started, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert "very-secret" not in file.read_text() and "6379" not in file.read_text(), "addresses and certificates only"
    assert (started.certs / "ca.key").read_text() not in file.read_text()
    mesh = export.join(home, file)
    assert mesh.config.components.trainer.policy_servers == ["10.0.0.9:50051"], "what `forget` asks as well"
    assert mesh.addresses["trainer"] == "10.0.0.4:50054" and mesh.http_address == "https://10.0.0.1:30000"
    assert mesh_file.read(home) == mesh and mesh.cluster is None
    assert mesh.config.mesh_id == membership.id_of(home) == membership.id_of(started), "it is the same mesh there"
    assert {entry.name for entry in home.certs.iterdir()} == {"ca.crt", "operator.crt", "operator.key"}
    assert (home.certs / "operator.key").stat().st_mode & 0o777 == 0o600
    export.join(home, file)  # once more is no harm
    with pytest.raises(SupervisorError, match="started elsewhere"):
        everywhere(home, mesh, lambda text: None)
    assert export.leave(home) and not export.leave(home) and not list(home.certs.iterdir())


def test_what_can_not_be_passed_on_or_joined(started: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other").create()
    with pytest.raises(ConfigError, match="distributed-start"):
        export.export(other, tmp_path / "x")
    export.export(started, tmp_path / "x")
    with pytest.raises(ConfigError, match="a mesh was started from"):
        export.join(started, tmp_path / "x")
    with pytest.raises(ConfigError, match="stop-all"):
        export.leave(started)
    ca.make_authority(other.certs)
    with pytest.raises(ConfigError, match="a CA of its own"):
        export.join(other, tmp_path / "x")
    (tmp_path / "y").write_text(yaml.safe_dump(["no mesh"]))
    with pytest.raises(ConfigError, match="no file of `openclaw-rl mesh export`"):
        export.join(Home(tmp_path / "z"), tmp_path / "y")


def test_local_start_leaves_such_a_home_alone(started: Home) -> None:
    from rich.console import Console

    from openclaw_rl.config import Config

    with pytest.raises(StartError, match="belongs to a mesh on several hosts"):
        local_start(started, Config(), Console(quiet=True))


def test_the_python_api_leaves_what_an_agent_keeps_alone(started: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw_rl import Trainer
    from openclaw_rl.launch import leftovers

    monkeypatch.setattr(leftovers, "end_orphans", lambda home: pytest.fail("the agent's children were ended"))
    monkeypatch.setattr("openclaw_rl.launch.distributed.status.ask", lambda address, **_: Answer())
    monkeypatch.setattr("openclaw_rl.launch.distributed.status._probe", lambda host, address: "is silent")
    leftovers.clear_leftovers(started)
    with pytest.raises(StartError, match="trainer is silent; `openclaw-rl distributed-start` keeps this mesh"):
        Trainer.start(home=started)
    with pytest.raises(StartError, match="stop-all"):
        Trainer(started).stop()
    answers = ComponentReport("trainer", "RUNNING", status=ComponentStatus())
    monkeypatch.setattr("openclaw_rl.launch.start.report", lambda home: MeshReport([answers]))
    assert Trainer.start(home=started).home == started


def test_status_of_hosts(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's facts are told where a component is silent, unless they are old."""
    monkeypatch.setattr("openclaw_rl.launch.distributed.status.ask", lambda address, **_: Answer())
    home, now = Home(tmp_path).create(), time.time()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        config = plans.for_clients(plan.config, plan.hosts)
        config.components.env_server.address = f"127.0.0.1:{port}"
        mesh_file.write(home, MeshFile(config, "", {**plan.hosts, "env_server": "127.0.0.1"}))
        told = {"at": now, "hosts": {
            "10.0.0.4": {"state": "gone", "since": now - 60, "detail": "no answer: timed out"},
            "10.0.0.1": {"state": "reachable", "since": now - 9, "detail": ""},
            "10.0.0.3": {"state": "up", "since": 1.0, "detail": ""}},
            "components": {"prm_judge": {"host": "10.0.0.3", "state": "BACKOFF", "pid": 7, "failures": 4, "since": now,
                                         "reason": "no key"}}}
        (home.run / "hosts.json").write_text(json.dumps(told))
        mesh = report(home)
    assert mesh["trainer"].state == "STOPPED" and mesh["trainer"].host == "10.0.0.4"
    assert "host 10.0.0.4 is gone since" in mesh["trainer"].detail and "for 60 s" in mesh["trainer"].detail
    assert mesh["policy_server"].state == "STARTING" and "brought back" in mesh["policy_server"].detail
    assert mesh["prm_judge"].state == "DEGRADED" and "ended 4 times" in mesh["prm_judge"].detail
    assert "no key" in mesh["prm_judge"].detail
    assert "is there, and nothing listens" in mesh["env_server"].detail
    assert mesh.json()["hosts"]["10.0.0.4"]["state"] == "gone"
    assert mesh.json()["components"][3]["host"] == "10.0.0.4"
    monkeypatch.setattr("openclaw_rl.launch.distributed.status._probe", lambda host, address: f"asked {host} itself")
    (home.run / "hosts.json").write_text(json.dumps(told | {"at": now - 3600}))
    assert report(home)["trainer"].detail == "asked 10.0.0.4 itself" and not report(home).hosts
