"""Conversion of a Llama model's GGUF file to a Hugging Face folder: config, bfloat16 safetensors, tokenizer.

With numpy alone, in seconds: transformers' own reader takes 30 s and several GB, and drops the digit splitting that
the file asks for (`tokenizer.ggml.pre = smollm`), which changes the tokens of some texts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from openclaw_rl.models.config import ModelError

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
          "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
          "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
#: Token type of control tokens such as <|im_end|> in llama.cpp's enumeration.
_CONTROL = 3


def convert(source: Path, folder: Path, progress: Callable[[float], None]) -> None:
    """Write the model of the GGUF file `source` into the existing `folder`.

    Args:
        progress: called with the progress, from 0 to 1.

    Raises:
        ModelError: the file isn't a GGUF file of a Llama model with a smollm tokenizer.
    """
    try:
        reader = GGUFReader(source)
        architecture, pre = _field(reader, "general.architecture"), _field(reader, "tokenizer.ggml.pre")
    except (ValueError, KeyError, IndexError) as error:
        raise ModelError(f"{source}: not a GGUF file of a language model: {error}") from None
    if architecture != "llama" or pre != "smollm":
        raise ModelError(f"{source}: architecture {architecture!r} with tokenizer {pre!r} is not supported; "
                         f"allowed: 'llama' with 'smollm'")
    tied = _write_weights(reader, folder / "model.safetensors", progress)
    config = _config(reader, tied)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json",
                {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    _write_tokenizer(reader, folder, config)
    progress(1.0)


def _field(reader: GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def _write_weights(reader: GGUFReader, file: Path, progress: Callable[[float], None]) -> bool:
    """Write all tensors as bfloat16; returns whether the output matrix is tied to the embedding."""
    shapes = {_name(t.name): [int(n) for n in reversed(t.shape)] for t in reader.tensors}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    heads = {"attn_q": _field(reader, "llama.attention.head_count"),
             "attn_k": _field(reader, "llama.attention.head_count_kv")}
    written = 0
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor, shape in zip(reader.tensors, shapes.values(), strict=True):
            values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            for part, count in heads.items():
                if f".{part}." in tensor.name:
                    values = _unpermute(values, count)
            written += out.write(_bfloat16(values))
            progress(0.95 * written / end)
    return "lm_head.weight" not in shapes


def _name(gguf_name: str) -> str:
    part, *rest = gguf_name.split(".")
    if part == "blk":
        return f"model.layers.{rest[0]}.{_LAYER[rest[1]]}.weight"
    return f"{_TOP[part]}.weight"


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's interleaving of the two halves of each head for rotary positions."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).swapaxes(2, 1).reshape(weight.shape)


def _bfloat16(values: np.ndarray) -> bytes:
    """Round to nearest, ties to even, as PyTorch does."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2").tobytes()


def _config(reader: GGUFReader, tied: bool) -> dict[str, Any]:
    def llama(key: str) -> Any:
        return _field(reader, f"llama.{key}")

    theta = llama("rope.freq_base")
    eos = _field(reader, "tokenizer.ggml.eos_token_id")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": llama("embedding_length"), "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"), "num_attention_heads": llama("attention.head_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "rms_norm_eps": llama("attention.layer_norm_rms_epsilon"), "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "max_position_embeddings": llama("context_length"), "vocab_size": llama("vocab_size"),
        "tie_word_embeddings": tied, "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos, "pad_token_id": eos,
    }


def _write_tokenizer(reader: GGUFReader, folder: Path, config: dict[str, Any]) -> None:
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, _field(reader, "tokenizer.ggml.token_type"), strict=True) if kind == _CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    eos = tokens[config["eos_token_id"]]
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[config["bos_token_id"]],
        "eos_token": eos, "pad_token": eos, "unk_token": "<|endoftext|>",
        "model_max_length": config["max_position_embeddings"],
        "chat_template": _field(reader, "tokenizer.chat_template")})


def _write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n")
