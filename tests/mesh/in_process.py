"""A whole mesh on the event loop of a test: real components, ports of the system, no process is started.

Its start takes a second or two (most of it imports, once per test process). Where tokens and training should be real,
take `tiny_model`; where only words matter, an API (`tests.mesh.fake_api`), which needs no PyTorch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.config import Config
from openclaw_rl.runtime.home import Home
from tests.mesh.mesh import Mesh
from tests.serving.stub import write_tokenizer
from tests.support.gate import LENIENT_GATE


def tiny_model(folder: Path) -> Path:
    """Make a model of 2 layers with random weights, whose tokens are bytes. It serves and trains in milliseconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_tokenizer(folder)
    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=272, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
                         tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    make: Any = LlamaForCausalLM
    make(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def quick_config(model: str | Path, components: dict[str, dict[str, Any]] | None = None, **sections: Any) -> Config:
    """A configuration that trains soon and answers shortly; `components` and `sections` add to it or change it."""
    quick: dict[str, dict[str, Any]] = {
        "policy_server": {"model": str(model), "max_tokens": 16},
        "trainer": {"min_samples": 2, "max_batch": 4, "update_interval": 0.2, "gate": LENIENT_GATE}}
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


@contextmanager
def mesh_in_thread(root: Path, model: str | Path, components: dict[str, dict[str, Any]] | None = None,
                   **sections: Any) -> Iterator[Mesh]:
    """The same for tests that are no coroutines: the mesh runs on a loop of another thread, and its commands, as a user
    has them, find it by its folder."""
    mesh = InProcessMesh(quick_config(model, components, **sections), Home(root), any_ports=True)
    mesh.home.config_file.write_text(yaml.safe_dump(mesh.config.model_dump(mode="json", exclude_defaults=True)))
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever, name="mesh")
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(mesh.start(), loop).result(120)
            yield Mesh(mesh.home)
            asyncio.run_coroutine_threadsafe(mesh.stop(), loop).result(60)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
