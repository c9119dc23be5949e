"""Groups of ranks, and the search for what is left of them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import psutil
import pytest

from openclaw_rl.runtime.process import all_processes
from openclaw_rl.training.backends.megatron import processes
from openclaw_rl.training.backends.megatron.frames import TOKEN_VARIABLE


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[int]]]:
    """Groups without torchrun; nothing is left of them afterwards. Gives what there is."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(processes, "_AGENT", "tests.training.backends.megatron.fake_agent")
    monkeypatch.setattr(processes, "_CLOSE", 2.0)
    yield ranks
    assert not ranks()


def ranks() -> list[int]:
    """Processes of any group whose trainer's process this one or its children are."""
    found = []
    for process in psutil.Process().children(recursive=True) + _orphans():
        with contextlib.suppress(psutil.Error, OSError):
            if TOKEN_VARIABLE in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def _orphans() -> list[psutil.Process]:
    mine = psutil.Process().environ().get("PYTEST_XDIST_TESTRUNUID")
    orphans = []
    for process in all_processes():
        with contextlib.suppress(psutil.Error, OSError):
            if process.ppid() == 1 and process.environ().get("PYTEST_XDIST_TESTRUNUID") == mine:
                orphans.append(process)
    return orphans
