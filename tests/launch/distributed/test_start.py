"""A second start, what is prepared on the hosts, and the end of a mesh; the hosts are not there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.distributed import certificates, resume, steps, stop
from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed import plan as plans
from openclaw_rl.launch.distributed import start as start_module
from openclaw_rl.launch.distributed.host import HostError
from openclaw_rl.launch.distributed.start import DistributedStart
from openclaw_rl.launch.mesh_report import ComponentReport, MeshReport
from openclaw_rl.launch.supervisor import SupervisorError
from openclaw_rl.rpc.auth.keys import KeyFile
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.mesh_file import Cluster, MeshFile
from openclaw_rl.v1.component_pb2 import ComponentStatus
from tests.launch.distributed.conftest import FakeHost, make_config

NOBODY = HostError("no Ray cluster answers at 10.0.0.1:6379 (x)")
FACTS: dict[str, Any] = {"components": {}}
Answer = Callable[[str, dict[str, Any]], Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return Home(tmp_path / "home").create()


def reached(monkeypatch: pytest.MonkeyPatch, answer: Answer, names: list[str] | None = None) -> dict[str, FakeHost]:
    plan = plans.make(make_config())
    found = {name: FakeHost(name, answer) for name in names or plan.all_hosts}
    monkeypatch.setattr(hosts, "reach", lambda some, settings: {name: found[name] for name in some})
    return found


def running(home: Home, ours: bool = True) -> MeshFile:
    plan = plans.make(make_config())
    mesh = MeshFile(plans.for_clients(plan.config, plan.hosts), "", plan.hosts,
                    Cluster(plan.mesh, "10.0.0.1:6379", ours, "10.0.0.1", plan.all_hosts))
    mesh_file.write(home, mesh)
    return mesh


class Second:
    """A second start."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch, *, answers: list[Any], rises: bool = True,
                 components: bool = True) -> None:
        self.mesh, self.undone, self.renewed = running(home), False, False
        self.reports = MeshReport([ComponentReport(name, "RUNNING", status=ComponentStatus() if components else None)
                                   for name in self.mesh.hosts])
        monkeypatch.setattr(resume, "report", lambda home: self.reports)
        monkeypatch.setattr(DistributedStart, "undo", lambda this, mesh: setattr(self, "undone", True))
        monkeypatch.setattr(certificates, "provide", lambda *_args, **_named: setattr(self, "renewed", True))

        def answer(step: str, payload: dict[str, Any]) -> Any:
            if step == "on-ray":
                return answers.pop(0) if len(answers) > 1 else answers[0]
            assert step == "ray-start"
            return True if rises else HostError("ray.json is missing or damaged")

        self.hosts = reached(monkeypatch, answer)
        self.start = DistributedStart(home, make_config(), Console(quiet=True))

    def __call__(self) -> MeshReport | None:
        return resume.look(self.start, self.mesh)


def test_a_mesh_that_runs_is_found_and_its_certificates_renewed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    second = Second(home, monkeypatch, answers=[FACTS])
    assert second() is second.reports and second.renewed and not second.undone


