"""A child process that is kept running, with little programs in a component's place."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from openclaw_rl.launch import supervisor
from openclaw_rl.launch.children import Child, Program
from openclaw_rl.launch.rotating_log import RotatingLog
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.supervision import START_VARIABLE, RestartPolicy
from tests.support.waiting import until

Keep = Callable[..., Child]
#: Tells something to the supervisor.
TELL = f"""{sys.executable} -S -c 'import os, socket, sys
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(sys.argv[1].encode(), os.environ["NOTIFY_SOCKET"])' """


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keep]:
    """Starts a child of a shell script."""
    monkeypatch.setenv(START_VARIABLE, "0.2")
    monkeypatch.setattr(RestartPolicy, "pause", lambda self, failures: 0.05)
    home = Home(tmp_path / "home").create()
    children: list[Child] = []

    def start(script: str, **options: bool) -> Child:
        program = Program("it", lambda: ["/bin/sh", "-c", script], lambda: dict(os.environ), **options)
        children.append(Child(program, home, home.run))
        return children[-1]

    yield start
    for child in children:
        child.stop()
    assert not list(home.run.iterdir())


def test_one_that_was_never_ready_failed_however_long_it_took(keep: Keep) -> None:
    """Three times what counts as a start."""
    child = keep("sleep 0.6; echo out of luck; exit 3")
    until(lambda: child.state.failures >= 2)
    assert child.state.reason == "out of luck" and not child.state.told


def test_one_that_was_ready_for_a_while_begins_anew(keep: Keep) -> None:
    child = keep(f"{TELL} READY=1; sleep 0.4; kill -9 $$")
    seen = [until(lambda: child.state.pid)]
    for _ in range(2):
        seen.append(until(lambda: (pid := child.state.pid) not in (None, seen[-1]) and pid))
    assert child.state.failures == 1 and child.state.reason.startswith("killed by SIGKILL")


def test_ready_for_a_moment_is_not_enough(keep: Keep) -> None:
    child = keep(f"{TELL} READY=1; exit 4")
    until(lambda: child.state.failures >= 2)
    assert child.state.reason == "exit code 4"


def test_one_that_notifies_nothing_is_ready_when_it_runs(keep: Keep) -> None:
    child = keep("sleep 30", notifies=False)
    until(lambda: child.state.state == "RUNNING")


def test_what_it_says_about_its_end_is_known_before_it(keep: Keep) -> None:
    child = keep(f"{TELL} 'STATUS=loading'; {TELL} 'X_OPENCLAW_RL_FAILURE=\"no model\"'; exec sleep 30")
    until(lambda: child.state.told)
    assert (child.state.reason, child.state.progress, child.state.state) == ("no model", "loading", "STARTING")


@pytest.mark.parametrize(("script", "state"), [("STOPPING=1", "EXITED"), ("READY=1", "BACKOFF")])
def test_to_end_well_one_must_have_been_asked(keep: Keep, script: str, state: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestartPolicy, "pause", lambda self, failures: 30.0)
    child = keep(f"{TELL} {script}")
    until(lambda: child.state.state == state)
    child.restart()
    until(lambda: child.state.state in ("STARTING", "RUNNING"))


def test_the_end_is_seen_though_its_output_is_held_open(keep: Keep) -> None:
    child = keep("sleep 20 & echo started $!; exit 1")
    try:
        until(lambda: child.state.failures, 10)
        assert child.state.reason.startswith("started ")
    finally:
        child.stop()
        for line in (child._home.logs / "it.log").read_text().splitlines():
            psutil.Process(int(line.split()[1])).kill()


def test_with_the_one_that_is_killed_goes_its_group(keep: Keep) -> None:
    child = keep("trap '' TERM; sleep 30 & echo started $!; while :; do sleep 30; done")
    log = child._home.logs / "it.log"
    until(lambda: log.exists() and log.read_text())
    child._policy = replace(child._policy, stop_seconds=0.3)
    child.stop()
    until(lambda: not psutil.pid_exists(int(log.read_text().split()[1])))


def test_one_that_can_not_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home").create()
    child = Child(Program("it", lambda: ["/nowhere/it"], dict), home, home.run)
    until(lambda: child.state.failures)
    assert "it can't be started: " in child.state.reason and "/nowhere/it" in child.state.reason and child.state.told
    child.stop()


@pytest.mark.slow
def test_a_component_says_itself_why_it_can_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home").create()
    file = home.run / "config.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(f"components: {{prm_judge: {{port: {port}}}}}")
        child = Child(Program("prm_judge", lambda: supervisor.component_command("prm_judge", file),
                              lambda: {**os.environ, **supervisor.marks("prm_judge", home)}), home, home.run)
        until(lambda: child.state.told, 60)
        child.stop()
    assert child.state.reason == (f"prm_judge can't listen on 127.0.0.1:{port}: the port is in use. Stop what uses it, "
                                  "or configure another port (0 means any free one)")
    assert "Traceback" not in (home.logs / "prm_judge.log").read_text()


def test_a_log_is_rotated(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "x.log", size=10, keep=2)
    for text in (b"one\n", b"two\n", b"three\n", b"four five\n", b"six\n"):
        log.write(text)
    log.close()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "x.log": "six\n", "x.log.1": "four five\n", "x.log.2": "three\n"}


def test_a_log_that_can_not_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    log = RotatingLog(tmp_path / "logs/x.log")
    log.write(b"lost\n")
    (tmp_path / "logs").unlink()
    log.write(b"kept\n")
    log.close()
    assert (tmp_path / "logs/x.log").read_text() == "kept\n"
