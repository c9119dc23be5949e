"""Groups of episodes in state.db: what is waited for, what is dropped, and that a kill changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.privacy import Target
from openclaw_rl.training.buffer import groups, sample_buffer
from openclaw_rl.training.buffer.validation import NOT_OF_EPISODE
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import DropReason, drop
from openclaw_rl.training.tables.samples import EPISODE_COLUMNS
from openclaw_rl.v1 import common_pb2, turn_pb2, weights_pb2
from tests.training.episodes import step_of
from tests.training.fakes import make_sample

ACCEPTED, DUPLICATE = common_pb2.ACK_STATUS_ACCEPTED, common_pb2.ACK_STATUS_DUPLICATE
LATER = 1801.0


class Rig:
    """A store that can be killed."""

    def __init__(self, path: Path, **settings: object) -> None:
        self._path, self._config = path, TrainerConfig(**settings)
        self.store = TrainerStore(path, "group", self._config)
        self.store.versions.add_base(weights_pb2.VersionManifest(version=0, digest="base"))

    def kill(self) -> None:
        self.store.close()
        self.store = TrainerStore(self._path, "group", self._config)

    def reconfigure(self, **settings: object) -> None:
        self._config = TrainerConfig(**settings)
        self.kill()

    def take(self, *samples: turn_pb2.Sample) -> None:
        assert all(ack.status == ACCEPTED for ack in self.store.intake.accept(samples))

    def settle(self, later: float = 0.0) -> None:
        self.store.episodes.settle(time.time() + later)

    def fates(self) -> dict[str, str]:
        rows = self.store.database.query("SELECT turn_id, fate, reason FROM samples ORDER BY seq")
        return {row["turn_id"]: row["reason"] or row["fate"] for row in rows}

    def ready(self) -> dict[str, float]:
        return {sample.transition.turn.turn_id: round(advantage, 3) for group in self.store.episodes.batches()
                for sample, advantage, _ in group}

    def trained(self, version: int, parent: int = 0) -> None:
        self.store.commit(weights_pb2.VersionManifest(version=version, parent=parent, algorithm="grpo",
                                                      turn_ids=list(self.ready())), {})

    def counts(self) -> dict[str, int]:
        return {name.removeprefix("groups_"): count for name, count in self.store.counters.all().items()
                if name.startswith("groups_")}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "state.db")
    yield rig
    rig.store.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """Turns that were told to be dropped, and why."""
    told: list[tuple[list[str], str]] = []
    monkeypatch.setattr(sample_buffer.traces, "dropped", lambda turn_ids, reason: told.append((list(turn_ids), reason)))
    return told


def test_a_group_is_whole_when_all_episodes_ended_and_all_their_steps_came(rig: Rig) -> None:
    rig.take(step_of("a", 1), step_of("b", 2, outcome=0.0), step_of("b", 1))
    rig.settle()
    assert rig.store.episodes.waiting().text == "group g waits for 1 of 2 episodes"
    rig.take(step_of("a", 3, outcome=1.0))  # its step 2 is under way
    rig.settle()
    assert rig.store.episodes.waiting().text == "group g waits for the last samples of its episodes"
    assert (rig.store.episodes.waiting().ready, rig.store.episodes.waiting().samples, rig.ready()) == (0, 4, {})
    rig.take(step_of("a", 2))
    rig.settle()
    assert rig.ready() == {"a-1": 1, "a-2": 1, "a-3": 1, "b-1": -1, "b-2": -1}
    assert (rig.store.episodes.waiting().ready, rig.store.episodes.waiting().samples_ready) == (1, 5)
    rig.trained(1)
    assert rig.counts() == {"whole": 1}
    assert rig.store.episodes.waiting().samples == 0
    [status] = rig.store.samples.statuses(["b-2"])
    assert (status.version, round(status.advantage, 3)) == (1, -1)


def test_a_kill_at_any_moment_changes_nothing(rig: Rig) -> None:
    for sample in (step_of("a", 1), step_of("a", 2, outcome=1.0), step_of("b", 1, outcome=0.0)):
        rig.take(sample)
        rig.kill()
        assert rig.store.intake.accept([sample])[0].status == DUPLICATE
    rig.settle()
    rig.kill()
    rig.settle()
    assert rig.ready() == {"a-1": 1, "a-2": 1, "b-1": -1}
    rig.trained(1)
    rig.kill()
    rig.settle(LATER)
    assert (rig.counts(), set(rig.fates().values())) == ({"whole": 1}, {"trained"})


@pytest.mark.parametrize("lost", [
    {"failed": True}, {"response": "z" * 60}, {"words": "w" * 2100}, {"turn_id": "x" * 200}])
def test_the_outcome_is_taken_of_a_sample_that_is_dropped(rig: Rig, lost: dict[str, object]) -> None:
    rig.take(step_of("a", 1), step_of("a", 2, outcome=1.0, **lost), step_of("b", 1, outcome=0.0))  # type: ignore[arg-type]
    rig.settle()
    assert rig.ready()["a-1"] == 1
    assert rig.ready()["b-1"] == -1


def test_a_step_whose_judgement_failed_has_no_reward_unless_only_the_outcome_counts(tmp_path: Path) -> None:
    for step_rewards, expected in (("full", {"a-1": 1.0, "b-1": -1.0}), ("off", {"a-1": 0.707, "b-1": 0.707})):
        rig = Rig(tmp_path / f"{step_rewards}.db", grpo={"step_rewards": step_rewards})
        rig.take(step_of("a", size=3, outcome=1.0), step_of("b", size=3, votes=(-1,), outcome=1.0),
                 step_of("c", size=3, outcome=0.0, failed=True))
        rig.settle()
        assert rig.ready() == expected
        rig.store.close()


def test_the_environments_own_rewards_count(rig: Rig) -> None:
    generous = step_of("a", outcome=0.0)
    generous.transition.step_reward = 0.5
    rig.take(generous, step_of("b", outcome=0.0))
    rig.settle()
    assert rig.ready() == {"a-1": 1, "b-1": -1}


def test_an_episode_that_was_broken_off_costs_its_own_samples_only(rig: Rig) -> None:
    rig.take(step_of("a", 1, size=3), step_of("b", size=3, outcome=1.0), step_of("c", size=3, outcome=0.0),
             step_of("a", 3, size=3, error="the sandbox died"), step_of("a", 2, size=3))
    rig.settle()
    assert rig.ready() == {"b-1": 1, "c-1": -1}
    broken = "episode broken off: the sandbox died"
    assert [rig.fates()[f"a-{step}"] for step in (1, 2, 3)] == [broken] * 3
    rig.trained(1)
    assert rig.counts() == {"whole": 1}


@pytest.mark.parametrize(("outcome", "reason"), [
    (float("nan"), "its outcome nan is not from 0 to 1"), (2.0, "its outcome 2.0 is not from 0 to 1"),
    (None, "it has no outcome")])
def test_an_outcome_that_is_none_breaks_its_episode_off(rig: Rig, outcome: float | None, reason: str) -> None:
    sample = step_of("a")
    sample.transition.outcome.CopyFrom(turn_pb2.EpisodeOutcome(value=outcome, steps=1))
    rig.take(sample)
    assert rig.fates() == {"a-1": f"episode broken off: {reason}"}


def test_an_incomplete_group_is_trained_on_when_enough_of_it_is_there(rig: Rig) -> None:
    rig.take(*(step_of(name, size=4, outcome=value) for name, value in (("a", 1.0), ("b", 0.0))),
             step_of("c", size=4))
    rig.settle(1790)
    assert rig.ready() == {}
    rig.settle(LATER)
    assert rig.ready() == {"a-1": 1, "b-1": -1}
    assert rig.fates()["c-1"] == "incomplete group: its episode had not ended when the group was settled"
    rig.trained(1)
    rig.take(step_of("d", size=4, outcome=1.0))
    assert rig.fates()["d-1"] == str(groups.LATE)
    assert rig.counts() == {"incomplete": 1}
    rig.take(step_of("c", 2, size=4, outcome=1.0))
    assert rig.fates()["c-2"] == str(groups.LATE)


def test_what_comes_before_the_step_on_an_incomplete_group_belongs_to_it(rig: Rig) -> None:
    rig.take(*(step_of(name, size=4, outcome=value) for name, value in (("a", 1.0), ("b", 0.0))))
    rig.settle(LATER)
    assert rig.ready() == {"a-1": 1, "b-1": -1}
    rig.take(step_of("c", size=4, outcome=0.5))
    rig.settle()
    assert rig.ready() == {} and rig.store.episodes.waiting().text == "group g waits for 1 of 4 episodes"
    rig.kill()
    rig.take(step_of("d", size=4, outcome=0.5))
    rig.settle()
    assert rig.ready() == {"a-1": 1.414, "b-1": -1.414, "c-1": 0, "d-1": 0}
    rig.trained(1)
    assert rig.counts() == {"whole": 1}


def test_the_time_without_a_trainer_does_not_count(rig: Rig) -> None:
    rig.take(step_of("a", outcome=1.0))
    with rig.store.database.transaction() as db:
        db.execute("UPDATE episode_groups SET heard_at = heard_at - 7200")
    rig.kill()  # what the judge has meanwhile comes after the start
    rig.settle()
    assert rig.fates() == {"a-1": "pending"}
    due = rig.store.episodes.waiting().next
    assert due is not None and 1790 < due - time.time() <= 1800
    rig.take(step_of("b", outcome=0.0))
    rig.settle()
    assert rig.ready() == {"a-1": 1, "b-1": -1}


def test_a_start_before_the_clock_was_set_back_holds_no_group(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = time.time() - 7200
    monkeypatch.setattr(groups.time, "time", lambda: moment)
    rig.take(step_of("a", outcome=1.0))
    rig.store.episodes.settle(moment)
    assert rig.fates() == {"a-1": "pending"}
    rig.store.episodes.settle(moment + LATER)
    assert rig.fates()["a-1"].startswith("incomplete group")


def test_an_incomplete_group_with_too_few_outcomes_is_dropped(rig: Rig) -> None:
    rig.take(step_of("a", size=8, outcome=1.0), step_of("b", size=8))
    rig.settle(LATER)
    reason = "incomplete group: 1 of 8 episodes have an outcome, min_episodes is 2"
    assert rig.fates() == {"a-1": reason, "b-1": reason}
    assert (rig.counts(), rig.store.counters.all()["dropped:incomplete group"]) == ({"dropped": 1}, 2)


def test_a_clock_set_back_does_not_make_groups_wait(rig: Rig) -> None:
    rig.take(step_of("a", size=3, outcome=1.0), step_of("b", size=3, outcome=0.0))
    rig.settle(-3600)
    assert len(rig.ready()) == 2


def test_a_group_that_went_alike_teaches_nothing(rig: Rig) -> None:
    rig.take(step_of("a", outcome=1.0), step_of("b", outcome=1.0))
    rig.settle()
    assert rig.fates() == {"a-1": str(groups.ALIKE), "b-1": str(groups.ALIKE)}
    assert rig.counts() == {"alike": 1, "whole": 1}


@pytest.mark.parametrize(("sample", "reason"), [
    (step_of("a", group="other"), "bad episode: it is one of another group"),
    (step_of("a", 1, turn_id="again"), "bad episode: another turn is its step 1"),
    (step_of("c"), "bad episode: its group has all of its 2 episodes"),
    (step_of("b", task="another"), "bad episode: its group is of 2 episodes of terminal/t, not of 2 of "
                                   "terminal/another"),
    (step_of("b", 0, turn_id="zero"), "bad episode: step 0 is not 1 or more"),
    (step_of("b", group="h", size=0), "bad episode: group_size 0 is not from 1 to 1024"),
    (step_of("x" * 300, group="h", turn_id="long"), "bad episode: episode.episode_id: 300 characters; it must have 1 to"
                                                    " 256")])
def test_what_cannot_be_is_refused_and_changes_no_group(rig: Rig, sample: turn_pb2.Sample, reason: str) -> None:
    rig.take(step_of("a"), step_of("b", 1, turn_id="b"))
    before = rig.store.database.query("SELECT * FROM episodes"), rig.store.episodes.waiting()
    bad = turn_pb2.Sample()
    bad.CopyFrom(sample)
    bad.transition.outcome.value = 1.0
    bad.transition.turn.turn_id = bad.judgement.turn_id = "bad"
    rig.take(bad)
    assert rig.fates()["bad"] == reason
    assert [dict(row) for row in rig.store.database.query("SELECT * FROM episodes")] == [dict(row) for row in before[0]]
    assert rig.store.samples.quarantine.count == 1


def test_another_content_of_a_known_turn_brings_no_outcome(rig: Rig) -> None:
    rig.take(step_of("a"))
    [ack] = rig.store.intake.accept([step_of("a", outcome=1.0)])
    assert ack.status == common_pb2.ACK_STATUS_REJECTED
    assert rig.store.database.query("SELECT outcome FROM episodes")[0]["outcome"] is None


def test_episodes_and_users_never_share_a_batch(rig: Rig) -> None:
    rig.take(step_of("a", outcome=1.0), step_of("b", outcome=0.0), make_sample("user", 1))
    rig.settle()
    assert [sample.transition.turn.turn_id for sample in rig.store.samples.batch(9)] == ["user"]
    assert (rig.store.samples.pending().total, list(rig.ready())) == (1, ["a-1", "b-1"])
    assert rig.store.samples.drop_neutral(time.time() + 9, 0) == 0  # `a` and `b` are neutral, and not the users'


def test_grpo_learns_from_episodes_only(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "state.db", algorithm="grpo")
    rig.take(make_sample("user", 1), step_of("a", outcome=1.0))
    assert rig.fates() == {"user": "not of an episode: algorithm grpo learns from episodes only", "a-1": "pending"}
    rig.store.close()


def test_what_users_left_is_dropped_when_grpo_is_configured(rig: Rig, told: list[tuple[list[str], str]]) -> None:
    rig.take(make_sample("old", 1, "be short"))
    rig.store.commit(weights_pb2.VersionManifest(version=1, parent=0, algorithm="combine", turn_ids=["old"]), {})
    rig.take(make_sample("hinted", 1, "be short"), make_sample("gone", session="ses-gone"), step_of("a"))
    rig.store.commit(weights_pb2.VersionManifest(version=2, parent=1, turn_ids=["gone"]), {})
    rig.reconfigure(algorithm="grpo")
    assert rig.fates() == {"old": "trained", "hinted": str(NOT_OF_EPISODE), "gone": "trained", "a-1": "pending"}
    assert told == [(["hinted"], str(NOT_OF_EPISODE))]
    assert (rig.store.samples.pending().total, rig.store.samples.batch(9)) == (0, [])
    rig.store.forget(Target("ses-gone", before=time.time() + 1), {0})  # no version is left to go on from
    assert rig.fates()["old"] == str(NOT_OF_EPISODE) and rig.store.samples.rebuilding() == 0


def test_what_waits_is_told_beside_a_long_transaction(rig: Rig) -> None:
    rig.take(step_of("a", outcome=1.0), step_of("b", outcome=0.0))
    rig.settle()
    begun, told = threading.Event(), threading.Event()

    def write() -> None:
        with rig.store.database.transaction():
            begun.set()
            told.wait(30)

    def ask() -> None:
        assert (rig.store.episodes.waiting().ready, rig.store.episodes.outcomes(["a-1"])) == (1, [1.0, 0.0])
        told.set()

    writer, asker = threading.Thread(target=write), threading.Thread(target=ask)
    writer.start()
    assert begun.wait(10)
    asker.start()
    assert told.wait(10), "status waits for the transaction"
    writer.join()
    asker.join()


def test_the_rest_of_a_group_that_is_dropped_is_told_of(rig: Rig, told: list[tuple[list[str], str]]) -> None:
    rig.take(step_of("a", 1), step_of("b", version=9), step_of("x", group="h"))
    rig.take(step_of("a", 2, error="the sandbox died"))  # of a-2 itself its acceptance tells
    assert [entry for entry in told if entry[0]] == [(["a-1"], "episode broken off: the sandbox died")]
    for version in range(1, 10):
        rig.store.commit(weights_pb2.VersionManifest(version=version, parent=version - 1), {})
    told.clear()
    rig.take(step_of("b", 2))
    assert [entry for entry in told if entry[0]] == [(["b-1"], "stale: another sample of its group of episodes is")]
    rig.store.samples.drop_stale()
    assert told[-2] == (["x-1"], "stale: sampled from version 0, 9 versions old")


def test_a_kill_among_stale_samples_leaves_their_group_as_it_was(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.take(step_of("a", outcome=1.0), step_of("b", outcome=0.0, version=9))
    for version in range(1, 10):
        rig.store.commit(weights_pb2.VersionManifest(version=version, parent=version - 1), {})
    with monkeypatch.context() as patch:
        patch.setattr(groups.EpisodeGroups, "close_stale", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rig.store.samples.drop_stale()
    rig.kill()
    assert rig.fates() == {"a-1": "pending", "b-1": "pending"}
    rig.store.samples.drop_stale()
    assert "pending" not in rig.fates().values()


def test_no_group_waits_where_nothing_learns_from_episodes(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(), tokens=False)
    store.intake.accept([step_of("a", outcome=1.0)])
    assert store.episodes.waiting() == groups.WaitingGroups()
    assert store.samples.statuses(["a-1"])[0].reason.startswith("of an episode: the playbook")
    store.close()


def test_one_stale_sample_drops_its_group(rig: Rig) -> None:
    rig.take(step_of("a", outcome=1.0), step_of("b", outcome=0.0, version=9), make_sample("user", 1, version=9))
    for version in range(1, 10):
        rig.store.commit(weights_pb2.VersionManifest(version=version, parent=version - 1), {})
    rig.settle()
    assert rig.ready() == {}
    assert rig.fates() == {"a-1": "stale: sampled from version 0, 9 versions old",
                           "b-1": "stale: another sample of its group of episodes is", "user": "pending"}
    assert rig.counts() == {"dropped": 1}
    rig.take(step_of("c", group="h", version=9), step_of("d", group="h", outcome=0.0))  # as it comes
    assert rig.fates()["c-1"] == "stale: another sample of its group of episodes is"
    assert (rig.counts(), rig.store.episodes.waiting().samples) == ({"dropped": 2}, 0)


def test_an_incomplete_group_is_taken_before_it_is_stale(rig: Rig) -> None:
    whole = [f"e{i}-1" for i in range(7)]
    rig.take(*(step_of(f"e{i}", size=8, outcome=float(i % 2)) for i in range(7)))  # the eighth never began
    rig.take(step_of("x", group="h", outcome=1.0))  # of too few: the others may still come
    for version in range(1, 9):
        rig.store.commit(weights_pb2.VersionManifest(version=version, parent=version - 1), {})
        rig.settle()
        assert list(rig.ready()) == whole * (version > 4) and rig.store.episodes.waiting().old == (version > 4)
        if version == 6:
            first = rig.store.episodes.waiting().oldest
            rig.take(step_of("e7", 1, size=8, version=6))
            rig.settle()
            assert rig.store.episodes.waiting().oldest == first, "what comes late puts the step off"
    assert rig.fates()["x-1"] == "pending"
    rig.store.commit(weights_pb2.VersionManifest(version=9, parent=8, turn_ids=whole), {})
    assert rig.counts() == {"incomplete": 1}


def test_a_forgotten_session_leaves_its_group(rig: Rig) -> None:
    rig.take(*(step_of(name, size=3, outcome=value) for name, value in (("a", 1.0), ("b", 0.0), ("c", 0.5))))
    rig.settle()
    assert rig.ready() == {"a-1": 1.225, "b-1": -1.225, "c-1": 0}
    rig.store.forget(Target("ses-a", before=time.time() + 1), {0})
    rig.settle()
    assert rig.ready() == {"b-1": -1, "c-1": 1}  # without it
    assert rig.store.database.query("SELECT outcome FROM episodes WHERE episode_id = 'a'")[0]["outcome"] is None


def test_groups_that_trained_a_void_version_are_settled_anew(rig: Rig) -> None:
    rig.take(*(step_of(name, size=3, outcome=value) for name, value in (("a", 1.0), ("b", 0.0), ("c", 0.5))))
    rig.settle()
    rig.trained(1)
    assert rig.counts() == {"whole": 1}
    done = rig.store.forget(Target("ses-a", before=time.time() + 1), {0})
    assert (done.void, done.again) == ([1], 2)
    assert rig.store.samples.rebuilding() == 2
    rig.settle()
    assert rig.ready() == {"b-1": -1, "c-1": 1}
    rig.trained(2)
    assert rig.fates() == {"a-1": "forgotten: its session", "b-1": "trained", "c-1": "trained"}
    assert rig.counts() == {"whole": 1}


def test_a_group_that_was_trained_on_in_part_is_not_counted_as_dropped(rig: Rig) -> None:
    for name in "gh":
        rig.take(step_of(f"a{name}", group=name, outcome=1.0), step_of(f"b{name}", group=name, outcome=0.0))
    rig.settle()
    rig.store.commit(weights_pb2.VersionManifest(version=1, parent=0, turn_ids=["ag-1", "ah-1"]), {})
    rig.store.samples.drop(["bg-1"], drop(DropReason.DAMAGED))
    assert rig.counts() == {"whole": 1}
    for version in range(2, 10):
        rig.store.commit(weights_pb2.VersionManifest(version=version, parent=version - 1), {})
    rig.store.samples.drop_stale()
    assert rig.counts() == {"whole": 2}
    rig.store.forget(Target("ses-bg", before=time.time() + 1), {0})
    assert rig.counts() == {"whole": 2}


def test_a_group_whose_samples_were_all_dropped_is_closed(rig: Rig) -> None:
    rig.take(step_of("a", outcome=1.0), step_of("b", outcome=0.0))
    rig.settle()
    rig.store.samples.drop(["a-1", "b-1"], drop(DropReason.ABNORMAL_STEP, "the loss is nan"), skipped_step=True)
    assert (rig.store.episodes.waiting().ready, rig.counts()) == (0, {"dropped": 1})


def test_old_groups_are_forgotten_in_time(rig: Rig) -> None:
    for name in "ghij":
        rig.take(step_of(f"a{name}", group=name, outcome=1.0), step_of(f"b{name}", group=name, outcome=1.0))
    rig.settle()
    with rig.store.database.transaction() as db:
        rig.store._group_table.prune(db, keep=2)
    assert [row["group_id"] for row in rig.store.database.query("SELECT group_id FROM episode_groups")] == ["i", "j"]
    assert len(rig.store.database.query("SELECT * FROM episodes")) == 4


def test_a_file_of_before_there_were_episodes_is_taken_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "state.db")
    rig.take(make_sample("user", 1))
    with rig.store.database.transaction() as db:
        db.execute("DROP INDEX samples_of_group")
        for name in EPISODE_COLUMNS:
            db.execute(f"ALTER TABLE samples DROP COLUMN {name}")
    rig.kill()
    rig.take(step_of("a", outcome=1.0), step_of("b", outcome=0.0))
    rig.settle()
    assert len(rig.ready()) == 2
    assert rig.store.samples.pending().total == 1
    rig.store.close()


def test_votes_alone_teach_nothing_unless_they_are_to_count_in_full(tmp_path: Path) -> None:
    for step_rewards, expected in (("bounded", {}), ("full", {"a-1": 1.0, "b-1": -1.0})):
        rig = Rig(tmp_path / f"{step_rewards}.db", grpo={"step_rewards": step_rewards})
        rig.take(step_of("a", outcome=0.0, votes=(1,)), step_of("b", outcome=0.0, votes=(-1,)))
        rig.settle()
        assert rig.ready() == expected
        assert rig.counts() == ({} if expected else {"whole": 1, "alike": 1})
        rig.store.close()


def test_bounded_votes_order_steps_of_like_outcomes(rig: Rig) -> None:
    rig.take(step_of("a", size=3, outcome=1.0, votes=(-1,)), step_of("b", size=3, outcome=0.0, votes=(1,)),
             step_of("c", size=3, outcome=0.0, votes=(-1,)))
    rig.settle()
    found = rig.ready()
    assert found["a-1"] > found["b-1"] > found["c-1"]


@pytest.mark.parametrize(("step_rewards", "judge", "told"), [
    ("full", "rules", "rules"), ("full", "llm:large", ""), ("bounded", "rules", "")])
def test_full_votes_of_a_judge_that_is_not_shown_the_task_are_told(tmp_path: Path, step_rewards: str, judge: str,
                                                                   told: str) -> None:
    rig = Rig(tmp_path / "state.db", grpo={"step_rewards": step_rewards})
    sample = step_of("a")
    for vote in sample.judgement.votes:
        vote.judge = judge
    rig.take(sample)
    assert rig.store.episodes.blind_votes == told
    rig.store.close()


@pytest.mark.parametrize(("given", "meant"), [(True, "full"), (False, "off"), ("bounded", "bounded")])
def test_step_rewards_were_a_bool(given: object, meant: str) -> None:
    assert TrainerConfig.model_validate({"grpo": {"step_rewards": given}}).grpo.step_rewards == meant