def test_a_head_that_can_not_be_asked_is_no_reason_to_end_a_mesh(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    second = Second(home, monkeypatch, answers=[HostError("no answer in 120 s")])
    with pytest.raises(StartError, match=r"can't be asked: no answer in 120 s; repeat when it can"):
        second()
    assert not second.undone


def test_a_head_that_came_back_goes_on(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    second = Second(home, monkeypatch, answers=[NOBODY, None, FACTS])
    assert second() is second.reports and not second.undone
    assert [step for step, _ in second.hosts["10.0.0.1"].asked] == ["on-ray", "ray-start", "on-ray", "on-ray"]


@pytest.mark.parametrize(("answers", "rises"), [([NOBODY], False), ([NOBODY], True), ([None], True)])
def test_what_is_surely_gone_is_cleared_away(home: Home, monkeypatch: pytest.MonkeyPatch, answers: list[Any],
                                             rises: bool) -> None:
    second = Second(home, monkeypatch, answers=answers, rises=rises, components=False)
    assert second() is None and second.undone


def test_components_without_their_controller_are_left_alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    second = Second(home, monkeypatch, answers=[None])
    with pytest.raises(StartError, match=r"their controller on 10\.0\.0\.1 does not: repeat in a minute"):
        second()
    assert not second.undone


def test_a_preparation_that_fails_leaves_no_secrets_on_the_hosts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[bool] = []

    def fails(self: DistributedStart) -> None:
        raise HostError("10.0.0.2: no space left on device")

    monkeypatch.setattr(DistributedStart, "check", lambda self: [])
    monkeypatch.setattr(DistributedStart, "_prepare", fails)
    monkeypatch.setattr(DistributedStart, "undo", lambda self: undone.append(True))
    with pytest.raises(StartError, match="no space left"):
        DistributedStart(home, make_config(), Console(quiet=True)).start(1)
    assert undone


def test_a_key_that_was_revoked_on_its_host_stays_so(tmp_path: Path) -> None:
    here, there = KeyFile(tmp_path / "keys.json"), tmp_path / "there"
    here.add("one", ["chat"])
    steps.do("keys", {"home": str(there), "content": here.path.read_text()})
    file = KeyFile(there / "keys.json")
    file.revoke("one")
    file.add("two", ["read"])
    here.add("three", ["chat"], expires=time.time() + 60)
    steps.do("keys", {"home": str(there), "content": here.path.read_text()})
    assert {key.name: key.dead() for key in file.read()} == {"one": "has been revoked", "two": "", "three": ""}
    assert file.path.stat().st_mode & 0o777 == 0o600
    here.revoke("three")
    steps.do("keys", {"home": str(there), "content": here.path.read_text()})
    assert {key.name for key in file.read() if not key.dead()} == {"two"}
    file.path.write_text("no keys")
    with pytest.raises(steps.StepError, match="is damaged"):
        steps.do("keys", {"home": str(there), "content": here.path.read_text()})


def test_who_gets_the_keys(home: Home, tmp_path: Path) -> None:
    config = make_config()
    config.components.trainer.keys_port = 50064
    config.security.keys = tmp_path / "mine.json"
    begun = DistributedStart(home, config, Console(quiet=True))
    assert [host for host in begun.plan.all_hosts if begun._has_entrypoint(host)] == ["10.0.0.1", "10.0.0.4"]
    assert plans.derived(begun.plan, "10.0.0.4").security.keys is None, "they are in the host's home"
    file = KeyFile(config.security.keys)
    file.add("old", ["chat"])
    file.revoke("old")
    text = begun._keys()
    assert text is not None and len(json.loads(text)["keys"]) == 2, "a revoked key lets nobody in"
    assert begun._keys() == text


def test_stop_all_goes_on_without_a_host_that_is_gone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, said = running(home), list[str]()
    gone = HostError("can't be reached by ssh: No route to host")
    found = reached(monkeypatch, lambda step, payload: [])
    found["10.0.0.4"].answer = lambda step, payload: gone
    monkeypatch.setattr(stop, "_listens", lambda address: False)
    monkeypatch.setattr(stop, "clear_launcher", lambda mesh: None)
    with pytest.raises(SupervisorError, match=r"10\.0\.0\.4: can't be reached.*\n.*--forget-unreachable"):
        stop.everywhere(home, mesh, said.append)
    assert mesh_file.read(home) is not None
    found["10.0.0.3"].answer = lambda step, payload: ["pid 7: raylet"]
    with pytest.raises(SupervisorError, match=r"^10\.0\.0\.3: still runs: pid 7"):
        stop.everywhere(home, mesh, said.append, forget=True)
    found["10.0.0.3"].answer = lambda step, payload: []
    stop.everywhere(home, mesh, said.append, forget=True)
    assert mesh_file.read(home) is None and f"10.0.0.4 is forgotten: {gone}" in said


def test_what_is_left_on_a_cluster_that_was_joined_is_told(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = running(home, ours=False)

    def answer(step: str, payload: dict[str, Any]) -> Any:
        if payload["what"] == "down":
            return {host: ["trainer"] for host in mesh.hosts.values()}
        return {"10.0.0.2": ["pid 8: python"], "10.0.0.3": HostError("no answer in 120 s")}.get(payload["host"], [])

    found = reached(monkeypatch, answer)
    monkeypatch.setattr(stop, "on_ray", lambda home, mesh, head: found["10.0.0.1"])
    with pytest.raises(SupervisorError) as raised:
        stop.everywhere(home, mesh, lambda text: None)
    assert "10.0.0.2: still runs: pid 8" in str(raised.value) and "10.0.0.3: no answer" in str(raised.value)
    assert mesh_file.read(home) is not None


class Waited:
    """The wait for a start whose reports are given, with a clock that goes on by a second at each look."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch, looks: Callable[[int], ComponentReport]) -> None:
        self.now = 0.0
        monkeypatch.setattr(start_module, "report", self._report)
        monkeypatch.setattr(start_module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=lambda _: None))
        self._looks = looks
        self._start = DistributedStart(home, make_config(), Console(quiet=True))

    def _report(self, home: Home) -> MeshReport:
        self.now += 1.0
        others = [ComponentReport(name, "RUNNING") for name in self._start.plan.hosts if name != "trainer"]
        return MeshReport([*others, self._looks(int(self.now))])

    def __call__(self, timeout: float) -> float:
        """Seconds until all ran."""
        self._start._wait(timeout)
        return self.now


def test_a_start_is_waited_for_as_long_as_it_makes_progress(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Waited(home, monkeypatch, lambda now: ComponentReport("trainer", "STARTING" if now < 100 else "RUNNING",
                                                                 detail=f"loading the model: {now // 9} of 12"))
    assert wait(timeout=10) == 100


@pytest.mark.parametrize(("every", "seconds"), [(1000, 12), (1, 201)])
def test_a_start_without_progress_or_without_end_is_left(home: Home, monkeypatch: pytest.MonkeyPatch, every: int,
                                                         seconds: int) -> None:
    wait = Waited(home, monkeypatch,
                  lambda now: ComponentReport("trainer", "STARTING", detail=f"look {now // every}"))
    with pytest.raises(StartError, match=r"trainer on .* is not RUNNING after .* it is still tried"):
        wait(timeout=10)
    assert wait.now == seconds
