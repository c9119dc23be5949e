"""Input of a training step, and the error of one whose result can't be kept. Free of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class AbnormalStep(Exception):
    """The step's figures are not to be trusted; the back end must be built again from its last checkpoint."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sample as numbers, or several turns of an episode that are one text (see trajectories.py). R is the number of
    response tokens that the policy chose, of all turns together; those that a grammar forced stand in `gaps`."""

    turn_id: str  #: of the first turn
    prompt_ids: list[int]  #: of the first turn
    response_ids: list[int]  #: R
    behaviour: list[float]  #: R: the engine's own log-probabilities (temperature 1)
    versions: list[int]  #: R: policy version that sampled each token
    score: int  #: +1, 0 or -1; of all turns together
    hint: str  #: empty when there is none
    teacher_prompt_ids: list[int] | None  #: prompt with the hint in it; None without a hint
    advantages: list[float] | None = None  #: R, of a step of an episode; None of a user's turn
    turns: int = 1  #: how many they are
    #: What stands between two responses, or was forced within one: the number of response tokens before it, and its
    #: token ids; ascending.
    gaps: Sequence[tuple[int, list[int]]] = ()
    baseline: float = 0.0  #: mean of what users' scores were lately; an advantage is what a score adds to it
    replayed: bool = False  #: an earlier version was trained on it; only its distillation counts now

    def text(self) -> tuple[list[int], list[int]]:
        """Return all token ids in order, prompts and responses, and R positions: those that predict the response
        tokens."""
        ids, done = list(self.prompt_ids), 0
        places: list[int] = []
        for at, between in (*self.gaps, (len(self.response_ids), [])):
            places += range(len(ids) - 1, len(ids) - 1 + at - done)
            ids += [*self.response_ids[done:at], *between]
            done = at
        return ids, places
