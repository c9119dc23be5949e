"""Steps, checkpoints and recoveries, with a backend that counts instead of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.buffer.sample_buffer import MAX_ATTEMPTS
from openclaw_rl.training.learner import CannotTrain, Learner, Skipped
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import DropReason, drop
from openclaw_rl.v1 import weights_pb2
from tests.training.fakes import AbnormalStep, FakeBackend, make_sample

CONFIG = TrainerConfig(min_samples=1)


class Rig:
    """A learner that can be killed: what it had in memory is gone, what it had on disk isn't."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        FakeBackend.reset()
        self.start()

    def start(self, config: TrainerConfig = CONFIG) -> None:
        self.store = TrainerStore(self.root / "state.db", "group", config)
        self.learner = Learner(config, self.store, self.root, lambda: self.model, 2, FakeBackend)
        self.learner.open()

    def restart(self, config: TrainerConfig = CONFIG) -> None:
        self.store.close()
        self.start(config)

    def step(self, *turn_ids: str) -> weights_pb2.VersionManifest | Skipped | None:
        self.store.intake.accept([make_sample(turn_id) for turn_id in turn_ids])
        return self.learner.train()

    def version(self, *turn_ids: str) -> weights_pb2.VersionManifest:
        manifest = self.step(*turn_ids)
        assert isinstance(manifest, weights_pb2.VersionManifest)
        self.learner.tidy(set())
        return manifest

    @property
    def pending(self) -> list[str]:
        return [status.turn_id for status in self.store.samples.statuses([])]


@pytest.fixture
def rig(tmp_path: Path, model: Path):
    rig = Rig(tmp_path, model)
    yield rig
    rig.store.close()


def test_a_step_makes_a_version_of_its_turns(rig: Rig) -> None:
    manifest = rig.version("a", "b")
    assert (manifest.version, manifest.parent, list(manifest.turn_ids)) == (1, 0, ["a", "b"])
    assert manifest.algorithm == "combine"
    assert manifest.settings["method"] == "lora"
    assert manifest.metrics["loss"] == 0.5
    base = rig.learner.versions.manifest(0)
    assert manifest.model_id == base.model_id
    assert manifest.digest and manifest.digest != base.digest
    assert rig.learner.versions.verify(1)
    assert (rig.store.versions.head, rig.pending) == (1, [])


