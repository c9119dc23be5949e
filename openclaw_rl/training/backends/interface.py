"""What the trainer needs of the thing that does the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from typing_extensions import Buffer

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.release.held_out import HeldOut

WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
#: The same of a backend whose ranks write shards: folders in a checkpoint's folder.
WEIGHTS_FOLDER = "weights"
OPTIMIZER_FOLDER = "optimizer"

#: Of AdamW.
BETAS = (0.9, 0.95)


class AbnormalStep(Exception):
    """The step's figures are not to be trusted; the backend must be built again from its last checkpoint."""


class BackendLost(Exception):
    """What does the arithmetic ended or hangs, which is not the samples' fault; nothing of what it was doing may be
    kept, and the backend must be built again from its last checkpoint. The text says what ended and why, as far as
    that is known."""


class BackendWaits(BackendLost):
    """What the backend asks does not answer just now; that takes time or a person, and the samples wait."""


class Stopped(Exception):
    """The step was given up when it was asked to."""


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What a backend begins with. Both unset: the base model."""

    weights: Path | None = None  #: file with the trained parameters, or folder of their shards
    optimizer: Path | None = None  #: file, or folder, with the optimizer's state; unset begins with a fresh one


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedily decoded answer."""

    text: str
    ids: list[int]  #: its tokens, the one that ends it left out


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a model does on held-out prompts."""

    answers: list[Answer]  #: in the order of the prompts
    perplexity: float | None  #: exp of the mean negative log-likelihood of all tokens of the good answers, in nats;
    #: None of an API model, which tells none
    parts: dict[str, float] = field(default_factory=dict)  #: further parts of the answers that are bad, by name


class Backend(Protocol):
    """A policy in training. Built from a StartPoint; holds the model until it is closed and dropped. Used by one
    thread. Each method raises BackendLost when it is lost."""

    def step(self, examples: Sequence[Any], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        """One optimizer step; gives its figures.

        Args:
            examples: the batch; see material.Material.example.
            version: the policy version that the backend is before the step.
            stop: asked between samples; true gives the step up.

        Raises:
            AbnormalStep: nothing that it did may be kept.
            Stopped: it was given up, and changed nothing.
        """

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation:
        """Try the policy as it is now on held-out prompts; changes nothing.

        Args:
            prompts: each is a conversation of its own.
            max_new_tokens: tokens of an answer at most.
            stop: asked between tokens; true gives it up.
            base: try the frozen base model instead.

        Raises:
            Stopped: it was given up.
            ValueError: the model's tokenizer or chat template can't write the prompts.
        """

    def tensors(self) -> Iterator[tuple[str, str, Sequence[int], Buffer]]:
        """The policy as it is now: (name, dtype, shape, bytes) of each tensor that differs from the base model's;
        those that adapters made are encoding.Adapted."""

    def save(self, folder: Path) -> None:
        """Write what a StartPoint needs into `folder`: WEIGHTS_FILE and OPTIMIZER_FILE, or WEIGHTS_FOLDER and
        OPTIMIZER_FOLDER."""

    def alive(self) -> bool:
        """Whether what it started still runs. Raises nothing."""

    def close(self) -> None:
        """End what it started; it is not used any more. Raises nothing."""


def kind(config: TrainerConfig) -> Literal["torch", "megatron"]:
    """The backend that trains weights, as configured."""
    if config.backend == "auto":
        return "megatron" if config.gpus or config.model_size else "torch"
    return "megatron" if config.backend == "megatron" else "torch"


def method(config: TrainerConfig) -> str:
    """`lora` or `full`; why lora is the default: README.md. Megatron trains all weights."""
    if config.method != "auto":
        return config.method
    return "full" if kind(config) == "megatron" else "lora"


def learning_rate(config: TrainerConfig) -> float:
    """The configured rate, or the method's default."""
    return config.learning_rate or {"lora": 1e-3, "full": 1e-4}[method(config)]


def reads(config: TrainerConfig, start: StartPoint) -> bool:
    """The configured backend can go on from what a checkpoint holds: shards of ranks, or files."""
    return start.weights is None or start.weights.is_dir() == (kind(config) == "megatron")


def create(folder: Path, config: TrainerConfig, start: StartPoint) -> Backend:
    """The configured backend; imports PyTorch, which takes seconds, or starts processes that do.

    Args:
        folder: of the base model.
        config: the trainer's.
        start: where to go on from.
    Raises:
        OSError, ValueError: the model or the start point can't be read, or the configuration doesn't fit the machine.
        BackendLost: its processes ended while they started.
    """
    if kind(config) == "megatron":
        from openclaw_rl.training.backends.megatron.backend import MegatronBackend

        return MegatronBackend(folder, config, start)
    from openclaw_rl.training.backends.torch import TorchBackend

    return TorchBackend(folder, config, start)
