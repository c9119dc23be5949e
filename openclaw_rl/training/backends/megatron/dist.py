"""Checkpoints of which every rank writes its shards (megatron-core's dist_checkpointing, format `torch_dist`).

Their keys are Hugging Face's names, so a checkpoint knows nothing of the layout that wrote it, and every other one can
go on from it: the values of a parameter are `NAME`, the moments of AdamW `exp_avg.NAME` and `exp_avg_sq.NAME`.

The format has a pickle in it (`.metadata`, see metadata.py). Only what this trainer wrote itself may be given to
`load`: compare the files' digests first.
"""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from openclaw_rl.training.backends.megatron.cpu import replaced
from openclaw_rl.training.backends.megatron.mapping import VOCABULARY, Part, Rule
from openclaw_rl.training.backends.megatron.metadata import guarded
from openclaw_rl.training.backends.megatron.optimizer import MOMENTS, Optimizer
from openclaw_rl.training.backends.megatron.parallel import Place

_STEPS = "steps"


def save_weights(folder: Path, rules: dict[str, Rule], optimizer: Optimizer, place: Place) -> None:
    """Write the fp32 values of all parameters into an empty folder. Collective.

    Raises:
        OSError: they can't be written.
    """
    _save(_shards(rules, optimizer.masters, place), folder)


def load_weights(folder: Path, rules: dict[str, Rule], optimizer: Optimizer, place: Place) -> None:
    """Load the values that `save_weights` wrote, at whatever layout. Collective.

    Raises:
        ValueError: they are not of this model, or not whole.
    """
    with torch.no_grad():
        for name, value in _load(folder, rules, optimizer.masters, place).items():
            optimizer.masters[name].copy_(value)
    optimizer.publish()


def save_optimizer(folder: Path, rules: dict[str, Rule], optimizer: Optimizer, place: Place) -> None:
    """Write the optimizer's state into an empty folder. Collective.

    Raises:
        OSError: it can't be written.
    """
    moments = optimizer.moments()
    shards: dict[str, Any] = {}
    for key in MOMENTS:
        shards |= _shards(rules, {name: moments[name][key] for name in moments}, place, f"{key}.")
    shards[_STEPS] = torch.tensor(optimizer.steps)
    _save(shards, folder)


def load_optimizer(folder: Path, rules: dict[str, Rule], optimizer: Optimizer, place: Place) -> None:
    """Load the state that `save_optimizer` wrote. Collective.

    Raises:
        ValueError: as for `load_weights`.
    """
    found = {key: _load(folder, rules, optimizer.masters, place, f"{key}.") for key in MOMENTS}
    steps = int(dist_checkpointing.load_common_state_dict(str(folder))[_STEPS])
    optimizer.restore({name: {key: found[key][name] for key in MOMENTS} for name in rules}, steps)


def _shards(rules: dict[str, Rule], values: dict[str, Any], place: Place, prefix: str = "") -> dict[str, Any]:
    shards = {}
    for name, rule in rules.items():
        pieces = rule.split(values[name].detach(), place.layout.tensor)
        for part, piece in zip(rule.parts, pieces, strict=True):
            shards[prefix + part.name] = _shard(prefix + part.name, part, piece, name, place)
    return shards


def _shard(key: str, part: Part, piece: Tensor, parameter: str, place: Place) -> ShardedTensor:
    cut = [] if part.axis is None else [(part.axis, place.tensor, place.layout.tensor)]
    # Copies: those that every tensor parallel rank has, the tied embedding of the last stage, the replicas'.
    copy = (int(parameter == "output_layer.weight" and part.name == "model.embed_tokens.weight"),
            place.tensor if part.axis is None else 0, place.replica)
    # How many rows fill up the vocabulary depends on the layout.
    return ShardedTensor.from_rank_offsets(key, piece.contiguous(), *cut, replica_id=copy,
                                           allow_shape_mismatch=part.name in VOCABULARY)


def _save(shards: dict[str, Any], folder: Path) -> None:
    # megatron-core would fork two writers and start a manager of multiprocessing, which outlives a rank that is killed.
    with replaced((filesystem_async, "_get_write_results_queue", Queue),
                  (FileSystemWriterAsync, "write_preloaded_data_multiproc", staticmethod(_write))):
        try:
            dist_checkpointing.save(shards, str(folder))
        except CheckpointException as error:  # on all ranks; the first knows why
            raise OSError(f"{folder}: the shards can't be written: {_why(error)}") from None


def _write(transforms: list[Any], _: bool, rank: int, buckets: list[Any], results: Queue[Any]) -> None:
    """write_preloaded_data_multiproc, in this process."""
    written: Queue[Any] = Queue()
    for number, bucket in enumerate(buckets):
        running: Queue[int] = Queue()
        running.put(number)
        FileSystemWriterAsync.write_preloaded_data(transforms, local_proc_idx=number, write_bucket=bucket,
                                                   results_queue=written, count_queue=running, use_fsync=True)
    found = dict(written.get() for _ in buckets)
    results.put(next((value for value in found.values() if isinstance(value, Exception)), found))


def _load(folder: Path, rules: dict[str, Rule], like: dict[str, Any], place: Place,
          prefix: str = "") -> dict[str, Tensor]:
    """A tensor of each parameter."""
    wanted = _shards(rules, {name: torch.zeros_like(like[name]) for name in rules}, place, prefix)
    try:
        with guarded():
            found = dist_checkpointing.load(wanted, str(folder))
    except CheckpointException as error:  # the same on all ranks
        raise ValueError(f"{folder}: does not hold the shards of this model: {_why(error)}") from None
    except (CheckpointingException, KeyError, RuntimeError) as error:
        raise ValueError(f"{folder}: does not hold the shards of this model: {str(error)[:300]}") from None
    return {name: rule.join([found[prefix + part.name].to(like[name].device) for part in rule.parts])
            for name, rule in rules.items()}


def _why(error: CheckpointException) -> str:
    failures = [str(failure) for failure, _ in error.failures.values()]
    return failures[0][:300] if failures else "see what another rank says"