def test_a_step_tells_what_it_is_busy_with(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def telling(real: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **options: Any) -> Any:
            told.append(rig.learner.stage)
            return real(*args, **options)
        return method

    for name in ("step", "save"):
        monkeypatch.setattr(FakeBackend, name, telling(getattr(FakeBackend, name)))
    rig.version("a", "b")
    assert told == ["training on 2 samples", "writing version 1"]


def test_the_base_model_is_version_0(rig: Rig) -> None:
    known = rig.store.versions.get(0)
    assert known is not None
    assert known.manifest.algorithm == "base"
    assert not known.manifest.HasField("parent")


def test_the_model_is_loaded_when_first_needed_and_kept(rig: Rig) -> None:
    assert FakeBackend.created == []
    rig.version("a")
    rig.version("b")
    assert [len(b.batches) for b in FakeBackend.created] == [2]
    rig.learner.release()
    assert rig.version("c").parent == 2
    assert [b.steps for b in FakeBackend.created] == [2, 3]


def test_a_back_end_that_died_while_idle_costs_no_sample_an_attempt(rig: Rig) -> None:
    rig.version("a")
    FakeBackend.created[-1].dead = True
    assert rig.version("b").parent == 1
    assert [b.closed for b in FakeBackend.created] == [True, False]


def test_it_goes_on_after_a_restart(rig: Rig) -> None:
    rig.version("a")
    rig.version("b")
    rig.store.intake.accept([make_sample("c")])
    rig.restart()
    assert rig.pending == ["c"]
    assert rig.version().parent == 2
    start = FakeBackend.created[-1].start
    assert start.weights and start.optimizer
    assert FakeBackend.created[-1].steps == 3


def test_an_abnormal_step_is_skipped_and_its_samples_dropped(rig: Rig) -> None:
    rig.version("a")
    FakeBackend.fail = AbnormalStep("the loss is nan")
    result = rig.step("b", "c")
    assert result == Skipped(["b", "c"], drop(DropReason.ABNORMAL_STEP, "the loss is nan"))
    assert rig.store.counters.all()["steps_skipped"] == 1
    assert rig.pending == []
    FakeBackend.fail = None
    assert rig.version("d").parent == 1
    # Built again from the checkpoint of before the step.
    assert FakeBackend.created[-1].start.weights is not None
    assert FakeBackend.created[-1].steps == 2


def test_any_error_of_a_step_drops_its_samples(rig: Rig) -> None:
    FakeBackend.fail = RuntimeError("shapes differ")
    assert rig.step("a") == Skipped(["a"], drop(DropReason.ABNORMAL_STEP, "RuntimeError: shapes differ"))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("could not create a primitive"), RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")])
def test_samples_wait_when_memory_runs_out(rig: Rig, error: Exception) -> None:
    FakeBackend.fail = error
    with pytest.raises(CannotTrain, match=r"memory ran out in a step on 2 samples.*its samples wait"):
        rig.step("a", "b")
    assert rig.pending == ["a", "b"]
    FakeBackend.fail = None
    assert rig.version().turn_ids == ["a", "b"]


def test_samples_that_no_memory_suffices_for_are_dropped_in_the_end(rig: Rig) -> None:
    FakeBackend.fail = MemoryError()
    with pytest.raises(CannotTrain):
        rig.step("a")
    for _ in range(MAX_ATTEMPTS - 1):
        with pytest.raises(CannotTrain):
            rig.step()
    assert isinstance(rig.step(), Skipped) and rig.pending == []


def test_a_step_that_is_given_up_costs_nothing(rig: Rig) -> None:
    rig.learner.stop()
    for _ in range(MAX_ATTEMPTS + 1):
        assert rig.step("a") is None
    assert rig.pending == ["a"]


def test_a_sample_that_kills_the_trainer_is_dropped_in_the_end(rig: Rig) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    FakeBackend.during = staticmethod(die)
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(Killed):
            rig.step("a")
        rig.restart()
    assert isinstance(rig.step("a"), Skipped)
    assert rig.pending == []


@pytest.mark.parametrize("where", ["versions", "checkpoints", "commit"])
def test_a_kill_before_the_commit_leaves_the_samples_waiting(
        rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    rig.version("a")

    class Killed(BaseException):
        pass

    def die(*args: object, **kwargs: object) -> None:
        raise Killed

    target = {"versions": rig.learner.versions, "checkpoints": rig.learner.files.checkpoints,
              "commit": rig.store}[where]
    monkeypatch.setattr(target, "commit" if where == "commit" else "write", die)
    monkeypatch.setattr(rig.learner.files, "remove", lambda version: None)  # a killed process tidies nothing up
    with pytest.raises(Killed):
        rig.step("b")
    rig.restart()
    assert rig.pending == ["b"]
    assert rig.learner.versions.versions() == [0, 1]
    assert rig.learner.files.checkpoints.versions() == [1]
    manifest = rig.version()
    assert (manifest.version, manifest.parent, list(manifest.turn_ids)) == (2, 1, ["b"])


def test_a_full_disk_keeps_the_samples_and_the_last_version(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.version("a")
    with monkeypatch.context() as patch:
        def full(*args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(rig.learner.files.checkpoints, "write", full)
        with pytest.raises(OSError):
            rig.step("b")
    assert (rig.pending, rig.store.versions.head, rig.learner.versions.versions()) == (["b"], 1, [0, 1])
    assert rig.version().parent == 1
    # The step that was lost is not in it.
    assert FakeBackend.created[-1].steps == 2


def test_old_versions_and_optimizers_are_deleted(rig: Rig) -> None:
    for turn in "abcde":
        rig.version(turn)
    assert rig.learner.versions.versions() == [0, 3, 4, 5]
    assert rig.learner.files.checkpoints.versions() == [3, 4, 5]
    folder = rig.root / "checkpoints"
    assert [v for v in (3, 4, 5) if (folder / str(v) / "optimizer.safetensors").exists()] == [5]


def test_after_a_rollback_it_goes_on_from_there_with_a_new_number(rig: Rig) -> None:
    for turn in "abc":
        rig.version(turn)
    rig.store.versions.move_head(2)
    manifest = rig.version("d")
    assert (manifest.version, manifest.parent) == (4, 2)
    backend = FakeBackend.created[-1]
    assert backend.steps == 3
    assert backend.start.optimizer is None
    rig.store.versions.move_head(0)
    assert rig.version("e").parent == 0
    assert FakeBackend.created[-1].start.weights is None


def test_a_rollback_during_a_step_makes_its_result_void(rig: Rig) -> None:
    rig.version("a")
    FakeBackend.during = staticmethod(lambda: rig.store.versions.move_head(0))
    assert rig.step("b") is None
    assert rig.pending == ["b"]
    FakeBackend.during = staticmethod(lambda: None)
    manifest = rig.version()
    assert (manifest.version, manifest.parent, list(manifest.turn_ids)) == (2, 0, ["b"])


def test_a_damaged_checkpoint_falls_back_to_the_version_before(rig: Rig) -> None:
    for turn in "abc":
        rig.version(turn)
    (rig.root / "checkpoints" / "3" / "weights.safetensors").write_text("9")
    rig.restart()
    manifest = rig.version("d")
    assert (manifest.version, manifest.parent) == (4, 2)
    assert FakeBackend.created[-1].steps == 3
    assert "checkpoint of version 3 is damaged" in rig.learner.files.problems[0]
    known = rig.store.versions.get(3)
    assert known is not None and known.lost


def test_without_any_checkpoint_it_begins_with_the_base_model(rig: Rig) -> None:
    rig.version("a")
    (rig.root / "checkpoints" / "1" / "weights.safetensors").unlink()
    rig.restart()
    assert rig.version("b").parent == 0


def test_another_method_is_an_error_that_says_what_to_do(rig: Rig) -> None:
    rig.version("a")
    rig.restart(TrainerConfig(lora_rank=4))
    rig.store.intake.accept([make_sample("b")])
    with pytest.raises(CannotTrain, match="lora_rank 16, the configuration says 4; set it back, or roll back"):
        rig.learner.train()
    assert rig.pending == ["b"]
    rig.store.versions.move_head(0)
    assert rig.version().parent == 0


def test_another_model_is_an_error_that_says_what_to_do(rig: Rig, tmp_path: Path) -> None:
    rig.version("a")
    other = tmp_path / "other"
    other.mkdir()
    for file in rig.model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "tokenizer.json").write_bytes((rig.model / "tokenizer.json").read_bytes() + b"\n")
    rig.model = other
    with pytest.raises(CannotTrain, match="another base model"):
        rig.restart()


def test_a_lost_store_does_not_use_numbers_again(rig: Rig) -> None:
    rig.version("a")
    rig.version("b")
    rig.store.close()
    (rig.root / "state.db").write_bytes(b"not a database" * 100)
    rig.start()
    assert rig.store.problems
    manifest = rig.version("c")
    assert (manifest.version, manifest.parent) == (3, 0)


def test_tokens_of_another_vocabulary_are_dropped(rig: Rig) -> None:
    sample = make_sample("a")
    sample.transition.turn.tokens.response_ids[0] = 4000
    rig.store.intake.accept([sample])
    assert rig.learner.train() is None
    assert rig.store.samples.statuses(["a"])[0].reason == "bad token record: token id 4000, but the model has 96"
