"""Version folders are Hugging Face folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.weights.store import VersionStore
from tests.weights.support import manifest


@pytest.mark.slow
@pytest.mark.parametrize("shards", ["1GB", "20KB"])
def test_transformers_loads_a_version(tmp_path: Path, shards: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "base", max_shard_size=shards)
    assert (tmp_path / "base" / "model.safetensors").exists() is (shards == "1GB")

    store = VersionStore(tmp_path / "versions", tmp_path / "base", "m")
    assert [spec.name for spec in store.specs(0) if "lm_head" in spec.name] == []
    changed = {name: value + 1 for name, value in model.state_dict().items() if "mlp" in name}
    store.write(manifest(1), ((name, "BF16", tuple(value.shape), value.view(torch.uint16).numpy())
                              for name, value in changed.items()), base=0)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(store.folder(1), dtype=torch.bfloat16).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(loaded[name], changed.get(name, value)), name
