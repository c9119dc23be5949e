"""The back end under the learner, with ranks that count: what a lost rank costs, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.backends.interface import BackendLost, HeldOut, StartPoint
from openclaw_rl.training.backends.megatron.backend import MegatronBackend
from openclaw_rl.training.buffer import sample_buffer
from openclaw_rl.training.learner import CannotTrain, Learner, Skipped
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import DropReason, drop
from openclaw_rl.v1 import weights_pb2
from tests.training.fakes import make_sample

WORKER = "tests.training.backends.megatron.fake_worker"
CONFIG = TrainerConfig(backend="megatron", min_samples=1, megatron={"tensor_parallel": 2},
                       gate={"max_new_tokens": 8})


class Rig:
    """A learner whose back end is a group."""

    def __init__(self, root: Path, model: Path) -> None:
        self.store = TrainerStore(root / "state.db", "group", CONFIG)
        self.root = root
        self.learner = Learner(CONFIG, self.store, root, lambda: model, 2, partial(MegatronBackend, worker=WORKER))
        self.learner.open()

    def step(self, *turn_ids: str) -> weights_pb2.VersionManifest | Skipped | None:
        self.store.intake.accept([make_sample(turn_id) for turn_id in turn_ids])
        return self.learner.train()

    def version(self, *turn_ids: str) -> weights_pb2.VersionManifest:
        manifest = self.step(*turn_ids)
        assert isinstance(manifest, weights_pb2.VersionManifest), manifest
        self.learner.tidy(set())
        return manifest

    @property
    def pending(self) -> list[str]:
        return [status.turn_id for status in self.store.samples.statuses([])]

    def steps_in(self, version: int) -> int:
        """Steps that the weights of a version went through, as the fake policy counts them."""
        return self.learner.versions.open(version)["model.norm.weight"].tobytes()[0]


@pytest.fixture
def rig(quick: Callable[[], list[int]], tmp_path: Path, model: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, model)
    yield rig
    rig.learner.release()
    rig.store.close()


def test_a_rank_that_is_killed_costs_no_sample_and_nothing_is_trained_twice(
        rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: Callable[[], list[int]]) -> None:
    monkeypatch.setenv("FAKE_WORKER_ONCE", str(tmp_path / "killed"))
    first = rig.version("a")
    assert first.settings["method"] == "full" and first.metrics["loss"] == .25
    assert sorted(path.name for path in (rig.root / "checkpoints" / "1").iterdir()) == ["optimizer", "weights"]
    with pytest.raises(CannotTrain, match=r"rank 1 \(pid \d+\) .* SIGKILL.*its samples wait, training goes on from "
                                          "version 1$"):
        rig.step("once@1", "b")
    assert not quick(), "the whole group has ended"
    assert (rig.pending, rig.store.versions.head) == (["once@1", "b"], 1)
    manifest = rig.version()
    assert (manifest.version, manifest.parent, list(manifest.turn_ids)) == (2, 1, ["once@1", "b"])
    assert rig.pending == []
    assert [rig.steps_in(version) for version in (1, 2)] == [1, 2], "built again from the checkpoint of version 1"
    assert rig.store.counters.all().get("steps_skipped", 0) == 0
    rig.learner.release()
    assert not quick()


def test_samples_that_kill_their_ranks_again_and_again_are_dropped(
        rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_buffer, "MAX_ATTEMPTS", 2)
    for _ in range(2):
        with pytest.raises(CannotTrain):
            rig.step("kill@0")
        assert rig.pending == ["kill@0"]
    result = rig.step("kill@0")
    assert isinstance(result, Skipped) and "again and again" in str(result.why)
    assert rig.pending == []


def test_what_is_wrong_with_the_samples_drops_them(rig: Rig) -> None:
    assert rig.step("abnormal") == Skipped(["abnormal"], drop(DropReason.ABNORMAL_STEP, "the loss is nan"))
    assert rig.version("a").version == 1


@pytest.mark.parametrize("method", ["evaluate", "tensors", "save"])
def test_a_group_that_is_lost_behind_the_step_makes_no_version_and_refuses_none(
        rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    with monkeypatch.context() as patch:
        def lose(self: MegatronBackend, *args: Any, **kwargs: Any) -> Any:
            raise BackendLost("rank 1 of the Megatron group was ended by SIGKILL")

        patch.setattr(MegatronBackend, method, lose)
        with pytest.raises(CannotTrain, match="its samples wait, training goes on from version 0"):
            rig.step("a")
    assert (rig.pending, rig.store.versions.head, rig.store.versions.highest) == (["a"], 0, 0)
    assert rig.learner.versions.versions() == [0]
    manifest = rig.version()
    assert (manifest.version, list(manifest.turn_ids), rig.steps_in(1)) == (1, ["a"], 1)


def test_a_group_that_does_not_start_costs_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_WORKER", "broken")
        with pytest.raises(CannotTrain, match="ended with 3; its last words are in the trainer's log"):
            rig.step("a")
    assert rig.pending == ["a"]
    assert rig.version().version == 1


def test_a_damaged_shard_is_not_read(rig: Rig) -> None:
    rig.version("a")
    rig.version("b")
    rig.learner.release()
    (rig.root / "checkpoints" / "2" / "weights" / "steps").write_text("9")
    # All weights are in the version itself; the fake policy reads folders only, so a damaged version is told.
    (rig.root / "versions" / "2" / "model.safetensors").write_bytes(b"damaged")
    manifest = rig.version("c")
    assert (manifest.version, manifest.parent) == (3, 1)
    assert "weights/steps is not what was written" in rig.learner.files.problems[0]


def test_answers_come_back_as_they_were_given(quick: Any, model: Path) -> None:
    backend = MegatronBackend(model, CONFIG, StartPoint(), worker=WORKER)
    found = backend.evaluate([HeldOut("a", "b"), HeldOut("c", "d")], 4, lambda: False, base=True)
    assert ([(answer.text, answer.ids) for answer in found.answers], found.perplexity) == ([("A", [0]), ("C", [0])], 10)
    assert len(backend.pids) == 2
    backend.close()
    backend.close()


def test_the_group_is_handed_back_when_training_stops(rig: Rig, quick: Callable[[], list[int]]) -> None:
    rig.version("a")
    assert quick()
    rig.learner.stop()
    assert rig.step("b") is None
    assert not quick() and rig.pending == ["b"]
