"""Limits of a step while more samples wait than steps of the usual size would take before these are stale.

A sample counts for `max_staleness` versions after its own. With 481 samples of version 0, a step of 16 and 8 versions,
nine steps take 144 and the rest is lost. So a step grows to what lets all of them be taken in time, up to `MOST` times
its usual size, for that much longer it takes. When even that is not enough, the newest are taken and the oldest lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from openclaw_rl.config import TrainerConfig

#: By how much a step's limits grow at most.
MOST = 4


@dataclass(frozen=True, slots=True)
class Waiting:
    """Samples of a branch that wait for a step."""

    session: str
    branch: str
    steps_left: int  #: that can take them before they are stale, 1 or more
    count: int


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a step takes at most, and in which order."""

    samples: int
    per_session: int
    per_branch: int
    newest: bool = False  #: newest samples first: not all of them can be taken in time
    newest_of_session: bool = False  #: the same within a session or branch


def limits(config: TrainerConfig, batch: int, waiting: Iterable[Waiting]) -> StepLimits:
    """Decide on the next step's limits.

    Args:
        batch: samples of a step, usually.
        waiting: those that the algorithm learns from.
    """
    everything: Counter[int] = Counter()
    sessions: dict[str, Counter[int]] = {}
    branches: dict[tuple[str, str], Counter[int]] = {}
    for group in waiting:
        everything[group.steps_left] += group.count
        sessions.setdefault(group.session, Counter())[group.steps_left] += group.count
        branches.setdefault((group.session, group.branch), Counter())[group.steps_left] += group.count
    samples = needed(everything)
    of_session, of_branch = (max(map(needed, found.values()), default=0) for found in (sessions, branches))
    return StepLimits(_grown(batch, samples), _grown(config.max_per_session, of_session),
                      _grown(config.max_per_branch, of_branch), newest=samples > MOST * batch,
                      newest_of_session=of_session > MOST * config.max_per_session
                      or of_branch > MOST * config.max_per_branch)


def needed(counts: Mapping[int, int]) -> int:
    """Return how many samples each step must take for all of them to be taken in time; `counts`: by the steps left."""
    due = sorted(counts)
    return max((-(-total // steps) for steps, total in zip(due, accumulate(counts[steps] for steps in due),
                                                           strict=True)), default=0)


def _grown(usual: int, needed: int) -> int:
    return min(max(usual, needed), MOST * usual)
