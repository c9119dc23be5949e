"""Adapters of judged turns to what a back end trains on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.backends.selection import learning_rate, method
from openclaw_rl.training.buffer.examples import FileCodec, example
from openclaw_rl.training.buffer.validation import validate_choice, validate_version, validate_vocabulary
from openclaw_rl.training.tables.reasons import Drop
from openclaw_rl.v1 import turn_pb2

#: Algorithms that learn from hints.
DISTILLING = ("combine", "opd", "opd_full")
_SETTINGS = ("method", "learning_rate", "lora_rank", "reward_weight", "kl_weight", "clip_ratio", "importance_cap",
             "max_grad_norm", "max_kl", "replay", "max_per_session", "max_per_branch", "max_staleness", "truncated",
             "degenerate")


class DataAdapter(Protocol):
    """Makes examples of samples.

    Attributes:
        algorithm: what a version's manifest calls it.
        problem: what an operator should know; empty when there is nothing.
        replay: samples of earlier versions that a step on users' turns is shown again at most.
        merges: samples of a step that repeat one another count once.
    """

    algorithm: str
    problem: str
    replay: int
    merges: bool

    def open(self, folder: Path) -> None:
        """Read what is needed of the base model.

        Raises:
            OSError, ValueError: its files can't be used.
        """

    def validate(self, sample: turn_pb2.Sample, newest: int | None) -> Drop | None:
        """Return why a sample can't have come from this trainer's policy.

        Args:
            newest: the newest version that there ever was; None when that is not known for certain.
        """

    def example(self, sample: turn_pb2.Sample) -> Any:
        """Return the sample as the back end takes it."""

    def settings(self) -> dict[str, str]:
        """Return what a version's manifest says of how it was made."""

    def conflict(self, made: Mapping[str, str]) -> str | None:
        """Return which of the settings that a version was made with keeps the back end from going on from it."""


class TokenAdapter:
    """Makes examples of token ids, for back ends that train weights."""

    def __init__(self, config: TrainerConfig) -> None:
        self.algorithm: str = config.algorithm
        self.problem = ""
        self.merges = True
        self.replay = config.replay if config.algorithm in DISTILLING else 0
        self._config = config

    def open(self, folder: Path) -> None:
        self._codec = FileCodec(folder)
        self._vocab_size = ModelConfig.read(folder).vocab_size

    def validate(self, sample: turn_pb2.Sample, newest: int | None) -> Drop | None:
        return (validate_vocabulary(sample, self._vocab_size) or validate_version(sample, newest)
                or validate_choice(sample))

    def example(self, sample: turn_pb2.Sample) -> Any:
        return example(sample, self._codec)

    def settings(self) -> dict[str, str]:
        return settings(self._config)

    def conflict(self, made: Mapping[str, str]) -> str | None:
        now_set = self.settings()
        keys = ("method", "lora_rank") if made.get("method") == "lora" else ("method",)
        return next((key for key in keys if made.get(key) != now_set[key]), None)


def settings(config: TrainerConfig) -> dict[str, str]:
    """Return what the manifest of a version with weights says of how it was made."""
    values = {name: getattr(config, name) for name in _SETTINGS}
    values |= {"method": method(config), "learning_rate": learning_rate(config)}
    return {name: str(value) for name, value in values.items()}
