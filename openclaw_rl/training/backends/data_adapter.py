"""What a back end is trained on: token ids of judged turns, or their texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.backends import interface as backends
from openclaw_rl.training.buffer.examples import FileCodec, example, from_the_future, outside_vocabulary
from openclaw_rl.v1 import turn_pb2

_SETTINGS = ("method", "learning_rate", "lora_rank", "reward_weight", "kl_weight", "clip_ratio", "importance_cap",
             "max_grad_norm", "max_kl", "max_per_session", "max_per_branch", "max_staleness", "truncated", "degenerate")


class Material(Protocol):
    """What the learner needs to know of its samples.

    Attributes:
        algorithm: what a version's manifest calls it.
        problem: what an operator should know; empty when there is nothing.
    """

    algorithm: str
    problem: str

    def open(self, folder: Path) -> None:
        """The base model is there.

        Raises:
            OSError, ValueError: its files can't be used.
        """

    def foreign(self, sample: turn_pb2.Sample, newest: int | None) -> str | None:
        """Why a sample can't have come from this trainer's policy, or None.

        Args:
            newest: the newest version that there ever was; None when that is not known for certain.
        """

    def example(self, sample: turn_pb2.Sample) -> Any:
        """The sample as the back end takes it."""

    def settings(self) -> dict[str, str]:
        """What a version's manifest says of how it was made."""

    def unlike(self, made: Mapping[str, str]) -> str | None:
        """Which of the settings that a version was made with keeps the back end from going on from it; None: none."""


class Tokens:
    """Token ids, for back ends that train weights."""

    def __init__(self, config: TrainerConfig) -> None:
        self.algorithm: str = config.algorithm
        self.problem = ""
        self._config = config

    def open(self, folder: Path) -> None:
        self._codec = FileCodec(folder)
        self._vocab_size = ModelConfig.read(folder).vocab_size

    def foreign(self, sample: turn_pb2.Sample, newest: int | None) -> str | None:
        return outside_vocabulary(sample, self._vocab_size) or from_the_future(sample, newest)

    def example(self, sample: turn_pb2.Sample) -> Any:
        return example(sample, self._codec)

    def settings(self) -> dict[str, str]:
        return settings(self._config)

    def unlike(self, made: Mapping[str, str]) -> str | None:
        now_set = self.settings()
        keys = ("method", "lora_rank") if made.get("method") == "lora" else ("method",)
        return next((key for key in keys if made.get(key) != now_set[key]), None)


def settings(config: TrainerConfig) -> dict[str, str]:
    """What the manifest of a version with weights says of how it was made."""
    values = {name: getattr(config, name) for name in _SETTINGS}
    values |= {"method": backends.method(config), "learning_rate": backends.learning_rate(config)}
    return {name: str(value) for name, value in values.items()}
