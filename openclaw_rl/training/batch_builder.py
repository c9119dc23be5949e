"""Batch of the next step: turns of users, or groups of episodes; never both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms.advantages import spread
from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.backends.data_adapter import DataAdapter
from openclaw_rl.training.buffer.repetition import distinct
from openclaw_rl.training.buffer.trajectories import tokens, trajectories
from openclaw_rl.training.buffer.turns import turn_id
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)

#: Response tokens of a replayed sample that are read: how an answer begins decides most of how it goes on, and the step
#: costs a quarter more instead of half.
REPLAY_TOKENS = 64
#: Live turns, at least, whose mean score is the baseline of the policy gradient.
BASELINE_TURNS = 32
#: Neutral turns that are added to them: from few turns nothing is known of what is usual.
UNKNOWN = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of a step."""

    samples: list[turn_pb2.Sample]
    examples: list[Any]  #: as the back end takes them
    algorithm: str  #: what the version's manifest calls it
    settings: dict[str, str]  #: what it says of how it was made
    figures: dict[str, float] = field(default_factory=dict)  #: what the back end can't know

    @property
    def turn_ids(self) -> list[str]:
        """Ids of the samples' turns."""
        return [turn_id(sample) for sample in self.samples]


class BatchBuilder:
    """Takes what waits in the store; what can't have come from this trainer's policy is rejected."""

    def __init__(self, config: TrainerConfig, store: TrainerStore, adapter: DataAdapter) -> None:
        self._config, self._store, self._adapter = config, store, adapter

    def build(self, episodes: bool) -> Batch | None:
        """Return the next step's samples, None when there are none."""
        return self._of_episodes() if episodes else self._of_users()

    def _of_users(self) -> Batch | None:
        samples = self._fitting(self._store.samples.batch(self._config.max_batch))
        if not samples:
            return None
        new = distinct(samples) if self._adapter.merges else samples
        if len(new) < len(samples):
            logger.info("%d of the step's %d samples repeat others of it and count once", len(samples) - len(new),
                        len(samples))
        examples, baseline = [self._adapter.example(sample) for sample in new], 0.0
        lineage = self._store.versions.lineage(self._store.versions.head)
        if self._adapter.algorithm == "combine":
            baseline = self._baseline(lineage)
            examples = [replace(example, baseline=baseline) for example in examples]
        shown = self._shown_again(lineage)
        replayed = {"replayed": " ".join(example.turn_id for example in shown)} if shown else {}
        return Batch(samples, [*examples, *shown], self._adapter.algorithm, self._adapter.settings() | replayed,
                     {"replayed": float(len(shown)), "repeated": float(len(samples) - len(new)),
                      "score_baseline": baseline})

    def _shown_again(self, lineage: Sequence[int]) -> list[Example]:
        """Return what earlier versions learned from and this step is to keep in mind."""
        old = map(self._adapter.example, self._store.replay.draw(lineage, self._adapter.replay))
        part = slice(REPLAY_TOKENS)
        return [replace(example, replayed=True, response_ids=example.response_ids[part],
                        behaviour=example.behaviour[part], versions=example.versions[part],
                        gaps=[gap for gap in example.gaps if gap[0] < REPLAY_TOKENS])
                for example in old if example.teacher_prompt_ids is not None]

    def _baseline(self, lineage: Sequence[int]) -> float:
        """Return the mean score of the newest live turns, as if UNKNOWN neutral ones had come before."""
        live = self._store.scores.recent(lineage, BASELINE_TURNS)
        return (live.up - live.down) / (live.turns + UNKNOWN)

    def _of_episodes(self) -> Batch | None:
        """Whole groups, those first that wait for longest, as many as `grpo.max_tokens` allows and one at least."""
        samples: list[turn_pb2.Sample] = []
        examples: list[Any] = []
        advantages: list[float] = []
        rewards: list[float] = []
        groups = size = 0
        for group in self._store.episodes.batches():
            fit = {turn_id(sample) for sample in self._fitting([sample for sample, *_ in group])}
            group = [judged for judged in group if turn_id(judged[0]) in fit]
            texts = trajectories([(sample, advantage) for sample, advantage, _ in group])
            if groups and size + tokens(texts) > self._config.grpo.max_tokens:
                break
            if group:
                groups, size = groups + 1, size + tokens(texts)
            samples += [sample for sample, *_ in group]
            advantages += [advantage for _, advantage, _ in group]
            rewards += [reward for *_, reward in group if reward is not None]
            examples += texts
        if not samples:
            return None
        outcomes = self._store.episodes.outcomes([turn_id(sample) for sample in samples])
        return Batch(samples, examples, "grpo", self._adapter.settings() | _settings(self._config), {
            "groups": float(groups), "episodes": float(len(outcomes)),
            "texts": float(len(examples)), "text_tokens": float(size),
            "reward_mean": sum(rewards) / max(len(rewards), 1),
            "outcome_mean": sum(outcomes) / max(len(outcomes), 1), "advantage_std": spread(advantages)})

    def _fitting(self, samples: Sequence[turn_pb2.Sample]) -> list[turn_pb2.Sample]:
        fit = []
        # Until the policy server was heard of, a new file does not know which versions there are.
        newest = self._store.versions.highest if self._store.versions.active is not None else None
        for sample in samples:
            if why := self._adapter.validate(sample, newest):
                self._store.samples.reject(sample, why)
            else:
                fit.append(sample)
        return fit


def _settings(config: TrainerConfig) -> dict[str, str]:
    return {f"grpo.{name}": str(value) for name, value in config.grpo.model_dump().items()}
