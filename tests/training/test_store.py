from __future__ import annotations

import time
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.buffer.sample_buffer import MAX_ATTEMPTS
from openclaw_rl.training.store import HeadMoved, TrainerStore
from openclaw_rl.training.tables.reasons import DropReason, drop
from openclaw_rl.v1 import common_pb2, trainer_pb2, turn_pb2, weights_pb2
from tests.training.fakes import make_sample


@pytest.fixture
def store(tmp_path: Path):
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    yield store
    store.close()


def ids(samples: list[turn_pb2.Sample]) -> list[str]:
    return [sample.transition.turn.turn_id for sample in samples]


def fate(store: TrainerStore, turn_id: str) -> trainer_pb2.SampleStatus:
    return store.samples.statuses([turn_id])[0]


def manifest(version: int, parent: int, *turn_ids: str) -> weights_pb2.VersionManifest:
    return weights_pb2.VersionManifest(version=version, parent=parent, turn_ids=turn_ids)


def test_each_sample_is_kept_once(store: TrainerStore) -> None:
    acks = store.intake.accept([make_sample("a"), make_sample("b"), make_sample("a"), turn_pb2.Sample()])
    assert [(ack.id, ack.status) for ack in acks] == [
        ("a", common_pb2.ACK_STATUS_ACCEPTED), ("b", common_pb2.ACK_STATUS_ACCEPTED),
        ("a", common_pb2.ACK_STATUS_DUPLICATE), ("", common_pb2.ACK_STATUS_REJECTED)]
    assert acks[3].reason
    assert store.samples.pending().total == 2
    assert store.counters.all() == {"accepted": 2}


def test_what_cannot_be_trained_is_dropped_at_once(store: TrainerStore) -> None:
    failed = make_sample("a")
    failed.judgement.failed = True
    without = make_sample("b", score=1)
    without.transition.turn.ClearField("tokens")
    store.intake.accept([failed, without])
    assert (fate(store, "a").fate, fate(store, "a").reason) == (trainer_pb2.SAMPLE_FATE_DROPPED, "judge failed")
    assert not fate(store, "a").HasField("score")
    assert (fate(store, "b").reason, fate(store, "b").score) == ("no token ids", 1)
    assert store.samples.pending().total == 0
    assert store.counters.all() == {"accepted": 2, "dropped:judge failed": 1, "dropped:no token ids": 1}


def test_turns_of_another_mesh_are_not_trained_on(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(), mesh_id="mesh-ours")
    ours, theirs, nobodys = (make_sample(id, 1) for id in ("ours", "theirs", "nobodys"))
    ours.transition.turn.mesh_id, theirs.transition.turn.mesh_id = "mesh-ours", "mesh-theirs"
    theirs.transition.turn.episode.episode_id = "of theirs"
    assert {ack.status for ack in store.intake.accept([ours, theirs, nobodys])} == {common_pb2.ACK_STATUS_ACCEPTED}
    assert [sample.turn_id for sample in store.samples.statuses([])] == ["ours"]
    assert fate(store, "theirs").reason == "foreign mesh: the turn is of the mesh mesh-theirs, and this is mesh-ours"
    assert fate(store, "nobodys").reason.startswith("foreign mesh: no environment server of this mesh took the turn in")
    assert store.counters.all() == {"accepted": 3, "dropped:foreign mesh": 2}
    assert store.samples.quarantine.count == 2
    assert store.scores.all()[0].turns == 1, "the others say nothing of our versions"
    store.close()


@pytest.mark.parametrize(("algorithm", "signal"), [("combine", 2), ("binary_rl", 1), ("opd", 1), ("opd_full", 1)])
def test_what_has_a_signal_depends_on_the_algorithm(tmp_path: Path, algorithm: str, signal: int) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(algorithm=algorithm))
    store.intake.accept([make_sample("neutral", 0), make_sample("scored", 1), make_sample("hinted", 0, "be brief")])
    assert (store.samples.pending().total, store.samples.pending().signal) == (3, signal)
    store.close()


def test_a_batch_has_signals_first_then_the_oldest(store: TrainerStore) -> None:
    store.intake.accept([make_sample("n1", 0), make_sample("n2", 0), make_sample("s1"), make_sample("s2")])
    assert [s.transition.turn.turn_id for s in store.samples.batch(3)] == ["s1", "s2", "n1"]


def test_neutral_samples_are_at_most_half_a_batch(store: TrainerStore) -> None:
    store.intake.accept([make_sample(f"n{i}", 0) for i in range(4)] + [make_sample("s")])
    assert [s.transition.turn.turn_id for s in store.samples.batch(16)] == ["s", "n0"]


