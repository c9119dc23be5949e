"""More samples wait than steps of the usual size can take before these are stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.alarms import TrainerAlarms
from openclaw_rl.training.buffer.backlog import MOST, StepLimits, Waiting, limits, needed
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import component_pb2
from tests.training.fakes import make_sample
from tests.training.test_store import ids, manifest


def train(store: TrainerStore, batch: int, first: int = 1) -> list[list[str]]:
    """Steps until nothing waits: the turns of each."""
    steps: list[list[str]] = []
    while taken := ids(store.samples.batch(batch)):
        version = first + len(steps)
        store.commit(manifest(version, version - 1, *taken), {})
        steps.append(taken)
    return steps


@pytest.mark.parametrize("session", [lambda i: f"s{i}", lambda i: "s"], ids=["of many sessions", "of one session"])
def test_a_busy_hour_is_trained_on_and_not_lost(tmp_path: Path, session: Callable[[int], str]) -> None:
    """481 samples of one version: nine steps can take them, sixteen each were too few."""
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(max_per_session=16, max_per_branch=16))
    store.intake.accept([make_sample(f"t{i}", session=session(i)) for i in range(481)])
    steps = train(store, 16)
    assert len(steps) == 9
    assert sum(map(len, steps)) == 481 and max(map(len, steps)) <= MOST * 16
    assert "dropped:stale" not in store.counters.all()
    assert steps[0][0] == "t0", "the oldest first: each has its turn"
    hour = store.counters.last_hour()
    assert (hour.accepted, hour.trained, hour.dropped) == (481, 481, {})
    store.close()


def test_when_that_is_not_enough_the_newest_are_taken_and_it_is_told_what_to_set(tmp_path: Path) -> None:
    config = TrainerConfig(max_batch=2, max_staleness=1)
    store = TrainerStore(tmp_path / "state.db", "group", config)
    store.intake.accept([make_sample(f"t{i:02}", session=f"s{i}") for i in range(40)])
    steps = train(store, 2)
    assert [len(step) for step in steps] == [MOST * 2, MOST * 2]
    assert {turn for step in steps for turn in step} == {f"t{i}" for i in range(24, 40)}
    status = component_pb2.ComponentStatus()
    TrainerAlarms(config, store).report(status, paused=False, missing="", problem="", metrics={}, policy=None, line={},
                                        more=[])
    (alarm,) = [alarm for alarm in status.alarms if alarm.name == "samples_stale"]
    assert alarm.message.startswith("24 samples were dropped as stale within the last hour, 16 were trained on and 40 "
                                    "came")
    for setting in ("max_batch (2)", "max_per_session (4)", "max_staleness (1)"):
        assert setting in alarm.message
    store.close()


def test_few_samples_change_nothing() -> None:
    config = TrainerConfig()
    assert limits(config, 16, []) == StepLimits(16, 4, 4)
    assert limits(config, 16, [Waiting("s", "b", 9, 36)]) == StepLimits(16, 4, 4)
    assert limits(config, 16, [Waiting("s", "b", 9, 37)]) == StepLimits(16, 5, 5)
    assert limits(config, 16, [Waiting(f"s{i}", "b", 1, 1) for i in range(65)]) == StepLimits(64, 4, 4, newest=True)


@pytest.mark.parametrize(("counts", "each"), [
    ({}, 0), ({9: 9}, 1), ({9: 10}, 2), ({1: 5, 9: 4}, 5), ({1: 1, 2: 9}, 5), ({3: 30, 1: 2}, 11)])
def test_each_step_takes_what_must_not_wait(counts: dict[int, int], each: int) -> None:
    assert needed(counts) == each
