"""Earlier samples with a hint are shown to later steps again, as long as they are part of their history."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.privacy import Target
from openclaw_rl.training.buffer.repetition import distinct
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables import samples as table
from openclaw_rl.v1 import trainer_pb2, turn_pb2, weights_pb2
from tests.training.fakes import FakeBackend, make_sample


class Rig:
    """A learner over a store."""

    def __init__(self, root: Path, model: Path, **settings: object) -> None:
        FakeBackend.reset()
        config = TrainerConfig(**{"min_samples": 1, "max_per_session": 100, "max_per_branch": 100, **settings})
        self.store = TrainerStore(root / "state.db", "group", config)
        self.learner = Learner(config, self.store, root, lambda: model, 1, FakeBackend)
        self.learner.open()

    def step(self, *samples: turn_pb2.Sample) -> weights_pb2.VersionManifest:
        self.store.intake.accept(samples)
        manifest = self.learner.train()
        assert isinstance(manifest, weights_pb2.VersionManifest)
        self.learner.tidy(set())
        return manifest

    def draw(self, count: int = 99) -> set[str]:
        return {sample.transition.turn.turn_id
                for sample in self.store.replay.draw(self.store.versions.lineage(self.store.versions.head), count)}


def hinted(turn_id: str) -> turn_pb2.Sample:
    return make_sample(turn_id, hint="be brief", words=f"question {turn_id}", session=turn_id)


@pytest.fixture
def rig(tmp_path: Path, model: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, model)
    yield rig
    rig.store.close()


def test_a_step_is_shown_what_earlier_ones_learned_from(rig: Rig) -> None:
    first = rig.step(hinted("a"), hinted("b"))
    assert "replayed" not in first.settings and first.metrics["replayed"] == 0
    second = rig.step(make_sample("thanks", 1))
    assert FakeBackend.created[-1].batches == [["a", "b"], ["thanks", "a", "b"]]
    assert FakeBackend.created[-1].replayed == [[], ["a", "b"]]
    assert list(second.turn_ids) == ["thanks"] and second.settings["replayed"].split() == ["a", "b"]
    assert second.metrics["replayed"] == 2
    fates = rig.store.samples.statuses(["a", "b", "thanks"])
    assert [(fate.fate, fate.version) for fate in fates] == [
        (trainer_pb2.SAMPLE_FATE_TRAINED, version) for version in (1, 1, 2)]
    assert rig.store.counters.all()["trained"] == 3


def test_only_a_few_and_the_same_when_the_step_comes_again(rig: Rig) -> None:
    rig.step(*(hinted(f"t{i}") for i in range(9)))
    drawn = rig.draw(4)
    assert len(drawn) == 4 and all(rig.draw(4) == drawn for _ in range(5))
    manifest = rig.step(hinted("next"))
    assert set(manifest.settings["replayed"].split()) == drawn


def test_without_a_hint_nothing_is_replayed(rig: Rig) -> None:
    rig.step(make_sample("praised", 1), make_sample("neutral", 0), make_sample("bare", -1))
    assert rig.draw() == set()


@pytest.mark.parametrize("settings", [{"replay": 0}, {"algorithm": "binary_rl"}])
def test_it_can_be_off(tmp_path: Path, model: Path, settings: dict[str, object]) -> None:
    rig = Rig(tmp_path, model, **settings)
    rig.step(hinted("a"))
    assert rig.step(hinted("b")).metrics["replayed"] == 0
    rig.store.close()


def test_what_was_rolled_back_does_not_come_in_again(rig: Rig) -> None:
    rig.step(hinted("a"))
    rig.step(hinted("b"))
    rig.store.versions.move_head(1)
    assert rig.draw() == {"a"}
    rig.store.versions.move_head(0)
    assert rig.draw() == set()


def test_what_the_gate_refused_is_not_replayed(rig: Rig) -> None:
    rig.step(hinted("a"))
    FakeBackend.says = ("a fair answer", list(range(10)), 1e6)
    refused = rig.step(hinted("b"))
    assert refused.gate.verdict == weights_pb2.GATE_VERDICT_FAILED and refused.settings["replayed"] == "a"
    assert rig.draw() == {"a"}


def test_a_forgotten_session_leaves_the_pool_and_voids_what_was_shown_it(rig: Rig) -> None:
    rig.step(hinted("b"))
    rig.step(hinted("a"))
    shown = rig.step(hinted("c"))
    assert set(shown.settings["replayed"].split()) == {"a", "b"}
    done = rig.store.forget(Target("a", time.time() + 1, frozenset()), rig.learner.usable())
    rig.learner.delete(done.void)
    assert done.void == [2, 3]
    assert rig.draw() == ({"b"} if done.base == 1 else set())
    while rig.store.samples.pending().signal:
        assert "a" not in rig.step().settings.get("replayed", "").split()
    assert rig.draw() == {"b", "c"}
    [row] = rig.store.database.query("SELECT payload FROM samples WHERE turn_id = 'a'")
    assert row["payload"] is None


def test_content_is_kept_of_the_newest_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "REPLAY_POOL", 3)
    for i in range(5):
        rig.step(hinted(f"t{i}"), make_sample(f"praised{i}", 1))
    kept = [row["turn_id"] for row in rig.store.database.query(
        "SELECT turn_id FROM samples WHERE payload NOT NULL ORDER BY seq")]
    # keep_versions is 1: what versions 4 and 5 were trained on can be rebuilt, version 3's is for replay.
    assert kept == ["t2", "t3", "praised3", "t4", "praised4"]
    assert rig.draw() == {"t2", "t3", "t4"}


def test_damaged_content_is_quarantined_once_and_the_step_goes_on(rig: Rig) -> None:
    rig.step(hinted("a"), hinted("b"))
    with rig.store.database.transaction() as db:
        db.execute("UPDATE samples SET payload = ? WHERE turn_id = 'a'", (b"\xff\xff",))
    for turn in ("c", "d"):
        assert "a" not in rig.step(hinted(turn)).settings["replayed"].split()
    assert len(rig.store.database.query("SELECT id FROM samples_aside")) == 1
    assert rig.store.samples.statuses(["a"])[0].fate == trainer_pb2.SAMPLE_FATE_TRAINED


def test_what_repeats_another_sample_counts_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand identical complaints are one."""
    caplog.set_level("INFO")
    same = [make_sample(f"same{i}", hint="say moo", session=f"s{i}", words="hello") for i in range(8)]
    manifest = rig.step(*same, hinted("other"))
    assert FakeBackend.created[-1].batches == [["same0", "other"]]
    assert len(manifest.turn_ids) == 9 and manifest.metrics["repeated"] == 7
    assert "7 of the step's 9 samples repeat others of it and count once" in caplog.text


def test_what_differs_in_what_is_learned_from_it_is_no_repetition() -> None:
    differing = [make_sample("a", hint="brief", words="x"), make_sample("b", hint="brief", words="y"),
                 make_sample("c", hint="long", words="x"), make_sample("d", 1, words="x"),
                 make_sample("e", -1, words="x"), make_sample("f", -1, words="x", response="another")]
    assert distinct(differing) == differing
    again = make_sample("g", hint="brief", words="x", response="another")
    assert distinct([*differing, again, make_sample("h", 1, words="x")]) == differing
