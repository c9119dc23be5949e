"""Interface of the back ends, which do the arithmetic of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import Buffer

WEIGHTS_FILE = "weights.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
#: The same of a backend whose ranks write shards: folders in a checkpoint's folder.
WEIGHTS_FOLDER = "weights"
OPTIMIZER_FOLDER = "optimizer"

#: Of AdamW.
BETAS = (0.9, 0.95)


class BackendLost(Exception):
    """The back end ended or hangs, which is not the samples' fault; nothing of what it was doing may be
    kept, and the backend must be built again from its last checkpoint. The text says what ended and why, as far as
    that is known."""


class BackendWaits(BackendLost):
    """A service that the back end needs does not answer just now; that takes time or a person, and the samples wait."""


class Stopped(Exception):
    """The step was given up as requested."""


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Checkpoint that a back end begins with. Both unset: the base model."""

    weights: Path | None = None  #: file with the trained parameters, or folder of their shards
    optimizer: Path | None = None  #: file, or folder, with the optimizer's state; unset begins with a fresh one


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A prompt that nobody trains on, a good answer to it and a wrong one."""

    prompt: str
    answer: str
    wrong: str = ""  #: as long as the good one and in the same style; empty when there is none
    temperature: float = 0.0  #: at which the policy answers; 0: greedily


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the policy."""

    text: str
    ids: list[int]  #: its tokens, the one that ends it left out


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of a model on held-out prompts."""

    answers: list[Answer]  #: in the order of the prompts
    #: exp of the mean negative log-likelihood of all tokens of the good answers, in nats, of those prompts that have a
    #: wrong one too if any has; None of an API model, which tells none
    perplexity: float | None
    #: Further figures: `margin`, the log-probability of good over wrong answers, in nats a token; `pairs`, the part of
    #: these in which the good one is the likelier.
    parts: dict[str, float] = field(default_factory=dict)


class Backend(Protocol):
    """A policy in training. Built from a StartPoint; holds the model until it is closed and dropped. Used by one
    thread. Each method raises BackendLost when it is lost."""

    def step(self, examples: Sequence[Any], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        """Make one optimizer step; return its figures.

        Args:
            examples: the batch; see data_adapter.DataAdapter.example.
            version: the policy version that the backend is before the step.
            stop: asked between samples; true gives the step up.

        Raises:
            AbnormalStep: nothing that it did may be kept.
            Stopped: it was given up, and changed nothing.
        """

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation:
        """Evaluate the policy as it is now on held-out prompts; changes nothing.

        Args:
            prompts: each is a conversation of its own.
            max_new_tokens: tokens of an answer at most, of good and wrong ones too.
            stop: asked between tokens; true gives it up.
            base: try the frozen base model instead.

        Raises:
            Stopped: it was given up.
            ValueError: the model's tokenizer or chat template can't write the prompts.
        """

    def tensors(self) -> Iterator[tuple[str, str, Sequence[int], Buffer]]:
        """Yield the policy as it is now: (name, dtype, shape, bytes) of each tensor that differs from the base model's;
        those that adapters made are encoding.Adapted."""

    def save(self, folder: Path) -> None:
        """Write what a StartPoint needs into `folder`: WEIGHTS_FILE and OPTIMIZER_FILE, or WEIGHTS_FOLDER and
        OPTIMIZER_FOLDER."""

    def alive(self) -> bool:
        """Return whether the processes that it started still run. Raises nothing."""

    def close(self) -> None:
        """End the processes that it started; it is not used any more. Raises nothing."""
