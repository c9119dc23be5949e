"""Everything that stands in the way, in one list."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_rl.launch.distributed import checks, probe
from openclaw_rl.launch.distributed import plan as plans
from openclaw_rl.launch.distributed.host import HostError
from openclaw_rl.launch.distributed.plan import Plan
from openclaw_rl.launch.distributed.probe import Facts
from openclaw_rl.runtime.home import Home
from tests.launch.distributed.conftest import FakeHost, make_config

VERSION = importlib.metadata.version("openclaw-rl")
GOOD = Facts(VERSION, platform.python_version(), "/root/.openclaw-rl", disk=2**40, available=2**36, cpus=8)


def checked(plan: Plan, facts: dict[str, Facts | HostError], environ: dict[str, str] | None = None) -> list[str]:
    def answer(name: str) -> Any:
        found = facts.get(name, GOOD)
        return lambda step, payload: found if isinstance(found, HostError) else asdict(
            replace(found, clock=found.clock or time.time()))

    hosts = {name: FakeHost(name, answer(name)) for name in plan.all_hosts}
    _, problems = checks.check(plan, hosts, environ or {}, temps=dict.fromkeys(hosts, ""),
                               homes=dict.fromkeys(hosts))
    for host in hosts.values():
        assert [step for step, _ in host.asked] == ["probe"]
    return problems


def test_all_is_well(plan: Plan) -> None:
    assert checked(plan, {}) == []


def test_the_problems_of_all_hosts_are_in_one_list(plan: Plan) -> None:
    images = {"openclaw/terminal-env:latest": False, "openclaw/gui-env:latest": True}
    problems = checked(plan, {
        "10.0.0.1": replace(GOOD, running=["policy_server"], ports={"components.policy_server.port": "taken"}),
        "10.0.0.2": replace(GOOD, images=images, built=dict.fromkeys(images, "not built"), engine="docker",
                            available=10**8),
        "10.0.0.3": HostError("can't be reached by ssh: No route to host"),
        "10.0.0.4": replace(GOOD, clock=time.time() - 60, disk=10**6, missing=["ray", "torch"], problems=["no gpus"],
                            ports={"components.trainer.port": "10.0.0.4:50054 is in use by pid 7 (x)"})})
    text = "\n".join(problems)
    for sentence in (
            "10.0.0.1: policy_server of a mesh in /root/.openclaw-rl runs there already: `openclaw-rl stop-all`",
            "10.0.0.2: components.env_server.environments.terminal.image: openclaw/terminal-env:latest: not built; or "
            "for docker: servers/environment/build-image terminal --for docker",
            "10.0.0.2: 95 MB of memory are free", "10.0.0.3: can't be reached by ssh: No route to host",
            "10.0.0.4: no gpus", "10.0.0.4: its clock is 60 s off", "start NTP",
            "10.0.0.4: components.trainer.port: 10.0.0.4:50054 is in use by pid 7 (x); set another port",
            "10.0.0.4: ray, torch can't be imported: pip install "
            f"'openclaw-rl[distributed,embedded]=={VERSION}'"):
        assert sentence in text, text
    assert "gui-env" not in text and "taken" not in text, "the mesh that runs is the reason"
    assert len(problems) == 8


@pytest.mark.parametrize(("backend", "engine", "in_engine", "built", "text"), [
    ("docker", "", False, "", "can't be there without docker or podman: install one and then build it: "),
    ("docker", "podman", False, "", "is not there; build it: servers/environment/build-image gui --for docker"),
    ("docker", "docker", True, "not built", ""), ("bubblewrap", "docker", True, "not built", "latest: not built"),
    ("bubblewrap", "", False, "", ""), ("auto", "", False, "not built", "latest: not built"),
    ("auto", "", False, "", ""), ("auto", "docker", True, "not built", "")])
def test_images_of_each_back_end(backend: str, engine: str, in_engine: bool, built: str, text: str) -> None:
    image = "openclaw/gui-env:latest"
    config = make_config()
    gui = config.components.env_server.environments["gui"].model_copy(update={"backend": backend})
    config.components.env_server.environments["gui"] = gui
    facts = replace(GOOD, images={image: in_engine}, built={image: built}, engine=engine)
    problems = checked(plans.make(config), {"10.0.0.2": facts})
    assert [text in problem for problem in problems] == ([True] if text else [])


def test_what_the_configuration_alone_tells(tmp_path: Path) -> None:
    config = make_config(environment=["OPENAI_API_KEY", "OTHER"])
    problems = checked(plans.make(config), {}, {"OTHER": "x"})
    assert len(problems) == 1 and "OPENAI_API_KEY is not set here" in problems[0]


@pytest.mark.parametrize(("python", "package", "text"), [
    ("3.11.9", "", "openclaw-rl is not installed"), ("3.11.9", "0.0.9", "it has openclaw-rl 0.0.9, here it is"),
    ("3.10.2", None, "its Python is 3.10.2, here it is")])
def test_versions_that_differ(python: str, package: str | None, text: str) -> None:
    assert text in checks._versions(python, VERSION if package is None else package)


def test_another_release_on_a_cluster_that_was_joined(plan: Plan) -> None:
    def answer(step: str, payload: dict[str, Any]) -> Any:
        return asdict(replace(GOOD, clock=time.time())) | {"a_field_of_later": 1}

    problems = checked(plan, {"10.0.0.2": replace(GOOD, version="0.0.9", model=False),
                              "10.0.0.3": replace(GOOD, python="3.10.2")})
    assert [problem.partition(";")[0] for problem in problems] == [
        f"10.0.0.2: it has openclaw-rl 0.0.9, here it is {VERSION}",
        f"10.0.0.3: its Python is 3.10.2, here it is {platform.python_version()}"]
    hosts = {name: FakeHost(name, answer) for name in plan.all_hosts}
    _, problems = checks.check(plan, hosts, {}, temps=dict.fromkeys(hosts, ""), homes=dict.fromkeys(hosts))
    assert len(problems) == 4 and "it has another openclaw-rl" in problems[0]


def test_a_probe_of_this_machine(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        facts = probe.look(Home(tmp_path / "home"), ports={"a": ("127.0.0.1", taken.getsockname()[1]),
                                                           "b": ("127.0.0.1", 0)},
                           packages=["json", "no_such_package"], model=str(tmp_path / "none"))
    assert list(facts.ports) == ["a"] and "is in use by pid" in facts.ports["a"]
    assert facts.missing == ["no_such_package"] and not facts.model and not facts.problems and not facts.running
    assert facts.memory == psutil.virtual_memory().total and facts.disk > 0
    assert abs(facts.clock - time.time()) < 60
    (tmp_path / "file").write_text("")
    assert "set distributed.home" in probe.look(Home(tmp_path / "file")).problems[0]
