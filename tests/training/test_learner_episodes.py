"""Steps on groups of episodes, with a backend that counts instead of training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.backends.interface import BackendLost
from openclaw_rl.training.buffer.sample_buffer import MAX_ATTEMPTS
from openclaw_rl.training.learner import CannotTrain, Learner, Skipped
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import turn_pb2, weights_pb2
from tests.training.episodes import goes_on, step_of
from tests.training.fakes import AbnormalStep, FakeBackend, encode, make_sample
from tests.training.test_tensorboard import read


class Rig:
    """A learner that can be killed."""

    def __init__(self, root: Path, model: Path, **settings: object) -> None:
        self.root, self.model, self.config = root, model, TrainerConfig(**settings)
        FakeBackend.reset()
        self.start()

    def start(self) -> None:
        self.store = TrainerStore(self.root / "state.db", "group", self.config)
        self.learner = Learner(self.config, self.store, self.root, lambda: self.model, 2, FakeBackend)
        self.learner.open()

    def take(self, *samples: turn_pb2.Sample) -> None:
        self.store.intake.accept(list(samples))
        self.store.episodes.settle(time.time())

    def group(self, name: str, words: str = "hello you") -> list[turn_pb2.Sample]:
        first = step_of(f"{name}1", group=name, words=words)
        last = goes_on(first, "[seen]", "done")
        last.transition.outcome.CopyFrom(turn_pb2.EpisodeOutcome(value=1.0, steps=2))
        return [first, last, step_of(f"{name}2", group=name, words=words, outcome=0.0)]

    def version(self, episodes: bool = True) -> weights_pb2.VersionManifest:
        manifest = self.learner.train(episodes)
        assert isinstance(manifest, weights_pb2.VersionManifest)
        return manifest


@pytest.fixture
def rig(tmp_path: Path, model: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, model)
    yield rig
    rig.store.close()


def test_a_step_on_a_group_makes_a_version_that_says_so(rig: Rig) -> None:
    rig.take(*rig.group("g"), make_sample("user", 1))
    manifest = rig.version()
    assert (manifest.algorithm, list(manifest.turn_ids)) == ("grpo", ["g1-1", "g1-2", "g2-1"])
    assert manifest.settings["grpo.clip_high"] == "0.28"
    figures = manifest.metrics
    assert {name: round(figures[name], 4) for name in (
        "groups", "episodes", "reward_mean", "outcome_mean", "advantage_std", "texts", "staleness")} == {
        "groups": 1, "episodes": 2, "reward_mean": 0.6667, "outcome_mean": 0.5, "advantage_std": 0.9428, "texts": 2,
        "staleness": 0}  # two of three steps have a reward of 1; step 2 of the one episode that has it is at +1
    assert FakeBackend.created[-1].batches == [["g1-1", "g2-1"]]  # two turns are one text
    user = rig.version(episodes=False)
    assert (user.algorithm, list(user.turn_ids)) == ("combine", ["user"])
    assert "reward_mean" not in user.metrics
    assert [step for step, _ in read(rig.root / "tensorboard")["step/loss"]] == [1, 2]


def test_what_is_not_there_is_no_step(rig: Rig) -> None:
    rig.take(make_sample("user", 1))
    assert rig.learner.train(True) is None
    rig.take(*rig.group("g"))
    assert list(rig.version(episodes=False).turn_ids) == ["user"]


def test_tensorboard_can_be_turned_off(tmp_path: Path, model: Path) -> None:
    rig = Rig(tmp_path, model, tensorboard=False)
    rig.take(*rig.group("g"))
    rig.version()
    assert not (tmp_path / "tensorboard").exists()
    rig.store.close()


def test_groups_beyond_the_bound_wait_and_one_is_always_taken(tmp_path: Path, model: Path) -> None:
    rig = Rig(tmp_path, model, grpo={"max_tokens": 256})
    for name in "ghi":
        rig.take(*rig.group(name, words="w" * (300 if name == "g" else 20)))
    assert [sorted(turn[0] for turn in rig.version().turn_ids) for _ in range(2)] == [["g"] * 3, ["h"] * 3 + ["i"] * 3]
    assert rig.store.episodes.waiting().samples == 0
    rig.store.close()


def test_a_step_that_fails_drops_its_groups_and_takes_no_others(rig: Rig) -> None:
    rig.take(*rig.group("g"), make_sample("user", 1))
    FakeBackend.fail = AbnormalStep("the policy moved 9 nats per token, max_kl is 3")
    result = rig.learner.train(True)
    assert isinstance(result, Skipped)
    assert [status.turn_id for status in rig.store.samples.statuses([])] == ["user"]
    assert (rig.store.episodes.waiting().ready, rig.store.counters.all()["groups_dropped"]) == (0, 1)


def test_a_group_survives_a_kill_and_a_lost_back_end_as_often_as_any_sample(rig: Rig) -> None:
    rig.take(*rig.group("g"))
    FakeBackend.fail = BackendLost("a rank ended")
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(CannotTrain):
            rig.learner.train(True)
        rig.store.close()
        rig.start()
    result = rig.learner.train(True)
    assert isinstance(result, Skipped)
    assert rig.store.episodes.waiting().samples == 0


def test_a_sample_of_another_model_is_refused_and_the_rest_of_its_group_is_trained_on(rig: Rig) -> None:
    samples = rig.group("g")
    samples[2].transition.turn.tokens.response_ids[0] = 5000
    rig.take(*samples)
    assert list(rig.version().turn_ids) == ["g1-1", "g1-2"]
    assert rig.store.counters.all()["groups_whole"] == 1
    [status] = rig.store.samples.statuses(["g2-1"])
    assert status.reason.startswith("bad token record: token id 5000")
    assert not status.HasField("advantage")


def test_what_is_damaged_on_disk_is_kept_aside(rig: Rig) -> None:
    rig.take(*rig.group("g"))
    with rig.store.database.transaction() as db:
        db.execute("UPDATE samples SET payload = ? WHERE turn_id = 'g2-1'", (b"nonsense",))
    assert list(rig.version().turn_ids) == ["g1-1", "g1-2"]
    assert rig.store.samples.statuses(["g2-1"])[0].reason == "damaged on disk"


def test_users_learn_by_their_own_algorithm_in_between(rig: Rig) -> None:
    rig.take(*rig.group("g"), make_sample("user", 1, response="ok then"))
    rig.version(episodes=False)
    rig.version()
    assert [version.manifest.algorithm for version in rig.store.versions.all()] == ["base", "combine", "grpo"]
    assert encode("ok") and rig.store.counters.all()["trained"] == 4