def test_one_branch_has_at_most_so_many_samples_in_a_batch(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(max_per_branch=2, max_per_session=3))

    def sample(turn_id: str, branch: str, score: int = 1) -> turn_pb2.Sample:
        made = make_sample(turn_id, score, session="s")
        made.transition.turn.branch_id = branch
        return made

    store.intake.accept([sample("n", "a", 0), *(sample(f"a{i}", "a") for i in range(4)), sample("b0", "b"),
                         sample("b1", "b"), make_sample("other", session="o")])
    pending = store.samples.pending()
    assert (pending.total, pending.signal, pending.held) == (8, 4, 4)
    assert ids(store.samples.batch(16)) == ["a0", "a1", "b0", "other"], "two of branch a, three of session s"
    store.close()
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(max_per_branch=9, max_per_session=9))
    assert store.samples.pending().held == 0
    assert ids(store.samples.batch(16)) == ["a0", "a1", "a2", "a3", "b0", "b1", "other", "n"]
    store.close()


def test_one_session_has_at_most_so_many_samples_in_a_batch(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(max_per_session=2))
    store.intake.accept([make_sample(f"a{i}", session="a") for i in range(5)]
                 + [make_sample("an", 0, session="a"), make_sample("b", session="b"), make_sample("bn", 0, session="b"),
                    make_sample("x", session=""), make_sample("y", session=""), make_sample("z", session="")])
    pending = store.samples.pending()
    assert (pending.total, pending.signal, pending.held) == (11, 6, 4)
    seen = []
    version = 0
    while batch := ids(store.samples.batch(16)):
        seen.append(batch)
        store.commit(manifest(version + 1, version, *batch), {})
        version += 1
    # Oldest first, and each in one batch: nobody waits for ever.
    assert seen == [["a0", "a1", "b", "x", "y", "z", "bn"], ["a2", "a3"], ["a4", "an"]]
    assert store.samples.pending().total == 0
    store.close()


def make_history(store: TrainerStore, versions: int) -> None:
    for version in range(1, versions + 1):
        store.commit(manifest(version, version - 1), {})


def test_a_stale_sample_is_dropped_when_it_comes(store: TrainerStore) -> None:
    make_history(store, 9)
    store.intake.accept([make_sample("old", version=0), make_sample("new", version=1)])
    assert fate(store, "old").reason == "stale: sampled from version 0, 9 versions old"
    assert (ids(store.samples.batch(9)), store.counters.all()["dropped:stale"]) == (["new"], 1)


