"""Mapping between Hugging Face's tensors and megatron-core's parameters on every rank.

Both hold the same values, so that the way there and back is exact to the bit. A parameter is made of one, two or three
tensors, cut among the ranks of a tensor parallel group:

| parameter | tensors | cut |
|---|---|---|
| word_embeddings, output_layer | embed_tokens, lm_head | rows; zeros fill up what does not divide |
| linear_qkv | for each key-value group its q heads, k, v | groups |
| linear_fc1 | gate over up | rows of each |
| linear_proj, linear_fc2 | o, down | columns |
| norms | norms | not cut |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.backends.megatron.layout import Layout

#: Tensors with a row for each token.
VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class Part:
    """A Hugging Face tensor, and how it is cut."""

    name: str
    shape: tuple[int, ...]  #: whole
    axis: int | None  #: that is cut; None: every rank has all of it

    def local_shape(self, ranks: int) -> list[int]:
        """Return the shape of the part of one of `ranks` ranks, padding included."""
        shape = list(self.shape)
        if self.axis is not None:
            shape[self.axis] = -(-shape[self.axis] // ranks)
        return shape

    def place(self, rank: int, ranks: int) -> tuple[slice, ...]:
        """Return the slice of the whole tensor that a rank has."""
        cut = [slice(None)] * len(self.shape)
        if self.axis is not None:
            size, all_of_it = self.local_shape(ranks)[self.axis], self.shape[self.axis]
            cut[self.axis] = slice(min(rank * size, all_of_it), min((rank + 1) * size, all_of_it))
        return tuple(cut)

    def fill(self, piece: Tensor, ranks: int) -> Tensor:
        """Pad a rank's part of the tensor with zeros, where it ends early."""
        shape = self.local_shape(ranks)
        if list(piece.shape) == shape:
            return piece
        filled = piece.new_zeros(shape)
        filled[tuple(slice(size) for size in piece.shape)] = piece
        return filled


@dataclass(frozen=True, slots=True)
class Rule:
    """Composition of a parameter on one rank: its rows are `groups` times some rows of each part."""

    parts: tuple[Part, ...]
    groups: int = 1

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Join a rank's piece of each part to the parameter."""
        if len(pieces) == 1:
            return pieces[0]
        rest = pieces[0].shape[1:]
        return torch.cat([p.reshape(self.groups, -1, *rest) for p in pieces], 1).reshape(-1, *rest)

    def split(self, parameter: Tensor, ranks: int) -> list[Tensor]:
        """Split the parameter into a rank's piece of each part: views where possible."""
        if len(self.parts) == 1:
            return [parameter]
        rest = parameter.shape[1:]
        rows = [part.local_shape(ranks)[0] // self.groups for part in self.parts]
        pieces = parameter.view(self.groups, sum(rows), *rest).split(rows, 1)  # type: ignore[no-untyped-call]
        return [piece.reshape(-1, *rest) for piece in pieces]


def rules(config: ModelConfig, layout: Layout, stage: int) -> dict[str, Rule]:
    """Return the rule of each parameter of megatron-core's GPTModel on a pipeline stage, by name."""
    shapes = config.tensors()

    def part(name: str, axis: int | None) -> Part:
        return Part(name, shapes[name], axis)

    found: dict[str, Rule] = {}
    first, last = stage == 0, stage == layout.pipeline - 1
    if first:
        found["embedding.word_embeddings.weight"] = Rule((part("model.embed_tokens.weight", 0),))
    each = config.layers // layout.pipeline
    for local in range(each):
        at, to = f"model.layers.{stage * each + local}.", f"decoder.layers.{local}."
        for norm, its in (("input_layernorm", "input_layernorm"), ("pre_mlp_layernorm", "post_attention_layernorm")):
            found[f"{to}{norm}.weight"] = Rule((part(f"{at}{its}.weight", None),))
        for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
            found[f"{to}self_attention.linear_qkv.{kind}"] = Rule(
                tuple(part(f"{at}self_attn.{x}_proj.{kind}", 0) for x in "qkv"), config.kv_heads // layout.tensor)
        for x in "qk" if config.qk_norm else "":
            found[f"{to}self_attention.{x}_layernorm.weight"] = Rule((part(f"{at}self_attn.{x}_norm.weight", None),))
        found[f"{to}self_attention.linear_proj.weight"] = Rule((part(f"{at}self_attn.o_proj.weight", 1),))
        found[f"{to}mlp.linear_fc1.weight"] = Rule(tuple(part(f"{at}mlp.{x}_proj.weight", 0) for x in ("gate", "up")))
        found[f"{to}mlp.linear_fc2.weight"] = Rule((part(f"{at}mlp.down_proj.weight", 1),))
    if last:
        found["decoder.final_layernorm.weight"] = Rule((part("model.norm.weight", None),))
        if not config.tied:
            found["output_layer.weight"] = Rule((part("lm_head.weight", 0),))
        elif not first:  # the last stage has a copy
            found["output_layer.weight"] = Rule((part("model.embed_tokens.weight", 0),))
    return found
