"""Rewards and advantages of groups of episodes, as pure functions (GRPO with step rewards).

A group is several episodes of one task. The reward of step t of episode i is its episode's outcome plus what was
thought of the step itself (OpenClaw-RL, arXiv:2603.10165):

    R_it = outcome_i + w x mean of the judge's votes on the step (+ the environment's own reward for it)

w is 1 in the paper, whose judge is shown the task. A judge that is not would then outweigh the outcome, so by default w
is a quarter of the smallest difference between two outcomes of the group: the votes, from -1 to 1, order steps of like
outcomes and never reverse the order of unlike ones. Where all outcomes are alike w is 0, and the group teaches nothing.

The step's advantage compares it with the same step of the group's other episodes, as GRPO does with whole answers
(DeepSeekMath, arXiv:2402.03300, section 4.1):

    A_it = (R_it - mean_j R_jt) / (std_j R_jt + EPS), over the episodes j that have a step t

std is that of the population (divided by n), so that of two episodes one is at +1 and the other at -1.

Late steps are reached by few episodes. A step that only one of them reached has nobody to be compared with at its
index: it is compared with the episodes' mean rewards M_j = mean_t R_jt instead, A_it = (R_it - mean_j M_j) / (std_j M_j
+ EPS), and held within the bound that n values normalised among themselves have anyway, sqrt(n - 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from openclaw_rl.v1 import turn_pb2

#: Added to the standard deviation.
EPS = 1e-6
#: Rewards that are no further apart than this are alike: what lies between is rounding, not to be blown up to 1.
ALIKE = 1e-6
#: Weight of the votes, as a share of the smallest difference of outcomes; below 1/2 they can't reverse an order.
_SHARE = 0.25


def votes_mean(judgement: turn_pb2.Judgement) -> float | None:
    """Return the mean score of the votes that count, from -1 to 1; None of a failed judgement, which is no opinion.

    As in the majority, votes that are certain outrank all others. A judge that tells no votes has its score taken.
    """
    if judgement.failed:
        return None
    votes = [vote for vote in judgement.votes if not vote.error]
    certain = [vote.score for vote in votes if vote.certain]
    scores = certain or [vote.score for vote in votes] or [judgement.score]
    return float(sum(scores) / len(scores))


def votes_weight(outcomes: Iterable[float]) -> float:
    """Return w of a group for `bounded` step rewards; 0 if its outcomes are alike."""
    differences = (later - earlier for earlier, later in pairwise(sorted(outcomes)))
    return _SHARE * min((difference for difference in differences if difference > ALIKE), default=0.0)


def reward(outcome: float, votes: float | None, environment: float | None,
           step_rewards: Literal["bounded", "full", "off"], weight: float) -> float | None:
    """Return R_it; None when it is not known: step rewards count in full, and the step's judgement failed.

    Args:
        outcome: of the episode, from 0 to 1.
        votes: `votes_mean` of the step.
        environment: its own reward for the step, where it gives one.
        step_rewards: `off`: the outcome alone counts. `full`: w is 1.
        weight: w, `votes_weight` of the group, with `bounded`.
    """
    if step_rewards == "off":
        return outcome
    if step_rewards == "full":
        return None if votes is None else outcome + votes + (environment or 0.0)
    return outcome + weight * (votes or 0.0) + (environment or 0.0)


def advantages(rewards: Sequence[Mapping[int, float]]) -> list[dict[int, float]]:
    """Return A_it of a group.

    Args:
        rewards: of each episode, R_it by step index.

    Returns:
        The same with advantages in place of rewards.
    """
    by_step: dict[int, list[float]] = {}
    for episode in rewards:
        for step, value in episode.items():
            by_step.setdefault(step, []).append(value)
    means = [_mean(episode.values()) for episode in rewards if episode]
    bound = math.sqrt(max(len(means) - 1, 0))

    def of(step: int, value: float) -> float:
        if len(by_step[step]) > 1:
            return _normalised(value, by_step[step])
        return max(-bound, min(bound, _normalised(value, means)))

    return [{step: of(step, value) for step, value in episode.items()} for episode in rewards]


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the population."""
    mean = _mean(values)
    return math.sqrt(_mean([(value - mean) ** 2 for value in values]))


def _normalised(value: float, values: Sequence[float]) -> float:
    if max(values) - min(values) <= ALIKE:
        return 0.0
    return (value - _mean(values)) / (spread(values) + EPS)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else 0.0
