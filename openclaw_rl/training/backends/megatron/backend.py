"""Back end in the trainer's process. It imports neither PyTorch nor megatron-core: the group does the work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.backends.interface import Answer, BackendLost, Evaluation, HeldOut, StartPoint
from openclaw_rl.training.backends.megatron import hardware
from openclaw_rl.training.backends.megatron.group import Group
from openclaw_rl.training.backends.megatron.plan import plan
from openclaw_rl.training.backends.megatron.processes import WORKER

logger = logging.getLogger(__name__)


class MegatronBackend:
    """See openclaw_rl.training.backends.interface.Backend.

    Raises:
        LayoutError: the configuration doesn't fit the model or this machine.
        BackendLost: the group did not come up.
        ValueError: the model or the start point can't be read.
    """

    def __init__(self, folder: Path, config: TrainerConfig, start: StartPoint, *, worker: str = WORKER) -> None:
        made = plan(config, ModelConfig.read(folder), hardware.find())
        logger.info("%s", made)
        self._seconds = config.megatron.step_timeout
        self._group = Group(made.layout.world, config.threads, config.megatron.start_timeout, gpu=made.gpu,
                            worker=worker)
        try:
            self._group.call("begin", {
                "model": str(folder), "config": config.model_dump(mode="json"), "layout": asdict(made.layout),
                "device": "cuda" if made.gpu else "cpu",
                "start": [str(path) if path else None for path in (start.weights, start.optimizer)],
            }, config.megatron.start_timeout)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> dict[int, int]:
        """Return the process id of each rank."""
        return self._group.pids

    def step(self, examples: Sequence[Example], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        result = self._group.call("step", {"examples": [asdict(example) for example in examples],
                                           "version": version}, self._seconds, stop)
        return {str(name): float(value) for name, value in result.items()}

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation:
        result = self._group.call("evaluate", {"prompts": [asdict(prompt) for prompt in prompts], "base": base,
                                               "max_new_tokens": max_new_tokens}, self._seconds, stop)
        return Evaluation([Answer(**answer) for answer in result["answers"]], result["perplexity"],
                          result.get("parts", {}))

    def tensors(self) -> Iterator[tuple[str, str, Sequence[int], Buffer]]:
        for data, content in self._group.stream("tensors", {}, self._seconds):
            yield _text(data, "tensor"), _text(data, "dtype"), data["shape"], content

    def save(self, folder: Path) -> None:
        self._group.call("save", {"folder": str(folder)}, self._seconds)

    def alive(self) -> bool:
        return self._group.alive()

    def close(self) -> None:
        self._group.close()


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise BackendLost(f"rank 0 sent a tensor without {name}")
    return value
