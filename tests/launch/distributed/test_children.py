"""Components as child processes of an agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from openclaw_rl.launch import children, leftovers, supervisor
from openclaw_rl.launch.distributed import ray_node
from openclaw_rl.launch.distributed.host_agent import Agent, hosts_file, program
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.runtime.supervision import START_VARIABLE
from tests.support.waiting import until

CONFIG = "components: {policy_server: {port: 0, grpc_port: 0}, prm_judge: {port: 0}, trainer: {port: 0}}\n"
#: argv: home; an agent with a trainer, until it is killed.
_AGENT = ("import sys, time\nfrom openclaw_rl.launch import supervisor\n"
          "supervisor.COMPONENT_MODULE = 'fake_component'\n"
          "from openclaw_rl.launch.distributed.host_agent import Agent\n"
          "a = Agent(sys.argv[1], '10.0.0.4'); a.tick(['trainer'], {'run/config.yaml': sys.argv[2]}); time.sleep(600)")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(supervisor, "COMPONENT_MODULE", "fake_component")
    monkeypatch.setenv(START_VARIABLE, "0.5")
    home = Home(tmp_path / "home").create()
    yield home
    leftovers.end_orphans(home)


def alive(pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def test_an_agent_runs_what_it_is_told(home: Home) -> None:
    agent = Agent(str(home.root), "10.0.0.4")
    files = {"run/config.yaml": CONFIG, "run/hosts.json": json.dumps({"at": 1, "hosts": {}, "components": {}})}
    (home.run / "environment.json").write_text('{"OPENAI_API_KEY": "sk-1"}')
    try:
        agent.tick(["trainer", "prm_judge"], files)
        until(lambda: read_record(home, "trainer") and read_record(home, "prm_judge"))
        assert hosts_file(home) == {"at": 1, "hosts": {}, "components": {}}
        until(lambda: agent.tick(["trainer", "prm_judge"], files)["trainer"]["state"] == "RUNNING")
        first = read_record(home, "trainer")
        assert first and "key is sk-1 threads 1" in (home.logs / "trainer.log").read_text()
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: (record := read_record(home, "trainer")) and record.pid != first.pid)
        judge = read_record(home, "prm_judge")
        assert judge and set(agent.tick(["trainer"], files)) == {"trainer"} and not alive(judge.pid)
        again = read_record(home, "trainer")
        assert agent.stop() == ["trainer"] and again and not alive(again.pid)
        assert agent.tick(["trainer"], files) == {}, "one that is stopping starts nothing"
    finally:
        agent.stop()


def test_one_that_fails_is_tried_again_and_tells_why(home: Home) -> None:
    (home.root / "trainer.crash").touch()
    agent = Agent(str(home.root), "10.0.0.4")
    try:
        until(lambda: agent.tick(["trainer"], {"run/config.yaml": CONFIG})["trainer"]["failures"] >= 2)
        told = agent.tick(["trainer"], {})["trainer"]
        assert told["reason"] == "this component was told to crash"
        (home.root / "trainer.crash").unlink()
        agent.restart(["trainer"])
        until(lambda: read_record(home, "trainer"))
    finally:
        agent.stop()


def test_a_restart_makes_no_second_process(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its thread does not end in time, being about to start it."""
    going, began = threading.Event(), list[int]()

    def supervise(child: children.Child) -> None:
        began.append(1)
        going.wait()

    monkeypatch.setattr(children.Child, "_supervise", supervise)
    child = children.Child(program("trainer", home, "10.0.0.4"), home, home.run)
    monkeypatch.setattr(child._thread, "join", lambda timeout: None)
    child.state.state = "BACKOFF"
    child.restart()
    going.set()
    assert began == [1] and not child._stop.is_set()


def test_a_process_that_ends_while_it_is_looked_at() -> None:
    class Ended:
        def is_running(self) -> bool:
            return True

        def status(self) -> str:
            raise psutil.NoSuchProcess(1)

    assert not ray_node._runs(Ended())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's PR_SET_PDEATHSIG")
def test_a_component_ends_with_its_agent(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", _AGENT, str(home.root), CONFIG]) as agent:
        until(lambda: read_record(home, "trainer"))
        record = read_record(home, "trainer")
        agent.kill()
    assert record is not None
    until(lambda: not alive(record.pid))
