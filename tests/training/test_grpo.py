"""Rewards and advantages, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from openclaw_rl.training.algorithms.advantages import ALIKE, advantages, reward, spread, votes_mean, votes_weight
from openclaw_rl.v1 import turn_pb2


def judged(*votes: tuple[int, str, bool], failed: bool = False, score: int = 0) -> turn_pb2.Judgement:
    return turn_pb2.Judgement(failed=failed, score=score, votes=[
        turn_pb2.Vote(judge="j", score=value, error=error, certain=certain) for value, error, certain in votes])


def test_a_steps_reward_is_the_outcome_and_the_mean_of_its_votes() -> None:
    assert votes_mean(judged((1, "", False), (1, "", False), (-1, "", False))) == pytest.approx(1 / 3)
    assert votes_mean(judged((1, "", False), (-1, "timed out", False))) == 1  # failed votes say nothing
    assert votes_mean(judged((1, "", False), (1, "", False), (-1, "", True))) == -1  # certain ones outrank
    assert votes_mean(judged((1, "no", False), failed=True)) is None
    assert votes_mean(judged(score=-1)) == -1  # a judge that tells no votes
    assert reward(1.0, 1 / 3, None, "full", 0.1) == pytest.approx(4 / 3)
    assert reward(0.5, -1.0, 0.25, "full", 0.1) == pytest.approx(-0.25)
    assert reward(0.5, -1.0, 0.25, "off", 0.1) == 0.5
    assert reward(0.5, -1.0, 0.25, "bounded", 0.1) == pytest.approx(0.65)
    assert reward(1.0, None, None, "full", 0.1) is None
    assert reward(1.0, None, None, "off", 0.1) == reward(1.0, None, None, "bounded", 0.1) == 1.0


@pytest.mark.parametrize(("outcomes", "weight"), [
    ([0.0, 1.0, 1.0], 0.25), ([0.0, 0.5, 1.0, 0.9], 0.025), ([1.0, 1.0], 0.0), ([0.3, 0.1 + 0.2], 0.0), ([], 0.0)])
def test_votes_never_outweigh_the_outcome(outcomes: list[float], weight: float) -> None:
    assert votes_weight(outcomes) == pytest.approx(weight)
    apart = [(worse, better) for worse in outcomes for better in outcomes if better - worse > ALIKE]
    for worse, better in apart:
        assert reward(worse, 1.0, None, "bounded", weight) < reward(better, -1.0, None, "bounded", weight)  # type: ignore[operator]


def test_each_step_is_compared_with_the_same_step_of_the_others() -> None:
    # Step 1: 2, 0, 1: mean 1, std sqrt(2/3). Step 2: 1, -1: mean 0, std 1.
    found = advantages([{1: 2.0, 2: 1.0}, {1: 0.0, 2: -1.0}, {1: 1.0}])
    third = math.sqrt(2 / 3)
    assert found[0] == pytest.approx({1: 1 / third, 2: 1.0}, rel=1e-4)
    assert found[1] == pytest.approx({1: -1 / third, 2: -1.0}, rel=1e-4)
    assert found[2] == pytest.approx({1: 0.0})


def test_a_step_that_one_episode_reached_is_compared_with_the_episodes() -> None:
    # Mean rewards: (1 + 1 + 0.4) / 3 = .8 and 0: mean .4, std .4. Step 3: (.4 - .4) / .4 = 0; step 2 the bound, 1.
    found = advantages([{1: 1.0, 2: 1.0, 3: 0.4}, {1: 0.0}])
    assert found[0] == pytest.approx({1: 1.0, 2: 1.0, 3: 0.0}, abs=1e-4)
    assert found[1] == pytest.approx({1: -1.0}, rel=1e-4)


def test_it_is_held_within_what_so_many_can_reach() -> None:
    found = advantages([{1: 1.0, 2: 900.0}, {1: 1.1}, {1: 0.9}])
    assert abs(found[0][2]) <= math.sqrt(2)


def test_alike_is_no_signal_however_it_was_rounded() -> None:
    third = 1 / 3
    assert advantages([{1: third * 3}, {1: 1.0}, {1: 0.1 + 0.2 + 0.7}]) == [{1: 0.0}] * 3
    assert advantages([]) == []
    assert advantages([{1: 1.0, 2: 1.0}, {1: 1.0}]) == [{1: 0.0, 2: 0.0}, {1: 0.0}]


def test_spread_is_that_of_the_population() -> None:
    assert spread([1.0, -1.0]) == 1.0
    assert spread([]) == 0.0
