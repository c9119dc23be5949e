"""Hugging Face's tensors to megatron-core's parameters and back, for every rank of a layout, without megatron-core."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.backends.megatron.layout import Layout, unsupported
from openclaw_rl.training.backends.megatron.mapping import Part, rules
from tests.training.backends.megatron.families import FAMILIES, make


@pytest.mark.parametrize("layout", [Layout(1, 1, 1), Layout(2, 1, 1), Layout(1, 2, 1), Layout(2, 2, 1)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_way_there_and_back_is_exact(tmp_path: Path, family: str, layout: Layout) -> None:
    model = ModelConfig.read(make(tmp_path, family))
    before = load_file(tmp_path / "model.safetensors")
    after = {name: torch.full_like(tensor, torch.nan) for name, tensor in before.items()}
    for stage in range(layout.pipeline):
        for rank in range(layout.tensor):
            for rule in rules(model, layout, stage).values():
                parameter = rule.join([part.fill(before[part.name][part.place(rank, layout.tensor)], layout.tensor)
                                       for part in rule.parts])
                for part, piece in zip(rule.parts, rule.split(parameter, layout.tensor), strict=True):
                    target = after[part.name][part.place(rank, layout.tensor)]
                    target.copy_(piece[tuple(slice(size) for size in target.shape)])
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_vocabulary_that_does_not_divide_is_filled_up() -> None:
    part = Part("model.embed_tokens.weight", (97, 3), 0)
    assert [part.place(rank, 2)[0] for rank in range(2)] == [slice(0, 49), slice(49, 97)]
    filled = part.fill(torch.ones(48, 3), 2)
    assert filled.shape == (49, 3)
    assert filled.sum() == 48 * 3


def test_heads_stay_with_their_keys() -> None:
    """Two groups of two q heads, one k, one v each: the rank's rows of linear_qkv are q q k v, q q k v."""
    model = ModelConfig("llama", 4, 8, 1, 4, 2, 1, 9, 16, 1e-5, 1e4, None, 1.0, True, False, False, False, False, (1,))
    rule = rules(model, Layout(1, 1, 1), 0)["decoder.layers.0.self_attention.linear_qkv.weight"]
    q, k, v = (torch.tensor(rows)[:, None].expand(-1, 4) for rows in ([1, 2, 3, 4], [10, 20], [100, 200]))
    assert rule.join([q, k, v])[:, 0].tolist() == [1, 2, 10, 100, 3, 4, 20, 200]


def test_what_it_cannot_compute_is_named(tmp_path: Path) -> None:
    model = ModelConfig.read(make(tmp_path, "llama"))
    assert unsupported(model) is None
    assert "mlp_bias: true is not supported" in (unsupported(replace(model, mlp_bias=True)) or "")
    assert "attention_bias: true is not supported" in (unsupported(replace(model, out_bias=True)) or "")
