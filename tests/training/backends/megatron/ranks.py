"""One of two ranks that try all layouts of two, one after the other.

Usage: `python -m tests.training.backends.megatron.ranks FOLDER RANK`.
Rank 0 writes what comes of it into FOLDER/results.

Importing megatron-core takes longer than everything that is done with it here, hence one pair of processes for all.
"""

from __future__ import annotations

import contextlib
import json
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import Buffer

from openclaw_rl.training.algorithms.example import AbnormalStep
from openclaw_rl.training.backends.interface import OPTIMIZER_FOLDER, WEIGHTS_FOLDER, StartPoint, Stopped
from openclaw_rl.training.backends.megatron import files
from openclaw_rl.training.backends.megatron.layout import Layout
from openclaw_rl.training.backends.megatron.policy import MegatronPolicy
from tests.training.backends.megatron.families import PROMPTS, episodes, examples, never, settings

LAYOUTS = {"tensor": Layout(2, 1, 1), "pipeline": Layout(1, 2, 1), "data": Layout(1, 1, 2)}


def tried(policy: MegatronPolicy, version: int) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """A step's figures and its whole gradients (on rank 0), before they were clipped."""
    found: dict[str, torch.Tensor] = {}
    optimizer = policy._optimizer
    step = optimizer.step

    def record(norm: float, limit: float) -> None:
        gradients = {name: p.main_grad for name, p in optimizer._parameters.items()}  # type: ignore[attr-defined]
        found.update(collected(files.gathered(policy._folder, gradients, policy._place)))
        step(norm, limit)

    optimizer.step = record  # type: ignore[method-assign]
    metrics = policy.step(examples(), version, never)
    del optimizer.step
    return metrics, found


def collected(tensors: Iterable[tuple[str, str, Sequence[int], Buffer]]) -> dict[str, torch.Tensor]:
    """What an fp32 model's `tensors` yield."""
    return {name: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(list(shape))
            for name, _, shape, data in tensors}


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that were made in it and are still there, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage._cdata not in self._known:
                    self._known.add(storage._cdata)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return result

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def one_layout(model: Path, layout: Layout, results: Path) -> None:
    """Two steps with a checkpoint between them, an evaluation, and what can go wrong."""
    policy = MegatronPolicy(model, settings(), layout, StartPoint())
    report: dict[str, Any] = {}
    report["first"], gradients = tried(policy, 0)
    results.mkdir(exist_ok=True)
    dist.barrier()
    policy.save(results)
    report["second"], _ = tried(policy, 1)
    evaluation = policy.evaluate(PROMPTS, 12, never)
    if evaluation is not None:
        report["answers"], report["perplexity"] = [a.ids for a in evaluation.answers], evaluation.perplexity

    live = LiveBytes()
    weights = {}
    with live:
        for name, _, shape, data in policy.tensors():
            weights[name] = bytes(data), list(shape)
    report["peak"] = live.peak
    abandoned = policy.tensors()
    next(abandoned, None)
    abandoned.close()  # type: ignore[attr-defined]

    report["episodes"] = policy.step(episodes(), 1, never)
    # What one rank finds out, all of them act on.
    turns = iter([False, True])
    report["stopped"] = raised(Stopped, lambda: policy.step(
        examples(), 0, lambda: dist.get_rank() == 1 and next(turns, True)))
    report["evaluation stopped"] = raised(Stopped, lambda: policy.evaluate(
        PROMPTS, 12, lambda: dist.get_rank() == 1))
    policy._optimizer.finite = lambda: dist.get_rank() == 0  # type: ignore[method-assign]
    report["abnormal"] = raised(AbnormalStep, lambda: policy.step(examples(), 0, never))
    del policy._optimizer.finite
    report["one sample"] = policy.step(examples(1), 0, never)
    if dist.get_rank() == 0:
        (results / "report.json").write_text(json.dumps(report))
        save_file(gradients, results / "gradients.safetensors")
        save_file({name: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)
                   for name, (data, shape) in weights.items()}, results / "weights.safetensors")


def raised(kind: type[Exception], call: Any) -> int:
    """How many of the ranks raised it."""
    count = torch.zeros(())
    with contextlib.suppress(kind):
        call()
        count -= 1
    count += 1
    dist.all_reduce(count)
    return int(count)


def resumed(model: Path, start: Path, layout: Layout) -> dict[str, float]:
    """Figures of the second step, from what another layout saved after the first."""
    policy = MegatronPolicy(model, settings(), layout, StartPoint(start / WEIGHTS_FOLDER, start / OPTIMIZER_FOLDER))
    return policy.step(examples(), 1, never)


def main(folder: Path, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2,
                            timeout=timedelta(seconds=60))
    for family in ("llama", "qwen2", "qwen3"):
        for name, layout in LAYOUTS.items():
            one_layout(folder / family, layout, folder / "results" / f"{family}-{name}")
    moves: Iterator[tuple[str, str]] = iter([("tensor", "pipeline"), ("pipeline", "data"), ("data", "tensor"),
                                             ("alone", "tensor")])
    figures = {}
    for before, after in moves:
        start = folder / "results" / f"llama-{before}"
        figures[f"{before} to {after}"] = resumed(folder / "llama", start, LAYOUTS[after])
    if rank == 0:
        (folder / "results" / "resumed.json").write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
