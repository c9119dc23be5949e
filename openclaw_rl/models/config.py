"""The config.json of a model folder, for the architectures of the embedded engine.

They are the Llama family: RMS norm before attention and MLP, rotary positions, grouped-query attention, a gated SiLU
MLP. Qwen2 adds biases to q, k and v, Qwen3 a norm on each head of q and k.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.runtime.json import parse_json

#: Supported values of `model_type`.
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


class ModelError(Exception):
    """A model folder can't be used; the text names the file, the problem and what is allowed."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of the low rotary frequencies (arXiv:2407.21783; transformers' `llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a Llama-family model."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int  #: tokens; at most the sliding window, within which attention is full
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    rope_factor: float  #: divides positions (transformers' `linear` scaling); 1: none
    tied: bool  #: the output matrix is the embedding
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...]  #: tokens that end a response, from generation_config.json and config.json

    @classmethod
    def read(cls, folder: Path) -> ModelConfig:
        """Read `folder`/config.json (and generation_config.json for the end tokens).

        Raises:
            ModelError: a file can't be read, or the model is of another family.
        """
        file = folder / "config.json"
        data = read_json(file)
        kind = data.get("model_type")
        if kind not in ARCHITECTURES:
            raise ModelError(f"{file}: model_type {kind!r} is not supported; allowed: {', '.join(ARCHITECTURES)}")
        if data.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ModelError(f"{file}: hidden_act {data['hidden_act']!r} is not supported; allowed: silu")
        if data.get("quantization_config"):
            raise ModelError(f"{file}: quantization_config: quantized weights are not supported; "
                             f"take the model's bfloat16, float16 or float32 folder")
        try:
            return cls._from(data, kind, _eos_ids(folder, data), file)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ModelError(f"{file}: {what}") from None

    @classmethod
    def _from(cls, data: dict[str, Any], kind: str, eos_ids: tuple[int, ...], file: Path) -> ModelConfig:
        heads = int(data["num_attention_heads"])
        hidden = int(data["hidden_size"])
        # transformers 5 writes rope_parameters; before, it was rope_theta and rope_scaling.
        rope: dict[str, Any] = data.get("rope_parameters") or data.get("rope_scaling") or {}
        rope_type = rope.get("rope_type") or rope.get("type") or "default"
        if rope_type not in ("default", "llama3", "linear"):
            raise ModelError(f"{file}: rope type {rope_type!r} is not supported; allowed: default, linear, llama3")
        context = int(data["max_position_embeddings"])
        if data.get("sliding_window") and (kind == "mistral" or data.get("use_sliding_window")):
            context = min(context, int(data["sliding_window"]))
        attention_bias = bool(data.get("attention_bias", False))
        return cls(
            architecture=kind, hidden_size=hidden, intermediate_size=int(data["intermediate_size"]),
            layers=int(data["num_hidden_layers"]), heads=heads,
            kv_heads=int(data.get("num_key_value_heads") or heads),
            head_dim=int(data.get("head_dim") or hidden // heads), vocab_size=int(data["vocab_size"]),
            context_length=context, norm_eps=float(data["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or data.get("rope_theta") or 10000.0),
            rope_scaling=RopeScaling(
                float(rope["factor"]), float(rope["low_freq_factor"]), float(rope["high_freq_factor"]),
                int(rope["original_max_position_embeddings"])) if rope_type == "llama3" else None,
            rope_factor=float(rope["factor"]) if rope_type == "linear" else 1.0,
            tied=bool(data.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias or kind == "qwen2", out_bias=attention_bias and kind != "qwen2",
            mlp_bias=bool(data.get("mlp_bias", False)), qk_norm=kind == "qwen3", eos_ids=eos_ids)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor of the checkpoint, in Hugging Face's names."""
        q, kv, h, m = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden_size, \
            self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, h)}
        for i in range(self.layers):
            at = f"model.layers.{i}."
            matrices = {"self_attn.q_proj": (q, h, self.qkv_bias), "self_attn.k_proj": (kv, h, self.qkv_bias),
                        "self_attn.v_proj": (kv, h, self.qkv_bias), "self_attn.o_proj": (h, q, self.out_bias),
                        "mlp.gate_proj": (m, h, self.mlp_bias), "mlp.up_proj": (m, h, self.mlp_bias),
                        "mlp.down_proj": (h, m, self.mlp_bias)}
            for name, (rows, columns, bias) in matrices.items():
                shapes[f"{at}{name}.weight"] = (rows, columns)
                if bias:
                    shapes[f"{at}{name}.bias"] = (rows,)
            if self.qk_norm:
                shapes[f"{at}self_attn.q_norm.weight"] = shapes[f"{at}self_attn.k_norm.weight"] = (self.head_dim,)
            shapes[f"{at}input_layernorm.weight"] = shapes[f"{at}post_attention_layernorm.weight"] = (h,)
        shapes["model.norm.weight"] = (h,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, h)
        return shapes


def _eos_ids(folder: Path, data: dict[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    found: list[int] = []
    for source in (read_json(generation) if generation.is_file() else {}, data):
        ids = source.get("eos_token_id")
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    return tuple(dict.fromkeys(int(i) for i in found))


def read_json(file: Path) -> dict[str, Any]:
    """Read a mapping from a JSON file.

    Raises:
        ModelError: it can't be read, or holds something else.
    """
    try:
        data = parse_json(file.read_bytes())
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"{file}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{file}: must hold a mapping, not a {type(data).__name__}")
    return data
