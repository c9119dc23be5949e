"""The watch: the test's figures, its false alarms, what it takes back, and that it never flaps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from math import comb
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig, WatchConfig
from openclaw_rl.training.release.regression import LOOKS, RegressionDetector, fall_probability
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.scores import Scores
from openclaw_rl.v1 import turn_pb2, weights_pb2
from tests.training.fakes import make_sample

# The test


@pytest.mark.parametrize(("after", "before"), [
    ([-1, -1, 0, 1], [1, 1, 0, 1, 1]), ([1, 1, 0], [1, 1, 0]), ([-1, 0, 0, 1], [0, -1, 1]), ([-1], [1, 1, 1, 0])])
def test_the_probability_is_the_share_of_splits(after: list[int], before: list[int]) -> None:
    scores = after + before
    splits = list(itertools.combinations(range(len(scores)), len(after)))
    share = sum(sum(scores[i] for i in split) <= sum(after) for split in splits) / len(splits)
    assert fall_probability(counts(after), counts(before)) == pytest.approx(share)


def test_two_values_are_fishers_exact_test() -> None:
    # Lady tasting tea, 3 of 4 right: p = 17/70.
    assert fall_probability(Scores(3, 0, 1), Scores(1, 0, 3)) == pytest.approx(17 / 70)
    p = sum(comb(30, k) * comb(10, 20 - k) for k in range(11)) / comb(40, 20)
    assert fall_probability(Scores(10, 0, 10), Scores(0, 0, 20)) == pytest.approx(p)


def counts(scores: list[int]) -> Scores:
    return Scores(scores.count(-1), scores.count(0), scores.count(1))


# Streams of scores


class Rig:
    """A trainer's store with a chain of versions, and a watch on it."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder, self.settings = folder, settings
        self.store = TrainerStore(folder / "state.db", "group", TrainerConfig())
        self.turns = itertools.count()
        self.restart()

    def restart(self) -> None:
        self.detector = RegressionDetector(WatchConfig(**self.settings), self.store.versions, self.store.scores,
                                           self.store.state)

    def version(self, number: int, parent: int | None = None, served: bool = True) -> None:
        manifest = weights_pb2.VersionManifest(version=number, parent=parent)
        with self.store.database.transaction() as db:
            db.execute("INSERT INTO versions (version, manifest, activated_at) VALUES (?, ?, ?)",
                       (number, manifest.SerializeToString(), 1.0 if served else None))

    def chain(self, *numbers: int) -> None:
        for number, parent in zip(numbers, (None, *numbers), strict=False):
            self.version(number, parent)

    def judged(self, version: int, *scores: int) -> None:
        self.store.intake.accept([make_sample(f"t{next(self.turns)}", score, version=version) for score in scores])

    def look(self, active: int, kept: tuple[int, ...] = tuple(range(100))):
        return self.detector.look(active, kept) if self.detector.due(active) else None


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.close()


def test_a_fall_goes_back_to_the_version_before(rig: Rig) -> None:
    rig.chain(0, 1, 2)
    rig.judged(1, *[1, 1, 1, 0] * 6)
    rig.judged(2, *[-1] * 19)
    assert rig.look(2) is None, "one turn less than min_turns"
    rig.judged(2, -1)
    fall = rig.look(2)
    assert (fall.versions, fall.earlier, fall.target) == ([2], [1], 1)
    assert fall.probability < 1e-6
    assert fall.reason.startswith("watch: mean score of live turns fell from 0.75 (24 turns of version 1) to -1.00 "
                                  "(20 turns of version 2) (p=")
    assert rig.detector.going == (1, fall.reason)
    assert str(rig.detector.took_back(2)).startswith("taken back by the watch: mean score of live turns fell from 0.75")
    assert "going back to version 1" in rig.detector.alarm


