"""New weights come in while responses run: nothing stops, and every token says who made it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.models.llama import load_weights
from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.interface import Sampling, WeightsError
from tests.serving.engines.conftest import ids, tokens
from tests.support.waiting import eventually

LONG = Sampling(temperature=2, seed=4, max_tokens=400)


async def test_a_running_response_goes_on_with_the_new_weights(engine: EmbeddedEngine, other: Path) -> None:
    before, _ = await engine.score([1, 2, 3])
    responses = [asyncio.create_task(tokens(engine, [i + 1], LONG)) for i in range(4)]
    await eventually(lambda: engine.status().counters["engine_tokens"] > 20)
    await engine.stage(1, other)
    assert engine.active_version == 0
    pause = await engine.activate(1)
    assert engine.active_version == 1
    assert pause.steps <= 1
    assert pause.ms < 50
    for response in await asyncio.gather(*responses):
        versions = [token.version for token in response]
        assert versions == sorted(versions)
        assert len(response) == 400 or response[-1].id in engine.info.eos_ids
    after, version = await engine.score([1, 2, 3])
    assert version == 1
    assert after != before
    assert [token.version for token in await tokens(engine, [1])] == [1] * 12
    await engine.stage(0, engine._folder)
    await engine.activate(0)
    assert await engine.score([1, 2, 3]) == (before, 0)


def test_a_version_that_keeps_the_embedding_shares_it(tiny: Path, tmp_path: Path) -> None:
    """What an adapter does not change is neither laid out nor held twice."""
    config, cpu = ModelConfig.read(tiny), torch.device("cpu")
    with torch.inference_mode():
        base = load_weights(tiny, config, cpu)
        for name, shared in (("model.layers.0.mlp.down_proj.weight", True), ("model.embed_tokens.weight", False)):
            folder = tmp_path / name
            shutil.copytree(tiny, folder)
            tensors = load_file(folder / "model.safetensors")
            tensors[name][0, 0] += 1
            save_file(tensors, folder / "model.safetensors")
            other = load_weights(folder, config, cpu, base)
            assert (other.embedding is base.embedding) == shared
            assert (other.head is base.head) == (shared and config.tied)
            x = torch.eye(config.hidden_size)[:2]
            assert torch.equal(other.head(x), load_weights(folder, config, cpu).head(x))


async def test_spans_change_exactly_at_the_swap(engine: EmbeddedEngine, other: Path, held: SimpleNamespace) -> None:
    await engine.stage(7, other)
    held.before = lambda pieces: held.gate.clear() if len(held.pieces) == 6 else None
    response = asyncio.create_task(tokens(engine, [5, 6], LONG))
    await eventually(lambda: held.waiting and len(held.pieces) == 6)
    swap = asyncio.create_task(engine.activate(7))
    await eventually(lambda: bool(engine._decoding and engine._decoding._swaps))
    held.gate.set()
    assert (await swap).steps == 1
    versions = [token.version for token in await response]
    assert versions[:7] == [0] * 6 + [7]
    assert set(versions[6:]) == {7}


async def test_scores_are_of_one_version(engine: EmbeddedEngine, other: Path, held: SimpleNamespace) -> None:
    text = [i % 100 for i in range(700)]
    await engine.stage(1, other)
    held.gate.clear()
    scoring = asyncio.create_task(engine.score(text))
    await eventually(lambda: held.waiting)
    swap = asyncio.create_task(engine.activate(1))
    await eventually(lambda: bool(engine._decoding and engine._decoding._swaps))
    held.gate.set()
    await swap
    assert await scoring == await engine.score(text)


async def test_weights_that_do_not_fit_are_refused_and_serving_goes_on(engine: EmbeddedEngine, other: Path,
                                                                       tmp_path: Path) -> None:
    good = load_file(other / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    cases = {
        "missing": ({k: v for k, v in good.items() if k != name}, f"{name} is missing"),
        "unknown": (good | {"model.extra": torch.zeros(1)}, "model.extra is not part of"),
        "shape": (good | {name: good[name].T.contiguous()}, r"has shape \[64, 96\]; config.json asks for \[96, 64\]"),
        "type": (good | {name: good[name].double()}, "has type F64; allowed: BF16, F16, F32"),
        "nan": (good | {name: good[name] * float("nan")}, f"{name} holds NaN or Inf"),
    }
    for case, (state, text) in cases.items():
        folder = tmp_path / case
        folder.mkdir()
        save_file(state, folder / "model.safetensors")
        with pytest.raises(WeightsError, match=text):
            await engine.stage(3, folder)
    cut = tmp_path / "cut"
    cut.mkdir()
    shutil.copy(other / "model.safetensors", cut)
    with (cut / "model.safetensors").open("r+b") as file:
        file.truncate(20_000)
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        await engine.stage(3, cut)
    with pytest.raises(WeightsError, match=r"neither model.safetensors nor model.safetensors.index.json is there"):
        await engine.stage(3, tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="version 3 is not staged; staged: none"):
        await engine.activate(3)
    assert await ids(engine, [1, 2, 3])


async def test_the_file_of_active_weights_may_go(engine: EmbeddedEngine, other: Path, tmp_path: Path) -> None:
    shutil.copy(other / "model.safetensors", tmp_path)
    await engine.stage(1, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    await engine.activate(1)
    assert await ids(engine, [1, 2, 3])


async def test_discarded_versions_are_gone(engine: EmbeddedEngine, other: Path) -> None:
    await engine.stage(1, other)
    engine.discard(1)
    engine.discard(2)
    with pytest.raises(WeightsError, match="version 1 is not staged"):
        await engine.activate(1)
