"""Construction of the configured back end."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.backends.interface import Backend, StartPoint
from openclaw_rl.training.backends.selection import kind


def create(folder: Path, config: TrainerConfig, start: StartPoint) -> Backend:
    """Make the configured back end; imports PyTorch, which takes seconds, or starts processes that do.

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
