"""Check, before a start, that the model fits into this machine's memory.

Only what is certainly needed is counted, so that nothing that would run is refused: weights, and what training keeps
for each of them. Caches, activations and the processes themselves come on top.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.models.config import ModelConfig, ModelError

#: Bytes for each weight of the model. Served: the active version and one that takes its place, two bytes each; trained
#: (lora): the model as it is computed with, two bytes at least, and the version that is merged for the others; trained
#: (full): float32 weights, gradients and Adam's two moments, and the frozen model, two bytes.
_SERVED, _LORA, _FULL = 4, 4, 18


def weights_of(folder: Path) -> int:
    """Return the number of weights of the model in a folder.

    Raises:
        ModelError: it can't be read.
    """
    return sum(map(prod, ModelConfig.read(folder).tensors().values()))


def least_memory(weights: int) -> tuple[int, int]:
    """Return the bytes of memory that a model takes at least without a GPU: served, and trained with lora."""
    return _SERVED * weights, _LORA * weights


def check_memory(config: Config, folder: Path, names: list[str]) -> None:
    """The components that are to be started have room for the model.

    Args:
        folder: of the model.
        names: the components.

    Raises:
        StartError: they haven't; the text has what is needed and what there is.
    """
    from openclaw_rl.launch.checks import StartError
    from openclaw_rl.training.backends.megatron import hardware
    from openclaw_rl.training.backends.selection import method

    found = hardware.find()
    policy, trainer = config.components.policy_server, config.components.trainer
    try:
        weights = weights_of(folder)
    except ModelError:
        return  # who can't read it says so
    parts = {}
    if "policy_server" in names and not (found.gpus and policy.device != "cpu"):
        parts["policy_server"] = _SERVED * weights
    if "trainer" in names and trainer.backend in ("auto", "torch") and not (found.gpus and trainer.device != "cpu"):
        parts["trainer"] = (_LORA if method(trainer) == "lora" else _FULL) * weights
    needed = sum(parts.values())
    if needed > found.free_memory:
        shares = ", ".join(f"{name} {_size(share)}" for name, share in parts.items())
        less = "; components.trainer.method: lora needs less" if parts.get("trainer", 0) == _FULL * weights else ""
        raise StartError(f"components.policy_server.model: {policy.model!r} has {weights / 1e9:.2f} billion weights, "
                         f"for which at least {_size(needed)} of memory are needed here ({shares}), and "
                         f"{_size(found.free_memory)} are free: take a smaller model, put a component on another "
                         f"machine, or end other programs{less}")


def _size(number: float) -> str:
    return f"{number / 2**30:.1f} GB"
