"""The trainer's alarms: each is raised when something should have moved, and ends when it moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.alarms import IN_A_ROW, NEWEST, TrainerAlarms
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import DropReason, VersionState, VersionStatus, drop
from openclaw_rl.v1 import component_pb2, policy_pb2, weights_pb2
from tests.support.waiting import eventually
from tests.training.fakes import FakeBackend, make_sample
from tests.training.test_service import trainer


class Board:
    """Alarms over a store."""

    def __init__(self, root: Path) -> None:
        config = TrainerConfig()
        self.store = TrainerStore(root / "state.db", "group", config)
        self.store.versions.add_base(weights_pb2.VersionManifest(version=0, digest="base", model_id="m"))
        self.alarms = TrainerAlarms(config, self.store)

    def raised(self, **changes: Any) -> dict[str, str]:
        facts: dict[str, Any] = {"paused": False, "missing": "needs 3 more samples", "problem": "", "metrics": {},
                                 "policy": None, "line": {}, "more": []} | changes
        status = component_pb2.ComponentStatus(state=component_pb2.COMPONENT_STATE_RUNNING)
        self.alarms.report(status, **facts)
        assert (status.state == component_pb2.COMPONENT_STATE_DEGRADED) == bool(status.alarms)
        return {alarm.name: alarm.message for alarm in status.alarms}

    def make(self, version: int, status: VersionStatus | None = None) -> None:
        self.store.commit(weights_pb2.VersionManifest(version=version, parent=version - 1, digest=f"d{version}"), {})
        self.store.versions.note(version, status or VersionStatus())


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    board = Board(tmp_path)
    yield board
    board.store.close()


def state(version: int, digest: str, model_id: str = "m") -> policy_pb2.PolicyState:
    return policy_pb2.PolicyState(active_version=version, active_digest=digest, model_id=model_id, model="other",
                                  accepts_weights=True)


def test_nothing_is_wrong_at_first(board: Board) -> None:
    assert board.raised() == {} and board.raised(policy=state(0, "base"), line={"reason": ""}) == {}


def test_samples_that_wait_for_hours(board: Board) -> None:
    board.store.intake.accept([make_sample("a")])
    assert board.raised() == {}
    with board.store.database.transaction() as db:
        db.execute("UPDATE samples SET accepted_at = accepted_at - 3 * 3600")
    message = board.raised()["samples_waiting"]
    assert "the oldest for 3.0 h (needs 3 more samples)" in message and "min_samples (4) counts only" in message
    assert board.raised(paused=True) == {}, "the operator knows"
    board.store.samples.drop(["a"], drop(DropReason.ABNORMAL_STEP))
    assert board.raised() == {}


def test_steps_that_are_skipped_again_and_again(board: Board) -> None:
    for _ in range(IN_A_ROW):
        assert board.raised() == {}
        board.alarms.step("abnormal step: the loss is nan")
    assert "the last one because of abnormal step: the loss is nan" in board.raised()["steps_skipped"]
    board.alarms.step()
    assert board.raised() == {}


def test_versions_that_are_rejected_again_and_again(board: Board) -> None:
    for version in range(1, IN_A_ROW + 1):
        assert board.raised() == {}
        board.make(version, VersionStatus(VersionState.REJECTED, "wrong shape"))
    assert "version 3: wrong shape" in board.raised()["versions_rejected"]
    board.make(4)
    assert board.raised() == {}


def test_samples_that_nothing_can_be_learned_from(board: Board) -> None:
    board.store.intake.accept([make_sample(f"n{i}", 0) for i in range(NEWEST)])
    assert "none of the last 50 samples has a score or a hint" in board.raised()["no_signal"]
    board.store.intake.accept([make_sample("a")])
    assert board.raised() == {}


def test_samples_that_are_all_dropped(board: Board) -> None:
    samples = [make_sample(f"n{i}") for i in range(NEWEST)]
    for sample in samples:
        sample.judgement.failed = True
    board.store.intake.accept(samples)
    assert board.raised() == {
        "samples_dropped": "all of the last 50 samples were dropped: 50 judge failed; `openclaw-rl docs "
                           "troubles-and-cures` tells the setting behind each reason"}
    board.store.intake.accept([make_sample("a")])
    assert board.raised() == {}


def test_training_that_fails_and_log_probabilities_that_differ(board: Board) -> None:
    assert board.raised(problem="no memory") == {"cannot_train": "can't train: no memory"}
    metrics = {"logprob_diff_mean": 1.5, "logprob_diff_tokens": 200.0}
    assert "1.50 nats apart" in board.raised(metrics=metrics)["logprobs_apart"]
    assert board.raised(metrics=metrics | {"logprob_diff_tokens": 100.0}) == {}


def test_a_policy_server_with_other_weights_than_it_claims(board: Board) -> None:
    board.make(1)
    assert board.raised(policy=state(1, "d1")) == {}
    assert "other weights (forged)" in board.raised(policy=state(1, "forged"))["wrong_weights"]
    assert "which this trainer never made" in board.raised(policy=state(9, "d9"))["unknown_version"]
    assert "serves another base model" in board.raised(policy=state(0, "base", "n"))["wrong_model"]
    assert "stop one" in board.raised(line={"reason": "ANOTHER_TRAINER", "error": "stop one"})["two_trainers"]


def test_messages_set_aside_are_an_alarm_for_an_hour(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.store.intake.accept([make_sample("a\n")])
    assert "`openclaw-rl set-aside`" in board.raised()["samples_set_aside"]
    monkeypatch.setattr(board.store.samples.quarantine, "last", 0.0)
    assert board.raised() == {}


def test_alarms_of_other_parts_are_told_too(board: Board) -> None:
    assert board.raised(more=[("gate_refused", "no"), ("x", "")]) == {"gate_refused": "no"}


async def test_a_policy_server_that_went_back_to_other_weights_is_told_of(tmp_path: Path, model: Path) -> None:
    FakeBackend.reset()
    async with trainer(tmp_path, model, min_samples=1) as rig:
        for version in (1, 2):
            await rig.submit(make_sample(f"t{version}"))
            await eventually(lambda v=version: rig.store.versions.head == v)
        known = rig.store.versions.get(1)
        assert known is not None
        went_back = state(1, "forged", rig.store.versions.get(0).manifest.model_id)
        went_back.highest_version, went_back.withdrawn_versions[:] = 2, [2]
        await rig.service.delivery.on_state(went_back)
        assert rig.store.versions.head == 1, "the trainer's own: what is made from version 2 would be refused"
        assert [alarm.name for alarm in rig.status.alarms] == ["wrong_weights"]
        assert rig.status.state == component_pb2.COMPONENT_STATE_DEGRADED
        went_back.active_digest = known.manifest.digest
        await rig.service.delivery.on_state(went_back)
        assert rig.store.versions.head == 1 and not rig.status.alarms
