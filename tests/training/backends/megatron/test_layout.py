"""Which layouts there are, which is taken, and what is said of those that can't be."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from openclaw_rl.config import MegatronConfig
from openclaw_rl.training.backends.megatron.layout import (
    BYTES_PER_PARAMETER,
    Layout,
    LayoutError,
    choose,
    layouts,
    need,
    parameters,
    parse_size,
    pipeline_sizes,
    same_size,
    size_text,
    tensor_sizes,
)
from openclaw_rl.training.backends.megatron.plan import EMBEDDED

GB = 10**9
#: Llama 3 8B's and 70B's sizes.
LLAMA_8B = replace(EMBEDDED, hidden_size=4096, intermediate_size=14336, layers=32, heads=32, kv_heads=8, head_dim=128,
                   vocab_size=128256, tied=False)
LLAMA_70B = replace(LLAMA_8B, hidden_size=8192, intermediate_size=28672, layers=80, heads=64)
QWEN_500M = replace(EMBEDDED, architecture="qwen2", hidden_size=896, intermediate_size=4864, layers=24, heads=14,
                    kv_heads=2, vocab_size=151936, qkv_bias=True)


def taken(model=LLAMA_8B, ranks=8, memory: float | None = 80 * GB, gpu=True, tokens=2048, **overrides) -> Layout:
    return choose(model, ranks, memory, MegatronConfig(**overrides), tokens, gpu=gpu)


def test_sizes() -> None:
    assert [round(parameters(model) / 1e6) for model in (EMBEDDED, LLAMA_8B, LLAMA_70B, QWEN_500M)] == [
        135, 8030, 70554, 494]
    assert [parse_size(text) for text in ("8B", "1.5b", " 135M ", "70 B", "8030261248", "1T")] == [
        8e9, 1.5e9, 135e6, 70e9, 8030261248, 1e12]
    for text in ("", "B", "8GB", "-8B", "0B", "eight", "8 billion"):
        with pytest.raises(ValueError, match="such as 8B"):
            parse_size(text)
    assert (size_text(134515008), size_text(8030261248)) == ("135M", "8.0B")
    assert all(same_size(named, there) for named, there in ((8e9, 8.03e9), (7e9, 7.6e9), (1.5e9, 1.78e9), (5e8, 494e6)))
    assert not same_size(8e9, 135e6) and not same_size(135e6, 8e9) and not same_size(7e9, 13e9)


@pytest.mark.parametrize("model", [EMBEDDED, LLAMA_8B, LLAMA_70B, QWEN_500M])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 16])
def test_every_layout_divides_what_it_cuts(model: Any, ranks: int) -> None:
    found = list(layouts(model, ranks))
    assert found and len(set(found)) == len(found)
    for one in found:
        assert one.world == ranks == math.prod((one.tensor, one.pipeline, one.data))
        assert not (model.heads % one.tensor or model.kv_heads % one.tensor or model.layers % one.pipeline)
    every = {Layout(t, p, ranks // (t * p)) for t, p in product(range(1, ranks + 1), repeat=2) if not (
        ranks % (t * p) or model.heads % t or model.kv_heads % t or model.intermediate_size % t or model.layers % p)}
    assert set(found) == every


@pytest.mark.parametrize(("model", "sizes"), [(EMBEDDED, [1, 3]), (LLAMA_8B, [1, 2, 4, 8]), (QWEN_500M, [1, 2])])
def test_layers_are_cut_by_whole_heads(model: Any, sizes: Any) -> None:
    assert tensor_sizes(model) == sizes
    assert pipeline_sizes(EMBEDDED) == [1, 2, 3, 5, 6, 10, 15, 30]


def test_the_memory_of_a_rank() -> None:
    whole = need(LLAMA_8B, Layout(1, 1, 8), 2048, gpu=True)
    assert whole.parameters == BYTES_PER_PARAMETER * parameters(LLAMA_8B) == 160605224960
    half = need(LLAMA_8B, Layout(2, 1, 4), 2048, gpu=True)
    assert half.parameters == pytest.approx(whole.parameters / 2) and half.activations < whole.activations
    assert half == need(LLAMA_8B, Layout(2, 1, 1), 2048, gpu=True), "copies need as much as one"
    # Two stages have half of the layers each, and one of the two tables.
    staged = need(LLAMA_8B, Layout(1, 2, 4), 2048, gpu=True)
    assert staged.parameters == pytest.approx(whole.parameters / 2)
    # A tied one's table is on the first stage and on the last.
    table = EMBEDDED.vocab_size * EMBEDDED.hidden_size * BYTES_PER_PARAMETER
    one, two = (need(EMBEDDED, Layout(1, p, 1), 2048, gpu=False).parameters for p in (1, 2))
    assert two == pytest.approx((one - table) / 2 + table, rel=1e-6)
    kept, again, longer = (need(LLAMA_8B, Layout(1, 1, 1), tokens, gpu=True).activations
                           for tokens in (1024, 1025, 16384))
    assert kept == again < longer, "a little over the bound it is computed again, and no more than below it"
    assert need(LLAMA_8B, Layout(1, 1, 1), 2048, gpu=False).activations > whole.activations, "fp32"


@pytest.mark.parametrize(("model", "ranks", "memory", "layout"), [
    (LLAMA_8B, 8, 80 * GB, Layout(4, 1, 2)),
    (LLAMA_8B, 8, 141 * GB, Layout(2, 1, 4)),
    (LLAMA_8B, 8, 192 * GB, Layout(1, 1, 8)),
    (LLAMA_8B, 8, 40 * GB, Layout(8, 1, 1)),
    (LLAMA_8B, 16, 16 * GB, Layout(8, 2, 1)),
    (LLAMA_70B, 16, 141 * GB, Layout(8, 2, 1)),
    (EMBEDDED, 8, 80 * GB, Layout(1, 1, 8)),
    (EMBEDDED, 3, 3.5 * GB, Layout(3, 1, 1)),
    (QWEN_500M, 4, 12 * GB, Layout(2, 1, 2)),
    (LLAMA_8B, 1, None, Layout(1, 1, 1)),
    (LLAMA_8B, 8, None, Layout(1, 1, 8)),
])
def test_the_model_is_cut_no_more_than_the_memory_asks_for(model: Any, ranks: int, memory: Any, layout: Any) -> None:
    assert taken(model, ranks, memory) == layout


def test_what_is_set_is_taken() -> None:
    assert taken(tensor_parallel=8) == Layout(8, 1, 1)
    assert taken(pipeline_parallel=2, data_parallel=1) == Layout(4, 2, 1)
    assert taken(data_parallel=2) == Layout(4, 1, 2)
    assert taken(tensor_parallel=2, pipeline_parallel=4) == Layout(2, 4, 1)


@pytest.mark.parametrize(("model", "ranks", "overrides", "says"), [
    (EMBEDDED, 2, {"tensor_parallel": 2}, "components.trainer.megatron.tensor_parallel: 2 does not divide the model's "
     "9 heads / 3 key-value heads; 1 and 3 do"),
    (LLAMA_8B, 8, {"tensor_parallel": 16}, "components.trainer.megatron.tensor_parallel: 16 does not divide the "
     "model's 32 heads / 8 key-value heads; 1, 2, 4 and 8 do"),
    (replace(EMBEDDED, heads=1, kv_heads=1), 2, {"tensor_parallel": 2}, "1 heads / 1 key-value heads; only 1 does"),
    (replace(LLAMA_8B, intermediate_size=14335), 8, {"tensor_parallel": 2}, "does not divide the model's MLP of 14335"),
    (EMBEDDED, 4, {"pipeline_parallel": 4}, "components.trainer.megatron.pipeline_parallel: 4 does not divide the "
     "model's 30 layers; 1, 2, 3, 5, 6, 10, 15 and 30 do"),
    (LLAMA_8B, 8, {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 3},
     "components.trainer.megatron: tensor_parallel 2 x pipeline_parallel 2 x data_parallel 3 are 12 ranks, and "
     "components.trainer.gpus is 8; tensor x pipeline x data may be 1 x 1 x 8, 1 x 2 x 4, 1 x 4 x 2"),
    (LLAMA_8B, 8, {"data_parallel": 3}, "components.trainer.megatron: data_parallel 3 fits no layout of 8 ranks "
     "(components.trainer.gpus); tensor x pipeline x data may be 1 x 1 x 8"),
])
def test_a_wrong_layout_is_named_with_what_fits(model: Any, ranks: int, overrides: Any, says: str) -> None:
    with pytest.raises(LayoutError) as error:
        taken(model, ranks, **overrides)
    assert says in str(error.value)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(LayoutError) as error:
        taken(EMBEDDED, 8, tensor_parallel=2, pipeline_parallel=4)
    assert len(str(error.value).splitlines()) == 2


def test_too_little_memory_is_named_with_what_it_needs() -> None:
    with pytest.raises(LayoutError) as error:
        taken(LLAMA_8B, 8, 16 * GB, tensor_parallel=4, pipeline_parallel=1)
    assert str(error.value) == (
        "components.trainer.gpus: 8, each with 16.0 GB of memory, are too little for a model of 8.0B: tensor 4 x "
        "pipeline 1 x data 2 needs 40.2 GB a rank for weights, gradients and optimizer (20 bytes a parameter) and 2.0 "
        "GB for the process; take more of them, more memory, or a smaller model")
    # Activations are an estimate: they decide what is taken, and refuse nothing.
    assert taken(LLAMA_8B, 8, 42.5 * GB, tensor_parallel=4) == Layout(4, 2, 1)
    assert taken(LLAMA_8B, 4, 42.5 * GB, tensor_parallel=4, tokens=2048) == Layout(4, 1, 1)
