"""`openclaw-rl doctor` finds what is wrong before a start does, and changes nothing."""

from __future__ import annotations

import json
import os
import resource
import socket
import sqlite3
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.config import Config
from openclaw_rl.launch.doctor import examination, machine, mesh
from openclaw_rl.launch.doctor.finding import Finding, Subject
from openclaw_rl.launch.mesh_report import ComponentReport, MeshReport
from openclaw_rl.rollouts.sandboxes import factory
from openclaw_rl.rollouts.sandboxes.interface import Unusable
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.storage import database
from openclaw_rl.training.backends.megatron import hardware


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def subject(home: Home, *, states: dict[str, str] | None = None, **components: Any) -> Subject:
    """A mesh in which these components have these states, and the others don't run."""
    there = [ComponentReport(name, (states or {}).get(name, "STOPPED"), address="127.0.0.1:1") for name in COMPONENTS]
    waiting = [component.name for component in there if component.state != "RUNNING"]
    return Subject(home, Config.model_validate({"components": components}), MeshReport(there), [*COMPONENTS], waiting)


def one(findings: Any, level: str) -> Finding:
    [finding] = findings
    assert finding.level == level, finding
    assert bool(finding.cure) == (level != "ok"), finding
    return finding


@pytest.fixture
def no_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes are refused at once: to try one takes seconds."""
    async def refuse(spec: Any) -> Rejection[Unusable]:
        return Rejection(Unusable.NOT_PERMITTED, "no namespaces; allow them")

    monkeypatch.setattr(factory, "backend", lambda *_: SimpleNamespace(validate=refuse))


@pytest.mark.usefixtures("no_sandboxes")
def test_a_machine_without_a_mesh(home: Home) -> None:
    home.root.mkdir(mode=0o700)
    free: dict[str, Any] = {"policy_server": {"port": 0, "grpc_port": 0}}
    free |= {name: {"port": 0} for name in COMPONENTS[1:]}
    home.config_file.write_text(json.dumps({"components": free}))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert list(found) == ["libraries", "limits", "clock", "proxies", "home", "stores", "configuration", "disk",
                           "memory", "gpu", "model", "keys", "certificates", "ports", "trainer", "sandboxes", "mesh"]
    assert found["sandboxes"]["level"] == "warn" and found["sandboxes"]["cure"].startswith("allow them")
    assert {name for name, finding in found.items() if finding["level"] == "fail"} == set()
    assert done.exit_code == 0
    assert [path.name for path in home.root.iterdir()] == ["config.yaml"]


def test_a_wrong_configuration_is_not_the_end(home: Home) -> None:
    home.root.mkdir(mode=0o700)
    home.config_file.write_text("components: {trainer: {prt: 3}}")
    done = CliRunner().invoke(app, ["doctor"])
    lines = done.stdout.splitlines()
    assert done.exit_code == 1
    assert lines[-2].startswith("✗ configuration ") and ":1: components.trainer.prt: unknown key" in lines[-2]
    assert lines[-1].split()[0] == "->" and str(home.config_file) in lines[-1]
    assert any(line.startswith("✓ stores") for line in lines)


def test_a_check_that_breaks_is_a_finding(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(of: Home) -> Any:
        raise RuntimeError("a fault")
        yield

    monkeypatch.setattr(examination, "_OF_MACHINE", [broken])
    monkeypatch.setattr(examination, "_OF_MESH", [])
    found = list(examination.examine(home))
    assert [(f.check, f.level) for f in found] == [("broken", "warn"), ("configuration", "ok")]
    assert found[0].text == "can't be checked: RuntimeError: a fault"


def test_libraries(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    assert one(machine.libraries(home), "ok").text.startswith("openclaw-rl ")
    monkeypatch.setattr(metadata, "version", lambda name: "1.0" if name == "grpcio" else real(name))
    assert one(machine.libraries(home), "fail").cure.startswith("pip install 'grpcio>=")

    def absent(name: str) -> str:
        if name in ("orjson", "nicegui"):  # of the latter nobody who needs no dashboard has to hear
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert one(machine.libraries(home), "fail").text.startswith("orjson is not installed, and >=")


def test_limits(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert "256 files" in one(machine.limits(home), "warn").text
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    one(machine.limits(home), "ok")


def test_a_clock_that_is_behind(home: Home) -> None:
    folder = home.component("trainer")
    folder.mkdir(parents=True)
    (folder / "state.db").touch()
    one(machine.clock(home), "ok")
    os.utime(folder / "state.db", (time.time() + 7200,) * 2)
    assert "behind the newest file" in one(machine.clock(home), "fail").text


def test_proxies(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    assert one(machine.proxies(home), "ok").text == "none"
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        port = proxy.getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{port}")
        assert one(machine.proxies(home), "ok").text == f"HTTPS_PROXY http://***@127.0.0.1:{port}"
    silent = one(machine.proxies(home), "warn")
    assert "does not answer" in silent.text and "secret" not in silent.text and "unset HTTPS_PROXY" in silent.cure
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:port")
    one(machine.proxies(home), "warn")


def test_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=150 * 2**20))
    assert "150 MB free and needs 2048 MB" in one(machine.disk(subject(home)), "fail").text
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**40))
    monkeypatch.setattr("psutil.disk_partitions", lambda all: [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(home.root.parent), fstype="nfs4")])
    assert "nfs4" in one(machine.disk(subject(home)), "warn").text


def test_gpu(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "find", lambda: hardware.Hardware([], 2**34, "nvidia-smi is not there"))
    one(machine.gpu(subject(home)), "ok")
    wanted = one(machine.gpu(subject(home, trainer={"device": "cuda"})), "fail")
    assert wanted.cure == "components.trainer.device: auto"
    monkeypatch.setattr(hardware, "find", lambda: hardware.Hardware([80 << 30]))
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cpu")
    assert "can't use it" in one(machine.gpu(subject(home)), "warn").text
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0")
    assert one(machine.gpu(subject(home)), "ok").text == "80 GB"


def test_the_home(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(mesh.folder(home), "ok").text.endswith("is made at the first start")
    home.root.mkdir(mode=0o755)
    home.root.chmod(0o755)
    assert "mode 0755" in one(mesh.folder(home), "warn").text
    home.root.chmod(0o700)
    one(mesh.folder(home), "ok")
    monkeypatch.setattr(os, "access", lambda *_: False)
    one(mesh.folder(home), "fail")
    home.root.rmdir()
    home.root.write_text("")
    assert "is a file" in one(mesh.folder(home), "fail").text


def test_stores_of_a_newer_release_and_of_another_program(home: Home) -> None:
    file = home.component("trainer") / "state.db"
    file.parent.mkdir(parents=True)
    database.Database(file).close()
    assert one(mesh.stores(home), "ok").text.startswith("1 of 4")
    for pragma, told in (("user_version = 99", "newer"), ("application_id = 7", "another program")):
        with sqlite3.connect(file) as db:
            db.execute(f"PRAGMA {pragma}")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        assert told in one(mesh.stores(home), "fail").text
        with sqlite3.connect(file) as db:
            db.execute("PRAGMA user_version = 1")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()


def test_a_model_that_is_not_there_and_one_that_is_broken(home: Home, tmp_path: Path) -> None:
    missing = subject(home, policy_server={"engine": "embedded", "model": str(tmp_path / "nowhere")})
    assert one(mesh.model(missing), "fail").text.endswith("nowhere is not there")
    (tmp_path / "empty").mkdir()
    broken = subject(home, policy_server={"model": str(tmp_path / "empty")})
    assert "config.json" in one(mesh.model(broken), "fail").text
    assert one(mesh.model(subject(home)), "ok").text.endswith("comes with the first start")


def test_keys(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    api = subject(home, policy_server={"model": "gpt-4o-mini", "engine": "openai"})
    assert one(mesh.keys(api), "fail").cure.startswith("set OPENAI_API_KEY in the environment")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    one(mesh.keys(api), "ok")


def test_certificates(home: Home) -> None:
    one(mesh.certificates(subject(home)), "ok")
    assert "openclaw-rl init" in one(mesh.certificates(subject(home, trainer={"host": "0.0.0.0"})), "fail").cure


def test_a_taken_port(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted: dict[str, Any] = {"policy_server": {"port": 0, "grpc_port": 0}, "env_server": {"port": 0},
                                  "prm_judge": {"port": 0}, "trainer": {"port": port}}
        found = one(mesh.ports(subject(home, **wanted)), "fail")
        assert f"127.0.0.1:{port} is in use by pid {os.getpid()}" in found.text and "another port" in found.cure
        runs = subject(home, states={"trainer": "RUNNING"}, **wanted)
        assert one(mesh.ports(runs), "ok").text == "ours: 127.0.0.1:1"


def test_a_trainer_without_its_gpus(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = list(mesh.trainer(subject(home, trainer={"gpus": 8})))
    assert found and {finding.level for finding in found} == {"fail"}
    assert list(mesh.trainer(Subject(home, Config(), MeshReport()))) == []


@pytest.mark.usefixtures("no_sandboxes")
def test_sandboxes_matter_where_they_are_configured(home: Home) -> None:
    one(mesh.sandboxes(subject(home)), "warn")
    wanted = subject(home, env_server={"environments": {"shell": {"count": 1, "kind": "terminal"}}})
    assert one(mesh.sandboxes(wanted), "fail").text == "environment shell: no namespaces"


def test_components(home: Home) -> None:
    assert "does not run" in one(mesh.components(subject(home)), "ok").text
    states = dict.fromkeys(COMPONENTS, "RUNNING") | {"prm_judge": "DEGRADED", "trainer": "FAILED"}
    found = list(mesh.components(subject(home, states=states)))
    assert [(f.level, f.cure) for f in found] == [("ok", ""), ("ok", ""), ("warn", "openclaw-rl logs prm_judge"),
                                                  ("fail", "openclaw-rl logs trainer")]
