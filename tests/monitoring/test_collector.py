"""What the dashboard hears, and makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from openclaw_rl.monitoring.collector import Collector
from openclaw_rl.monitoring.figures import Rates, waits_for
from openclaw_rl.monitoring.history import History
from openclaw_rl.monitoring.mesh import ComponentView, MeshData
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2, environment_pb2
from tests.dashboard.fakes import FakeMesh
from tests.support.waiting import eventually


@asynccontextmanager
async def collecting(home: Home) -> AsyncIterator[Collector]:
    mesh = MeshData(home)
    collector = Collector(mesh, History(None, 7), 0.2)
    task = asyncio.create_task(collector.run())
    try:
        yield collector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await mesh.close()


async def test_it_follows_a_component_down_and_up_at_another_port(mesh: FakeMesh) -> None:
    mesh.status["policy_server"].gauges["qps"] = 2.5
    mesh.environments = [environment_pb2.EnvironmentInfo(type="terminal", capacity=4, leased=3, waiting=2)]
    async with collecting(mesh.home) as collector:
        seen, history = collector._mesh.status, collector._history
        await eventually(lambda: all(one.state == "RUNNING" for one in collector._mesh.all()))
        await eventually(lambda: collector.latest.get("env.terminal.leased") == 3 and collector.environments)
        assert collector.latest["policy.qps"] == 2.5 and collector.latest["version"] == 7
        await asyncio.to_thread(mesh.stop, "policy_server")
        await eventually(lambda: seen("policy_server").state == "DOWN")
        down = seen("policy_server")
        assert down.problem and time.time() - 20 < down.since <= time.time() and down.status is not None
        await eventually(lambda: collector.latest.get("up.policy_server") == 0)
        assert "policy.qps" not in collector.latest and "version" not in collector.latest
        assert seen("trainer").state == "RUNNING"
        await asyncio.to_thread(mesh.start, "policy_server")
        await eventually(lambda: seen("policy_server").state == "RUNNING")
        changes = [(e.data["before"], e.data["state"]) for e in history.events() if e.component == "policy_server"]
        assert changes == [("DOWN", "RUNNING"), ("RUNNING", "DOWN")]


async def test_a_silent_mesh_is_none_that_fell(home: Home) -> None:
    async with collecting(home) as collector:
        await eventually(lambda: collector.ticks > 2)
        assert {one.state for one in collector._mesh.all()} == {"ABSENT"}
        assert collector._history.events() == []


async def test_the_trainer_s_events_are_kept(mesh: FakeMesh) -> None:
    async with collecting(mesh.home) as collector:
        await eventually(lambda: mesh.watchers)
        await asyncio.to_thread(mesh.tell, "VERSION_CREATED", "version 8 was made", version=8, turn_ids=["a", "b"])
        await eventually(collector._history.events)
        event = collector._history.events()[0]
        assert (event.kind, event.data) == ("version_created", {"version": 8, "turns": 2})


def _heard(heard: float, votes: int) -> ComponentView:
    status = component_pb2.ComponentStatus(counters={"votes": votes})
    return ComponentView("prm_judge", "RUNNING", heard=heard, status=status)


def test_counters_are_told_by_the_minute() -> None:
    rates = Rates()
    for second in range(120):
        gained = rates.last_minute("votes", _heard(1000.0 + second, 5 * second), "votes")
    assert gained == 300
    assert rates.last_minute("votes", _heard(1119.0, 595), "votes") == 300  # heard nothing new
    assert rates.last_minute("votes", _heard(1200.0, 9999), "votes") == 0  # nobody knows when those were
    assert rates.last_minute("votes", _heard(1201.0, 3), "votes") == 0  # the judge began anew
    assert rates.last_minute("votes", ComponentView("prm_judge", "DOWN"), "votes") is None


def test_a_restart_of_the_dashboard_goes_on_with_the_minute() -> None:
    history, now = History(None, 7), time.time()
    for second in range(50):
        history.add({"judge.count.votes": float(second)}, now - 50 + second)
    rates = Rates()
    rates.seed(history.series)
    assert rates.last_minute("votes", _heard(now, 50), "votes") == 50


async def test_what_was_kept_and_cannot_be_used_ends_nothing(mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("a row of another time")

    monkeypatch.setattr(Rates, "seed", broken)
    mesh.status["trainer"].gauges["updates_per_hour"] = 3
    mesh.status["trainer"].counters["updates"] = 900
    async with collecting(mesh.home) as collector:
        await eventually(lambda: collector.latest.get("trainer.updates_h") == 3)


def test_what_a_component_waits_for_is_said_once() -> None:
    status = component_pb2.ComponentStatus(
        detail="the judge fails; judge llm, 3 votes a turn",
        alarms=[component_pb2.Alarm(name="judge_failing", message="the judge fails")],
        outboxes=[component_pb2.OutboxStats(name="samples", pending=3, last_error="nobody listens")])
    assert waits_for(status) == "judge llm, 3 votes a turn; the judge fails; samples: 3 wait (nobody listens)"
    assert waits_for(None) == ""
