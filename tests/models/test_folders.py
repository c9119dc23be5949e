"""Model folders are checked before anything is served from them, and errors say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from openclaw_rl.models.config import ModelConfig, ModelError
from openclaw_rl.models.identity import model_id
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home

CONFIG = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    write(folder)
    return folder


def write(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    save_file({name: np.zeros(shape, np.float16) for name, shape in ModelConfig.read(folder).tensors().items()},
              folder / "model.safetensors")


def change(folder: Path, **settings: object) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | settings))


def test_a_good_folder_is_taken(folder: Path, tmp_path: Path) -> None:
    assert ensure_model(str(folder), Home(tmp_path / "home")) == folder
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("settings", "text"), [
    ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; allowed: llama, mistral, qwen2, qwen3"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; allowed: silu"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "rope type 'yarn' is not supported; allowed: default, linear, llama3"),
    ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
    ({"hidden_size": "wide"}, "config.json: .*'wide'"),
    ({"num_hidden_layers": 3}, r"tensor model.layers.2.input_layernorm.weight is missing \(9 of 29 are\)"),
    ({"vocab_size": 17}, r"tensor model.embed_tokens.weight has shape \[16, 8\]; config.json asks for \[17, 8\]"),
    ({"attention_bias": True}, "bias is missing"),
    ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
])
def test_another_kind_of_model_is_refused_by_name(folder: Path, tmp_path: Path, settings: dict, text: str) -> None:
    change(folder, **settings)
    with pytest.raises(ModelError, match=text):
        ensure_model(str(folder), Home(tmp_path))


def test_missing_and_broken_files_are_named(folder: Path, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(ModelError, match="'nowhere' is neither 'smollm2-135m-instruct' nor a folder"):
        ensure_model("nowhere", home)
    weights = (folder / "model.safetensors").read_bytes()
    for content, text in ((weights[:-1], "bytes and declares"), (b"", "not a whole safetensors file"),
                          (b"\xff" * 64, "its header exceeds the file"),
                          (b"\x02" + b"\0" * 7 + b"[]", "not a whole safetensors file")):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelError, match=f"model.safetensors: .*{text}"):
            ensure_model(str(folder), home)
    (folder / "model.safetensors").write_bytes(weights)
    for name, content, text in (("config.json", "{", "config.json: not JSON"),
                                ("config.json", "[]", "config.json: must hold a mapping, not a list"),
                                ("tokenizer.json", "nonsense", "tokenizer.json: not JSON"),
                                ("tokenizer_config.json", "{", "tokenizer_config.json: not JSON")):
        before = (folder / name).read_text()
        (folder / name).write_text(content)
        with pytest.raises(ModelError, match=text):
            ensure_model(str(folder), home)
        (folder / name).write_text(before)
    for name, text in (("model.safetensors", "neither model.safetensors nor"),
                       ("tokenizer_config.json", "tokenizer_config.json is missing"),
                       ("tokenizer.json", "tokenizer.json is missing"),
                       ("config.json", "config.json: No such file")):
        (folder / name).unlink()
        with pytest.raises(ModelError, match=text):
            ensure_model(str(folder), home)


def test_an_index_names_its_missing_shard(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    for name in ("gone.safetensors", "../model.safetensors"):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
        with pytest.raises(ModelError, match="which is not in"):
            ensure_model(str(folder), Home(tmp_path))
    index.write_text('{"weight_map": [1]}')
    with pytest.raises(ModelError, match="weight_map must map tensors to files"):
        ensure_model(str(folder), Home(tmp_path))


def test_what_counts_for_the_identity(folder: Path) -> None:
    first = model_id(folder)
    change(folder, _name_or_path="elsewhere", transformers_version="9", dtype="float32")
    assert model_id(folder) == first
    change(folder, rope_theta=5.0)
    assert model_id(folder) != first
    change(folder)
    (folder / "tokenizer.json").write_text('{"a": 1}')
    assert model_id(folder) != first
    assert len(first) == 64


def test_end_tokens_come_from_both_files(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert ModelConfig.read(folder).eos_ids == (5, 7, 2)


def test_a_sliding_window_bounds_the_context(folder: Path) -> None:
    change(folder, model_type="mistral", sliding_window=32)
    assert ModelConfig.read(folder).context_length == 32
    change(folder, model_type="qwen2", sliding_window=32, use_sliding_window=False)
    assert ModelConfig.read(folder).context_length == 64
