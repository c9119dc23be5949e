"""The history is kept while the mesh runs, without any dashboard."""

from __future__ import annotations

import asyncio
import os

import pytest

from openclaw_rl.config import Config
from openclaw_rl.monitoring import recorder
from openclaw_rl.monitoring.history import History
from openclaw_rl.monitoring.history_file import acquire_lock
from openclaw_rl.monitoring.recorder import recording
from openclaw_rl.runtime.home import Home
from tests.dashboard.fakes import FakeMesh
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INTERVAL", "_RETRY", "_DEFERENCE"):
        monkeypatch.setattr(recorder, name, 0.1)


def newest(home: Home) -> dict[str, float]:
    """The newest figures that a dashboard would find at its start."""
    history = History(home.root / "dashboard", 7)
    found = history.series.latest()
    history.close()
    return found


def recorded(home: Home) -> bool:
    return (home.root / "dashboard" / "history.db").exists() and newest(home).get("policy.qps") == 2.5


async def test_figures_and_training_events_are_recorded_for_a_later_dashboard(mesh: FakeMesh) -> None:
    mesh.status["policy_server"].gauges["qps"] = 2.5
    async with recording("policy_server", Config(), mesh.home):
        await eventually(lambda: mesh.watchers)
        await asyncio.to_thread(mesh.tell, "VERSION_CREATED", "version 8 was made", version=8, turn_ids=["a"])
        await eventually(lambda: recorded(mesh.home))
    history = History(mesh.home.root / "dashboard", 7)
    assert history.series.latest()["up.trainer"] == 1
    assert [event.kind for event in history.events()] == ["version_created"]
    history.close()


async def test_another_component_records_where_no_policy_server_is(mesh: FakeMesh) -> None:
    mesh.status["trainer"].gauges["pending"] = 3
    async with recording("trainer", Config(), mesh.home):
        await asyncio.sleep(0.5)
        assert not (mesh.home.root / "dashboard" / "history.db").exists()  # the policy server's record is there
        mesh.stop("policy_server")
        mesh.forget("policy_server")
        await eventually(lambda: (mesh.home.root / "dashboard" / "history.db").exists()
                    and newest(mesh.home).get("trainer.pending") == 3)
        assert not mesh.watchers  # events are for the roles policy_server and operator


async def test_it_takes_over_from_a_dashboard_that_ends(mesh: FakeMesh) -> None:
    mesh.status["policy_server"].gauges["qps"] = 2.5
    lock = acquire_lock(mesh.home.root / "dashboard")
    assert lock is not None
    async with recording("policy_server", Config(), mesh.home):
        await asyncio.sleep(0.5)
        assert not (mesh.home.root / "dashboard" / "history.db").exists()
        os.close(lock)
        await eventually(lambda: recorded(mesh.home))


async def test_a_home_that_cannot_be_written_ends_nothing(mesh: FakeMesh) -> None:
    (mesh.home.root / "dashboard").write_text("")
    async with recording("policy_server", Config(), mesh.home):
        await asyncio.sleep(0.5)
    assert mesh.home.root.is_dir()
