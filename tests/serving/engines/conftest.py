from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.interface import Finished, Sampling, Token

GREEDY = Sampling(temperature=0, max_tokens=12)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 1024, "eos_token_id": 127,
         "bos_token_id": 126, "pad_token_id": 127}


def save_model(folder: Path, kind: str = "llama", seed: int = 0, **settings: object) -> Path:
    """Write a random model of bfloat16 values whose next token depends on all that came before."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**SIZES, "tie_word_embeddings": True, **settings})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.copy_(1 + 0.2 * torch.randn_like(value))
            else:
                value.copy_(torch.randn_like(value) * (0.5 if "embed" in name else 0.2))
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another version of `tiny`."""
    return save_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture
async def engine(tiny: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(tiny, max_batch=8, device="cpu")
    await engine.start()
    yield engine
    await engine.stop()


async def tokens(engine: EmbeddedEngine, prompt: list[int], sampling: Sampling = GREEDY) -> list[Token]:
    """All tokens of a response."""
    items = [item async for item in engine.generate(prompt, sampling)]
    assert isinstance(items[-1], Finished)
    return [item for item in items[:-1] if isinstance(item, Token)]


async def ids(engine: EmbeddedEngine, prompt: list[int], sampling: Sampling = GREEDY) -> list[int]:
    return [token.id for token in await tokens(engine, prompt, sampling)]


@pytest.fixture
def held(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Lets a test hold the decode thread inside a step.

    `pieces` has the sizes of the prompt pieces of each step, `before` is called with them at its start, and while
    `gate` is clear steps wait, which `waiting` shows.
    """
    loop = engine._decoding
    assert loop
    forward, gate = loop._forward, threading.Event()
    gate.set()
    hold = SimpleNamespace(gate=gate, pieces=[], before=lambda pieces: None, waiting=False)

    def step(weights, cache, next_tokens, positions, pieces):
        hold.pieces.append([len(piece.tokens) for piece in pieces])
        hold.before(pieces)
        hold.waiting = True
        assert gate.wait(10)
        hold.waiting = False
        return forward(weights, cache, next_tokens, positions, pieces)

    monkeypatch.setattr(loop, "_forward", step)
    return hold