@pytest.mark.parametrize(("before", "after"), [
    ([1] * 24, [1] * 20),  # no fall
    ([1, 1, 1, -1] * 6, [1, 1, -1] * 7),  # one that happens by chance
    ([1] * 400, [1] * 18 + [0] * 2),  # a certain one that is small
    ([1] * 19, [-1] * 40),  # too little to compare with
])
def test_what_is_no_fall(rig: Rig, before: list[int], after: list[int]) -> None:
    rig.chain(0, 1)
    rig.judged(0, *before)
    rig.judged(1, *after)
    assert rig.look(1) is None
    assert rig.detector.alarm == ""


def test_versions_that_come_faster_than_turns_are_taken_together(rig: Rig) -> None:
    rig.chain(*range(12))
    for version in range(6):
        rig.judged(version, 1, 1, 1, 0, 1)
    for version in range(6, 12):
        rig.judged(version, -1, -1, 0, -1, -1)
    fall = rig.look(11)
    assert (fall.versions, fall.earlier, fall.target) == ([11, 10, 9, 8], [7, 6, 5, 4], 7)


def test_it_goes_back_only_to_what_served_and_is_there(rig: Rig) -> None:
    rig.chain(0, 1, 2)
    rig.version(3, 2, served=False)
    rig.version(4, 3)
    rig.judged(1, *[1] * 20)
    rig.judged(4, *[-1] * 20)
    assert rig.look(4, kept=(0, 1, 4)).target == 1


def test_what_says_nothing_does_not_count(rig: Rig) -> None:
    rig.chain(0, 1)
    failed, side, mixed = make_sample("f"), make_sample("s"), make_sample("m")
    failed.judgement.failed = True
    side.transition.turn.turn_class = turn_pb2.TURN_CLASS_SIDE
    mixed.transition.turn.tokens.spans[0].end = 3
    mixed.transition.turn.tokens.spans.add(version=1, begin=3, end=len(mixed.transition.turn.tokens.response_ids))
    rig.store.intake.accept([failed, side, mixed])
    assert rig.store.scores.all() == {}
    # Those that are not trained on do count, as they were judged, and each once.
    bare = make_sample("b", 1)
    bare.transition.turn.ClearField("tokens")
    bare.transition.turn.policy_version = 1
    rig.store.intake.accept([bare, bare, make_sample("c", -1)])
    rig.store.intake.accept([bare])
    assert rig.store.scores.all() == {0: Scores(1, 0, 0), 1: Scores(0, 0, 1)}


def test_a_penalised_turn_counts_as_it_was_judged(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig(truncated="penalise"))
    sample = make_sample("a", 1)
    sample.transition.turn.finish_reason = turn_pb2.FINISH_REASON_LENGTH
    store.intake.accept([sample])
    assert store.scores.all() == {0: Scores(0, 0, 1)}
    assert store.samples.statuses(["a"])[0].score == -1
    store.close()


def went_back(rig: Rig) -> None:
    rig.chain(0, 1, 2)
    rig.judged(1, *[1] * 20)
    rig.judged(2, *[-1] * 20)
    assert rig.look(2).target == 1
    rig.detector.answers(1, pinned=False)
    assert rig.detector.going is None


def test_it_never_flaps(rig: Rig) -> None:
    went_back(rig)
    rig.restart()
    assert rig.detector.alarm.startswith("the watch went back to version 1 (watch: mean score")
    # An operator puts it back: his word is the last one, whatever is judged.
    rig.detector.answers(2, pinned=False)
    assert rig.detector.alarm == ""
    rig.judged(2, *[-1] * 200)
    assert rig.look(2) is None
    # What is built on it is a version of its own.
    rig.version(3, 2)
    rig.judged(3, *[-1] * 19)
    assert rig.look(3) is None
    rig.judged(3, -1)
    assert rig.look(3) is None, "no worse than version 2"


