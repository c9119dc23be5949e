"""What is refused or found damaged by the trainer: samples that can't be ours, flipped bits, foreign versions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.buffer import intake
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import DropReason, drop
from openclaw_rl.training.version_quarantine import KEEP, quarantine_version
from openclaw_rl.v1 import common_pb2, turn_pb2, weights_pb2
from tests.training.fakes import make_sample
from tests.training.test_learner import Rig

ACCEPTED, DUPLICATE, REJECTED = (common_pb2.ACK_STATUS_ACCEPTED, common_pb2.ACK_STATUS_DUPLICATE,
                                 common_pb2.ACK_STATUS_REJECTED)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrainerStore]:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    yield store
    store.close()


@pytest.fixture
def rig(tmp_path: Path, model: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, model)
    yield rig
    rig.store.close()


def reason(store: TrainerStore, turn_id: str) -> str:
    return store.samples.statuses([turn_id])[0].reason


def test_a_second_sample_of_a_turn_is_refused_and_the_first_stands(store: TrainerStore) -> None:
    acks = store.intake.accept([make_sample("a", -1), make_sample("a", -1), make_sample("a", 1)])
    assert [ack.status for ack in acks] == [ACCEPTED, DUPLICATE, REJECTED]
    assert "that one stands" in acks[2].reason
    assert [(id, text == acks[2].reason) for id, text in store.samples.quarantine.recent()] == [("a", True)]
    assert store.samples.batch(9) == [make_sample("a", -1)]
    store.commit(weights_pb2.VersionManifest(version=1, parent=0, turn_ids=["a"]), {})
    assert store.intake.accept([make_sample("a", 1)])[0].status == REJECTED, "also when it was trained on"
    assert store.intake.accept([make_sample("a", -1)])[0].status == DUPLICATE


@pytest.mark.parametrize("turn_id", ["", "x" * 300, "a\tb"])
def test_impossible_ids_are_refused_and_kept_aside(store: TrainerStore, turn_id: str) -> None:
    [ack] = store.intake.accept([make_sample(turn_id)])
    assert ack.status == REJECTED and ack.reason.startswith("transition.turn.turn_id: ")
    assert store.samples.quarantine.count == 1 and store.samples.pending().total == 0


def _spoil(change: Callable[[turn_pb2.TokenRecord], None]) -> turn_pb2.Sample:
    sample = make_sample("a")
    change(sample.transition.turn.tokens)
    return sample


@pytest.mark.parametrize("change, text", [
    (lambda t: t.logprobs.pop(), "response_ids but"), (lambda t: t.model_logprobs.append(-1.0), "response_ids but"),
    (lambda t: t.response_ids.append(3), "response_ids but"),
    (lambda t: t.logprobs.__setitem__(0, float("nan")), "finite"),
    (lambda t: t.model_logprobs.__setitem__(0, float("-inf")), "finite"),
    (lambda t: t.logprobs.__setitem__(0, 0.5), "at most 0"),
    (lambda t: t.response_ids.__setitem__(0, -1), "negative token id"),
    (lambda t: setattr(t.spans[0], "end", t.spans[0].end - 1), "spans cover"),
    (lambda t: setattr(t.spans[0], "begin", 1), "doesn't follow"),
    (lambda t: setattr(t.spans[0], "version", -2), "is of version -2")])
def test_a_record_that_does_not_fit_together_is_dropped_and_kept_aside(
        store: TrainerStore, change: Callable[[turn_pb2.TokenRecord], None], text: str) -> None:
    good, spoilt = make_sample("b"), _spoil(change)
    assert [ack.status for ack in store.intake.accept([spoilt, good])] == [ACCEPTED, ACCEPTED]
    assert reason(store, "a").startswith("bad token record: ") and text in reason(store, "a")
    assert store.samples.quarantine.recent() == [("a", reason(store, "a"))]
    assert store.samples.batch(9) == [good], "nothing else is disturbed"


def test_a_flipped_bit_in_a_sample_that_can_still_be_read_is_never_trained_on(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a"), make_sample("b")])
    with store.database.transaction() as db:
        [(payload,)] = db.execute("SELECT payload FROM samples WHERE turn_id = 'a'").fetchall()
        flipped = payload.replace(b"hello", b"jello")
        assert turn_pb2.Sample.FromString(flipped).transition.turn.turn_id == "a"
        db.execute("UPDATE samples SET payload = ? WHERE turn_id = 'a'", (flipped,))
    assert store.samples.batch(9) == [make_sample("b")]
    assert reason(store, "a") == "damaged on disk"
    assert store.samples.quarantine.recent() == [("a", "the sample's record on the trainer's disk is damaged")]


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    store.intake.accept([make_sample("a")])
    with store.database.transaction() as db:
        db.execute("ALTER TABLE samples DROP COLUMN crc")
        db.execute("ALTER TABLE samples DROP COLUMN content")
    store.close()
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    assert store.samples.batch(9) == [make_sample("a")]
    assert store.intake.accept([make_sample("a")])[0].status == DUPLICATE
    store.close()


def test_old_fates_go_and_what_is_pending_stays(store: TrainerStore) -> None:
    store.intake.accept([make_sample(f"t{i}") for i in range(10)])
    store.samples.drop([f"t{i}" for i in range(1, 10)], drop(DropReason.ABNORMAL_STEP, "x"))
    with store.database.transaction() as db:
        assert store._samples.prune(db, keep=4) == 5
    assert [s.turn_id for s in store.samples.statuses([f"t{i}" for i in range(10)])] == ["t0", "t6", "t7", "t8", "t9"]
    assert store.counters.all()["dropped:abnormal step"] == 9


def test_scores_of_old_versions_go_and_those_of_the_base_stay(store: TrainerStore,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    with store.database.transaction() as db:
        for version in range(10):
            store.scores.add(db, version, 1)
            store.scores.add(db, version, -1)
        store.scores.prune(db, keep=3)
    assert sorted(store.scores.all()) == [0, 7, 8, 9]
    assert store.scores.recent([9, 8, 3, 0], turns=3).turns == 4
    assert store.scores.recent([9, 8, 3, 0], turns=99).turns == 6
    pruned: list[int] = []
    monkeypatch.setattr(intake, "_PRUNE_EVERY", 2)
    monkeypatch.setattr(store.scores, "prune", lambda db: pruned.append(1))
    store.intake.accept([make_sample(f"t{i}") for i in range(4)])
    assert len(pruned) == 2


def test_samples_of_versions_that_never_were_and_of_other_models_are_dropped(rig: Rig) -> None:
    rig.version("a")
    other = make_sample("other")
    other.transition.turn.tokens.response_ids[0] = 96  # the model has 96 tokens
    rig.store.intake.accept([make_sample("b", version=1), make_sample("future", version=7), other])
    assert rig.version().turn_ids == ["b", "future"], "a new file does not know the policy server's versions"
    assert "token id 96, but the model has 96" in reason(rig.store, "other")
    rig.store.versions.activated(1, 5.0)
    rig.store.intake.accept([make_sample("c", version=2), make_sample("future2", version=7)])
    assert rig.version().turn_ids == ["c"]
    assert reason(rig.store, "future2") == "bad token record: sampled from version 7, but the newest is 2"
    assert [id for id, _ in rig.store.samples.quarantine.recent()] == ["future2", "other"]


def test_a_foreign_version_is_set_aside_and_not_deleted(rig: Rig) -> None:
    rig.version("a")
    for kind in ("versions", "checkpoints"):
        shutil.copytree(rig.root / kind / "1", rig.root / kind / "9")
    rig.restart()
    assert rig.learner.versions.versions() == [0, 1]
    assert not (rig.root / "checkpoints" / "9").exists()
    assert any("version 9" in text for text in rig.learner.damaged())
    kept = [*rig.root.glob("set-aside/version-9-*/*"), *rig.root.glob("versions/corrupt-9-*")]
    assert kept, "a person can look at it"
    assert rig.version("b").version == 2


def test_versions_of_a_lost_file_are_set_aside_and_not_deleted(rig: Rig) -> None:
    rig.version("a")
    rig.store.close()
    (rig.root / "state.db").write_bytes(b"nonsense" * 1000)
    rig.start()
    [place] = rig.root.glob("set-aside/version-1-*")
    assert {path.name for path in place.iterdir()} == {"versions", "checkpoints"}
    assert "it is not in this trainer's file" in rig.learner.damaged()[0]
    assert rig.version("b").version == 2, "its number does not come again"


def test_a_version_with_other_weights_than_the_trainer_made_is_set_aside(rig: Rig) -> None:
    rig.version("a")
    rig.version("b")
    first, second = (rig.learner.versions.manifest(version) for version in (1, 2))
    with rig.store.database.transaction() as db:  # as if somebody had exchanged the folder, its manifest with it
        row = weights_pb2.VersionManifest.FromString(db.execute("SELECT manifest FROM versions WHERE version = 1")
                                                     .fetchone()[0])
        row.digest = second.digest
        db.execute("UPDATE versions SET manifest = ?, crc = NULL WHERE version = 1", (row.SerializeToString(),))
    rig.restart()
    assert 1 not in rig.learner.versions.versions() and first.digest != second.digest
    assert "its digest is not that of the version that this trainer made" in rig.learner.damaged()[0]
    assert rig.version("c").parent == 2


def test_only_some_versions_are_kept_aside(tmp_path: Path) -> None:
    for version in range(KEEP + 2):
        (tmp_path / "versions" / str(version)).mkdir(parents=True)
        quarantine_version(tmp_path, version)
    assert len(list((tmp_path / "set-aside").iterdir())) == KEEP


@pytest.mark.parametrize("damage", ["UPDATE versions SET manifest = x'ffff' WHERE version = 1",
                                    "UPDATE versions SET checkpoint = '{' WHERE version = 1",
                                    "UPDATE versions SET manifest = CAST(replace(CAST(manifest AS TEXT), 'combine', "
                                    "'combino') AS BLOB) WHERE version = 1"])
def test_a_damaged_record_of_a_version_is_restored_from_its_folder(rig: Rig, damage: str) -> None:
    made = rig.version("a")
    with rig.store.database.transaction() as db:
        assert db.execute(damage).rowcount == 1
    rig.restart()
    known = rig.store.versions.get(1)
    assert known is not None and list(known.manifest.turn_ids) == ["a"] and known.manifest.digest == made.digest
    assert "the record of version 1 in the trainer's state.db was damaged; it was restored" in rig.learner.damaged()[0]
    assert rig.version("b").version == 2
    rig.restart()
    assert not rig.learner.damaged()


def test_it_is_restored_also_when_the_process_ended_before(rig: Rig) -> None:
    made = rig.version("a")
    with rig.store.database.transaction() as db:
        db.execute("UPDATE versions SET manifest = x'ffff' WHERE version = 1")
    rig.store.close()
    TrainerStore(rig.root / "state.db", "group", TrainerConfig()).close()
    rig.restart()
    known = rig.store.versions.get(1)
    assert known is not None and known.manifest.digest == made.digest and rig.learner.versions.versions() == [0, 1]
    assert rig.version("b").version == 2


def test_a_damaged_record_of_a_version_that_is_gone_is_no_obstacle(rig: Rig) -> None:
    rig.version("a")
    rig.version("b")
    with rig.store.database.transaction() as db:
        db.execute("UPDATE versions SET manifest = x'ffff' WHERE version = 1")
    shutil.rmtree(rig.root / "versions" / "1")
    rig.restart()
    known = rig.store.versions.get(1)
    assert known is not None and known.lost and str(known.status) == "its record is damaged"
    assert rig.version("c").parent == 2
