"""Conversion between Hugging Face's files and a rank's parameters, tensor by tensor; a rank reads only its part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from typing_extensions import Buffer

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.backends.megatron.mapping import Part, Rule, rules
from openclaw_rl.training.backends.megatron.parallel import Place
from openclaw_rl.weights.format import safetensors
from openclaw_rl.weights.format.digest import ITEM_SIZE

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Files:
    """Tensors in safetensors files, of which parts can be read.

    Args:
        places: as read_folder or read_header of weights/layout.py gives them.
    """

    def __init__(self, places: dict[str, safetensors.Place]) -> None:
        self._places = places
        self._open: dict[Path, Any] = {}

    def piece(self, part: Part, place: Place) -> Tensor:
        """Return a rank's part of a tensor, padded.

        Raises:
            ValueError: it isn't there, or of another shape.
        """
        found = self._places.get(part.name)
        if found is None or found.shape != part.shape:
            there = "is missing" if found is None else f"has shape {list(found.shape)}, not {list(part.shape)}"
            raise ValueError(f"{next(iter(self._places.values())).path}: tensor {part.name} {there}")
        file = self._open.get(found.path)
        if file is None:
            file = self._open[found.path] = safe_open(found.path, "pt")
        cut = file.get_slice(part.name)[part.place(place.tensor, place.layout.tensor)]
        return part.fill(cut, place.layout.tensor)


@torch.no_grad()
def load(files: Files, made_of: dict[str, Rule], parameters: dict[str, Any], place: Place) -> None:
    """Fill parameters, by name, from Hugging Face's tensors.

    Raises:
        ValueError: one is missing or of another shape.
    """
    for name, rule in made_of.items():
        parameters[name].copy_(rule.join([files.piece(part, place) for part in rule.parts]))


def gathered(folder: Path, parameters: dict[str, Any], place: Place,
             ) -> Iterator[tuple[str, str, Sequence[int], Buffer]]:
    """Yield all tensors as the model folder has them, (name, dtype, shape, bytes), on rank 0; nothing on the others,
    where it must be run through all the same. One tensor at a time is whole, on rank 0 alone.

    Args:
        folder: of the base model: names, types and order.
        parameters: this rank's values, by megatron-core's names.
    """
    config = ModelConfig.read(folder)
    base = safetensors.read_folder(folder)
    owners: dict[str, tuple[int, str, Rule, int]] = {}
    for stage in range(place.layout.pipeline):
        for name, rule in rules(config, place.layout, stage).items():
            for index, part in enumerate(rule.parts):
                owners.setdefault(part.name, (stage, name, rule, index))
    # Wide element types first, as the file wants them.
    names = sorted(base.keys() & owners.keys(), key=lambda name: (-ITEM_SIZE[base[name].dtype], name))
    left = iter(names)

    def next_one(name: str) -> Tensor | None:
        stage, parameter, rule, index = owners[name]
        return _gather(parameters.get(parameter) if stage == place.stage else None, rule, index, stage,
                       _TYPES[base[name].dtype], place)

    try:
        for name in left:
            whole = next_one(name)
            if whole is not None:
                yield (name, base[name].dtype, list(base[name].shape),
                       whole.reshape(-1).view(torch.uint8).numpy().data)
            del whole
    finally:
        for name in left:  # whoever stops in the middle must not leave the others sending
            next_one(name)


@torch.no_grad()
def _gather(parameter: Tensor | None, rule: Rule, index: int, stage: int, dtype: torch.dtype,
            place: Place) -> Tensor | None:
    """Gather one part of a parameter on the CPU of rank 0."""
    part, ranks = rule.parts[index], place.layout.tensor
    holders = range(ranks) if part.axis is not None else range(1)
    here = dist.get_rank()
    own = None
    if parameter is not None and place.replica == 0 and place.tensor in holders:
        sizes = [at.indices(size)[1] - at.indices(size)[0]
                 for at, size in zip(part.place(place.tensor, ranks), part.shape, strict=True)]
        own = rule.split(parameter.detach(), ranks)[index][tuple(map(slice, sizes))].to(dtype).contiguous()
    if here != 0:
        if own is not None and own.numel():
            dist.send(own, 0)
        return None
    whole = torch.empty(part.shape, dtype=dtype)
    for tensor in holders:
        target = whole[part.place(tensor, ranks)]
        if not target.numel():
            continue
        source = place.rank(stage, tensor)
        if source == 0:
            assert own is not None
            target.copy_(own)
            own = None
            continue
        direct = target.is_contiguous() and place.device.type == "cpu"
        received = target if direct else torch.empty(target.shape, dtype=dtype, device=place.device)
        dist.recv(received, source)
        if not direct:
            target.copy_(received)
    return whole