def test_a_sample_that_became_stale_is_dropped_when_a_batch_is_formed(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a"), make_sample("b", 0), make_sample("c", version=2)])
    make_history(store, 8)
    assert store.samples.drop_stale() == 0
    store.commit(manifest(9, 8), {})
    assert ids(store.samples.batch(9)) == ["c"]
    assert fate(store, "a").reason == fate(store, "b").reason == "stale: sampled from version 0, 9 versions old"


def test_versions_are_counted_and_not_their_numbers(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a"), make_sample("later", version=90)])
    store.commit(manifest(50, 0), {})
    assert ids(store.samples.batch(9)) == ["a", "later"]


def test_a_cut_response_is_penalised_as_configured(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(truncated="penalise"))
    cut = make_sample("cut", 1)
    cut.transition.turn.finish_reason = turn_pb2.FINISH_REASON_LENGTH
    store.intake.accept([cut, make_sample("whole", 1)])
    assert [(s.turn_id, s.score) for s in store.samples.statuses([])] == [("cut", -1), ("whole", 1)]
    assert [s.judgement.score for s in store.samples.batch(9)] == [-1, 1]
    store.close()


def test_a_degenerate_response_is_dropped_with_the_reason(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a", 1, response="ha" * 20), make_sample("b", response="ha" * 20)])
    assert fate(store, "a").reason == "degenerate: the same 4 tokens again and again are 40 of 40"
    assert store.counters.all() == {"accepted": 2, "dropped:degenerate": 2}


def test_a_file_of_before_is_taken_over(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    store.intake.accept([make_sample(f"t{i}") for i in range(5)])
    with store.database.transaction() as db:
        db.execute("DROP INDEX pending_of")
        for column in ("session", "sampled_from", "branch"):
            db.execute(f"ALTER TABLE samples DROP COLUMN {column}")
    store.close()
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    assert len(store.samples.batch(9)) == 5
    store.intake.accept([make_sample("new")])
    assert len(store.samples.batch(9)) == 6
    store.close()


@pytest.mark.parametrize("damage", [b"\xff" * 30, b"", "text", make_sample("other").SerializeToString()])
def test_a_damaged_sample_is_dropped_and_the_others_are_trained(store: TrainerStore, damage: object) -> None:
    store.intake.accept([make_sample("a"), make_sample("b"), make_sample("c")])
    with store.database.transaction() as db:
        db.execute("UPDATE samples SET payload = ? WHERE turn_id = 'a'", (damage,))
    assert [sample.transition.turn.turn_id for sample in store.samples.batch(2)] == ["b", "c"]
    assert fate(store, "a").reason == "damaged on disk"
    assert store.counters.all()["dropped:damaged on disk"] == 1


def test_a_commit_is_fates_and_head_together(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a"), make_sample("b"), make_sample("c")])
    store.commit(manifest(1, 0, "a", "b"), {"f": "digest"})
    assert (store.versions.head, store.versions.highest) == (1, 1)
    assert (fate(store, "a").fate, fate(store, "a").version) == (trainer_pb2.SAMPLE_FATE_TRAINED, 1)
    assert [status.turn_id for status in store.samples.statuses([])] == ["c"]
    known = store.versions.get(1)
    assert known is not None and known.files == {"f": "digest"}
    assert store.counters.all() == {"accepted": 3, "trained": 2, "updates": 1}


def test_a_commit_on_another_head_changes_nothing(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a"), make_sample("b")])
    store.commit(manifest(1, 0, "a"), {})
    store.versions.move_head(0)
    with pytest.raises(HeadMoved):
        store.commit(manifest(2, 1, "b"), {})
    assert (store.versions.head, store.versions.highest, store.versions.get(2)) == (0, 1, None)
    assert fate(store, "b").fate == trainer_pb2.SAMPLE_FATE_PENDING


def test_a_trained_sample_that_comes_again_is_a_duplicate(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a")])
    store.commit(manifest(1, 0, "a"), {})
    assert store.intake.accept([make_sample("a")])[0].status == common_pb2.ACK_STATUS_DUPLICATE
    assert store.samples.pending().total == 0


def test_dropped_reasons_are_counted_by_class(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a"), make_sample("b")])
    store.samples.drop(["a"], drop(DropReason.ABNORMAL_STEP, "the loss is nan"), skipped_step=True)
    store.samples.drop(["b", "a"], drop(DropReason.ABNORMAL_STEP, "the gradient exploded"), skipped_step=True)
    assert store.counters.all() == {"accepted": 2, "dropped:abnormal step": 2, "steps_skipped": 2}
    assert fate(store, "a").reason == "abnormal step: the loss is nan"


def test_samples_that_end_the_process_are_found(store: TrainerStore) -> None:
    store.intake.accept([make_sample("a"), make_sample("b")])
    for _ in range(MAX_ATTEMPTS):
        assert store.samples.attempt(["a"]) == []
    store.samples.attempt(["b"])
    store.samples.undo_attempt(["b"])
    assert store.samples.attempt(["a", "b"]) == ["a"]


def test_neutral_samples_do_not_pile_up(store: TrainerStore) -> None:
    store.intake.accept([make_sample(f"n{i}", 0) for i in range(5)] + [make_sample("s")])
    assert store.samples.drop_neutral(older_than=0, beyond=3) == 2
    assert [status.turn_id for status in store.samples.statuses([])] == ["n2", "n3", "n4", "s"]
    assert store.samples.drop_neutral(older_than=time.time() + 1, beyond=3) == 3
    assert [status.turn_id for status in store.samples.statuses([])] == ["s"]
    assert fate(store, "n0").reason.startswith("no signal: ")


def test_neutral_samples_of_before_the_clock_was_set_back_do_not_wait_for_its_old_time(
        store: TrainerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7200)
    store.intake.accept([make_sample("ahead", 0)])
    monkeypatch.setattr(time, "time", lambda: now)
    store.intake.accept([make_sample("now", 0)])
    assert store.samples.drop_neutral(older_than=now - 60, beyond=9) == 1
    assert [status.turn_id for status in store.samples.statuses([])] == ["now"]


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    store.intake.accept([make_sample("a"), make_sample("b", 1, "be brief")])
    store.commit(manifest(1, 0, "a"), {"f": "x"})
    store.state.set("paused", "")
    store.versions.activated(1, 5.0)
    store.close()
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    assert (store.versions.head, store.versions.highest, store.versions.active) == (1, 1, 1)
    assert store.state.get("paused") == ""
    assert store.samples.batch(9) == [make_sample("b", 1, "be brief")]
    known = store.versions.get(1)
    assert known is not None and (known.activated_at, str(known.status)) == (5.0, "")
    store.close()