def test_a_way_back_that_was_not_gone_is_remembered(rig: Rig) -> None:
    rig.chain(0, 1)
    rig.judged(0, *[1] * 20)
    rig.judged(1, *[-1] * 20)
    assert rig.look(1) is not None
    rig.restart()
    assert rig.detector.going[0] == 0
    rig.detector.answers(1, pinned=False)
    assert rig.detector.going[0] == 0, "the policy server has not done it yet"
    rig.detector.answers(1, pinned=True)
    assert (rig.detector.going, rig.detector.alarm) == (None, ""), "an operator pinned it"


@pytest.mark.parametrize(("active", "pinned"), [(0, False), (2, False), (1, True)])
def test_what_an_operator_does_ends_the_alarm(rig: Rig, active: int, pinned: bool) -> None:
    went_back(rig)
    rig.detector.answers(1, pinned=False)
    assert rig.detector.alarm
    rig.detector.answers(active, pinned)
    assert rig.detector.alarm == ""


def test_a_newer_version_that_is_no_worse_ends_the_alarm(rig: Rig) -> None:
    went_back(rig)
    rig.version(3, 1)
    rig.detector.answers(3, pinned=False)
    rig.judged(3, *[1] * 19)
    rig.look(3)
    assert rig.detector.alarm
    rig.judged(3, 1)
    rig.look(3)
    assert rig.detector.alarm == ""


def test_a_newer_version_that_is_as_bad_is_taken_back_too(rig: Rig) -> None:
    went_back(rig)
    rig.version(3, 1)
    rig.judged(3, *[-1] * 20)
    assert rig.look(3).target == 1


def test_what_was_made_meanwhile_from_what_is_taken_back_does_not_end_the_way_back(rig: Rig) -> None:
    rig.chain(0, 1, 2)
    rig.judged(1, *[1] * 20)
    rig.judged(2, *[-1] * 20)
    assert rig.look(2).target == 1
    rig.version(3, 2)  # a step had begun
    rig.detector.answers(3, pinned=False)
    assert rig.detector.going[0] == 1
    rig.detector.answers(1, pinned=False)
    assert rig.detector.going is None


def test_what_the_oldest_known_version_was_made_from_does_not_matter(rig: Rig) -> None:
    rig.chain(4, 5)
    rig.judged(4, *[1] * 20)
    rig.judged(5, *[-1] * 20)
    assert rig.look(5).target == 4


def test_switched_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path, enabled=False)
    rig.chain(0, 1)
    rig.judged(0, *[1] * 20)
    rig.judged(1, *[-1] * 20)
    assert rig.look(1) is None
    rig.store.close()


def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, before: list[float],
             after: list[float]) -> list[int | None]:
    """Turns of the new version after which it was taken back, or None, in each of the runs; weights of -1, 0, +1."""
    rng = random.Random(5)
    rig = Rig(tmp_path)
    rig.chain(0, 1)
    live: dict[int, Scores] = {}
    monkeypatch.setattr(rig.store.scores, "all", lambda: live)
    found: list[int | None] = []
    for _ in range(runs):
        rig.store.state.set("watch", None)
        rig.restart()
        live[0] = counts(rng.choices([-1, 0, 1], before, k=40))
        live[1] = Scores()
        found.append(None)
        for turns in range(1, 641):
            live[1] = live[1] + counts(rng.choices([-1, 0, 1], after, k=1))
            if turns & (turns - 1) and turns % 20:
                continue
            if rig.look(1) is not None:
                found[-1] = turns
                break
    rig.store.close()
    return found


def test_false_alarms_are_as_rare_as_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(tmp_path, monkeypatch, 100, [1, 1, 2], [1, 1, 2])
    assert sum(turns is not None for turns in found) <= 3


def test_a_real_fall_is_found_in_few_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(tmp_path, monkeypatch, 30, [1, 2, 7], [6, 2, 2])  # from 0.6 to -0.4
    assert all(found)
    assert sorted(turns or 999 for turns in found)[15] <= 40
    assert LOOKS >= 6
