"""Judges that lie and users who want harm: no step moves the policy further than `max_kl`, and the log says what was
refused. The torch back end on a tiny model, at a rate that would carry it far."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.learner import Learner, Skipped
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import DropReason
from openclaw_rl.v1 import trainer_pb2, turn_pb2, weights_pb2
from tests.training.fakes import make_sample

LIMIT = 0.02


class Rig:
    """A learner with the torch back end; `step` trains on samples at once."""

    def __init__(self, root: Path, model: Path, rate: float = 3e-2) -> None:
        config = TrainerConfig.model_validate({
            "min_samples": 1, "max_kl": LIMIT, "learning_rate": rate, "reward_weight": 1.0, "device": "cpu",
            "tensorboard": False, "gate": {"enabled": False}, "max_staleness": 100})
        self.store = TrainerStore(root / "state.db", "group", config)
        self.learner = Learner(config, self.store, root, lambda: model, 1)
        self.learner.open()

    def step(self, samples: list[turn_pb2.Sample]) -> weights_pb2.VersionManifest | Skipped | None:
        self.store.intake.accept(samples)
        result = self.learner.train()
        self.learner.tidy(set())
        return result


@pytest.fixture
def rig(tmp_path: Path, model: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, model)
    yield rig
    rig.learner.release()
    rig.store.close()


def words(rng: random.Random) -> str:
    return "".join(rng.choice(string.ascii_lowercase + " ") for _ in range(24))


JUDGES: dict[str, Callable[[random.Random, int], tuple[int, str]]] = {
    "always +1": lambda rng, _: (1, ""),
    "always -1": lambda rng, _: (-1, ""),
    "random": lambda rng, _: (rng.choice([-1, 1]), ""),
    "a user who complains of everything": lambda rng, i: (-1, f"say {words(rng)[:5]}"),
    "an attack among others": lambda rng, i: (-1, "always answer moo") if i % 3 == 0 else (1, ""),
}


@pytest.mark.parametrize("judge", JUDGES)
def test_each_step_stays_within_the_bound(rig: Rig, judge: str) -> None:
    rng, number, shares = random.Random(judge), 0, []
    for _ in range(5):
        samples = []
        for _ in range(4):
            score, hint = JUDGES[judge](rng, number)
            samples.append(make_sample(f"t{number}", score, hint, words=words(rng), response=words(rng),
                                       session=f"s{number}", version=rig.store.versions.head))
            number += 1
        made = rig.step(samples)
        assert isinstance(made, weights_pb2.VersionManifest), made
        assert 0 <= made.metrics["step_kl"] <= LIMIT
        shares.append(made.metrics["step_share"])
    assert min(shares) < 1, "at this rate steps are longer than the bound"


def test_a_judge_that_always_says_the_same_is_soon_not_listened_to(rig: Rig) -> None:
    rng, weights = random.Random(1), []
    for step in range(6):
        made = rig.step([make_sample(f"t{step}{i}", 1, words=words(rng), session=f"{step}{i}", response=words(rng),
                                     version=rig.store.versions.head) for i in range(8)])
        assert isinstance(made, weights_pb2.VersionManifest)
        weights.append(1 - made.metrics["score_baseline"])
    assert weights == sorted(weights, reverse=True) and weights[-1] < 0.25


def test_a_step_that_would_run_away_is_refused_and_the_log_says_why(tmp_path: Path, model: Path,
                                                                    caplog: pytest.LogCaptureFixture) -> None:
    """Praise of gibberish at a rate that no step can be shortened from."""
    rig, rng = Rig(tmp_path, model, rate=3.0), random.Random(2)
    made = rig.step([make_sample(f"t{i}", 1, words=words(rng), session=f"s{i}",
                                 response="".join(rng.choices(string.printable[:90], k=24))) for i in range(4)])
    assert isinstance(made, Skipped) and made.why.code is DropReason.ABNORMAL_STEP
    assert f"max_kl is {LIMIT}" in str(made.why)
    assert "step on 4 samples skipped: the policy moved" in caplog.text
    assert rig.store.versions.head == 0
    assert {status.fate for status in rig.store.samples.statuses([f"t{i}" for i in range(4)])} == {
        trainer_pb2.SAMPLE_FATE_DROPPED}
    rig.store.close()


def test_a_thousand_identical_complaints_move_it_no_further_than_one(tmp_path: Path, model: Path) -> None:
    def moved(count: int) -> tuple[float, float]:
        rig = Rig(tmp_path / str(count), model, rate=1e-4)
        made = rig.step([make_sample(f"t{i}", -1, "say moo", session=f"s{i}") for i in range(count)])
        assert isinstance(made, weights_pb2.VersionManifest)
        assert made.metrics["samples"] == 1
        rig.learner.release()
        rig.store.close()
        return made.metrics["distillation"], made.metrics["step_kl"]

    (tmp_path / "1").mkdir()
    (tmp_path / "1000").mkdir()
    one, thousand = moved(1), moved(1000)
    assert thousand[0] == pytest.approx(one[0], rel=1e-3)
    assert 0 < thousand[1] <= one[1] * 1.01
