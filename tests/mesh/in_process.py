"""A whole mesh on the event loop of a test: real components, ports of the system, no process is started.

Its start takes a second or two (most of it imports, once per test process). Where tokens and training should be real,
take `tiny_model`; where only words matter, an API (`tests.mesh.fake_api`), which needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.config import Config
from openclaw_rl.runtime.home import Home
from tests.serving.stub import write_tokenizer


def tiny_model(folder: Path) -> Path:
    """Make a model of 2 layers with random weights, whose tokens are bytes. It serves and trains in milliseconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tokenizer(folder)
    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=272, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
                         tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def quick_config(model: str | Path, components: dict[str, dict[str, Any]] | None = None, **sections: Any) -> Config:
    """A configuration that trains soon and answers shortly; `components` and `sections` add to it or change it."""
    quick: dict[str, dict[str, Any]] = {
        "policy_server": {"model": str(model), "max_tokens": 16},
        "trainer": {"min_samples": 2, "max_batch": 4, "update_interval": 0.2}}
    for name, settings in (components or {}).items():
        quick[name] = {**quick.get(name, {}), **settings}
    return Config.model_validate({"components": quick, **sections})


@asynccontextmanager
async def in_process_mesh(root: Path, model: str | Path, components: dict[str, dict[str, Any]] | None = None,
                          **sections: Any) -> AsyncIterator[InProcessMesh]:
    """A mesh in this process; see `quick_config`. Afterwards it has ended, and its folder is left for a look.

    Args:
        root: the mesh's folder.
        model: a model's folder, or the name of an API model.
    """
    async with InProcessMesh(quick_config(model, components, **sections), Home(root), any_ports=True) as mesh:
        yield mesh
