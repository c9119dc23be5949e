"""Selection of the back end and of its method from the configuration."""

from __future__ import annotations

from typing import Literal

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.backends.interface import StartPoint


def kind(config: TrainerConfig) -> Literal["torch", "megatron"]:
    """Return the back end that trains weights, as configured."""
    if config.backend == "auto":
        return "megatron" if config.gpus or config.model_size else "torch"
    return "megatron" if config.backend == "megatron" else "torch"


def method(config: TrainerConfig) -> str:
    """Return `lora` or `full`. Megatron trains all weights; README.md says why lora is the default elsewhere."""
    if config.method != "auto":
        return config.method
    return "full" if kind(config) == "megatron" else "lora"


def learning_rate(config: TrainerConfig) -> float:
    """Return the configured rate, or the method's default."""
    return config.learning_rate or {"lora": 1e-3, "full": 1e-4}[method(config)]


def reads(config: TrainerConfig, start: StartPoint) -> bool:
    """Return whether the configured back end can go on from what a checkpoint holds: shards of ranks, or files."""
    return start.weights is None or start.weights.is_dir() == (kind(config) == "megatron")
