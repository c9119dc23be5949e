"""Waiting for a start: what counts as progress, and what is told meanwhile."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from openclaw_rl.config import Config
from openclaw_rl.launch import checks, waiting
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.narration import Narration
from openclaw_rl.launch.supervisor import Process
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import machine_lock
from tests.support.ports import free_port


def process(pid: int | None = None, state: str = "STARTING", progress: str = "") -> Process:
    return Process("trainer", state, pid, 0.0, 0, "", False, progress)


def test_words_log_lines_and_work_are_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, now = Home(tmp_path).create(), [0.0]
    spent = {None: (0.0, 0.0), 7: (0.0, 0.0)}
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(waiting, "_spent", spent.__getitem__)
    work = waiting._Work(home)

    def idle(after: float, **facts: object) -> float:
        now[0] += after
        return work.idle([process(**facts)])  # type: ignore[arg-type]

    assert idle(0) == 0 and idle(100) == 100
    assert idle(10, pid=7) == 0
    assert idle(10, pid=7, progress="loading") == 0 and idle(10, pid=7, progress="loading") == 10
    (home.logs / "trainer.log").write_text("a line")
    assert idle(10, pid=7, progress="loading") == 0
    spent[7] = (0.9, 2**19)  # a process that waits
    assert idle(10, pid=7, progress="loading") == 10
    spent[7] = (1.1, 2**19)  # and one that computes on a machine with little to spare
    assert idle(10, pid=7, progress="loading") == 0
    spent[7] = (1.1, 2**21)
    assert idle(10, pid=7, progress="loading") == 0 and idle(10, pid=7, progress="loading") == 10


def test_a_process_spends(tmp_path: Path) -> None:
    cpu, read = waiting._spent(os.getpid())
    assert cpu > 0 and read > 0
    assert waiting._spent(None) == waiting._spent(2**22 + 1) == (0, 0)


def test_without_a_terminal_a_line_tells_now_and_then() -> None:
    output, told = io.StringIO(), threading.Event()

    class Told(Console):
        def print(self, *args: object, **options: object) -> None:
            super().print(*args, **options)  # type: ignore[arg-type]
            told.set()

    with Narration(Told(file=output, width=100), "stopping the [trainer]", every=0.01) as narration:
        assert told.wait(10)
        narration.say("stopping the judge")
        told.clear()
        assert told.wait(10) and told.clear() is None and told.wait(10)
    assert "stopping the [trainer] (0 s)\n" in output.getvalue() and "stopping the judge (0 s)\n" in output.getvalue()


def test_on_a_terminal_it_goes_again() -> None:
    output = io.StringIO()
    with Narration(Console(file=output, width=100, force_terminal=True), "stopping [it]") as narration:
        narration.say("stopping [that]")
    assert "stopping [that]" in output.getvalue()


_HOLD = "import sys; from openclaw_rl.runtime.lock import machine_lock\n" \
        "lock = machine_lock(sys.argv[1]); print(lock is not None, flush=True); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets")
def test_a_lock_of_the_machine_goes_with_its_process() -> None:
    port = free_port()
    config = Config.model_validate({"components": {"trainer": {"port": port}}})
    with subprocess.Popen([sys.executable, "-c", _HOLD, f"port {port}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        with pytest.raises(StartError, match=rf"components.trainer.port: 127.0.0.1:{port} is taken by another mesh"), \
                checks.held_ports(config, ["prm_judge", "trainer"]):
            raise AssertionError("held twice")
        other = machine_lock(f"port {port + 1}")
        assert other is not None
        other.close()
        holder.kill()
    with checks.held_ports(config, ["trainer"]):
        assert machine_lock(f"port {port}") is None
    lock = machine_lock(f"port {port}")
    assert lock is not None
    lock.close()
