"""Weights of a Llama-family model in memory, laid out for decoding.

q, k and v are one matrix and so are gate and up: fewer, larger products. The rows of q and k are reordered so that the
two numbers that a rotary position turns lie side by side and the turn is one complex multiplication; scores q . k
don't change when both are reordered alike.

How a matrix is kept (measured on 2 AMD EPYC cores without AVX512, one thread, all matrices of a 135M model, ms a pass
for 1 / 4 / 16 / 256 rows):

    float16, packed by FBGEMM, float32 arithmetic    11 / 15 /  54 /  860
    float32, F.linear                                45 / 65 / 103 /  940
    bfloat16, F.linear                               32 / 69 / 281 / 4340   (torch.mv at one row: 27)

So on x86 the packed form is taken. It computes in float32, as exact as the second line: bfloat16 values of 2^-17 to
65504 are float16 values exactly, and smaller ones are off by at most 2^-25, below what float32 sums round away. On
other processors it is float32; on a GPU, bfloat16. Weights of other types are rounded to bfloat16 first, the type in
which versions travel, so that every engine and the trainer have the same values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from openclaw_rl.models.checkpoint import check_tensors, tensor_files
from openclaw_rl.models.config import ModelConfig, ModelError

_FLOAT16_MAX = 65504.0


class Matrix:
    """A linear map, [rows, in] -> [rows, out], in the layout that is fastest on its device."""

    def __init__(self, weight: Tensor, bias: Tensor | None, device: torch.device) -> None:
        """Lay out a bfloat16 weight [out, in] and a bias [out]."""
        if device.type == "cpu":
            weight, bias = weight.float(), None if bias is None else bias.float()
        self._packed = None
        if device.type == "cpu" and torch.backends.quantized.engine in ("x86", "fbgemm") \
                and max(map(abs, _range(weight))) <= _FLOAT16_MAX:
            self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        else:
            self._weight, self._bias = weight.to(device), None if bias is None else bias.to(device)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
            return product
        return F.linear(x, self._weight, self._bias)


@dataclass(slots=True)
class Layer:
    """One transformer layer."""

    input_norm: Tensor
    qkv: Matrix  #: rows: heads of q, then of k, then of v; q and k in pairs
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Matrix
    post_norm: Tensor
    gate_up: Matrix  #: rows: gate, then up
    down: Matrix


@dataclass(slots=True)
class Weights:
    """The weights of a version."""

    embedding: Tensor  #: [vocabulary, hidden], bfloat16
    layers: list[Layer]
    norm: Tensor
    head: Matrix


def load_weights(folder: Path, config: ModelConfig, device: torch.device, like: Weights | None = None) -> Weights:
    """Read a folder's safetensors files; about 1.3 s for 135M parameters on one core, nearly all of it packing.

    Args:
        like: weights in memory; an embedding that equals theirs is shared with them, and so is the head that it makes
            in a tied model. An adapter changes neither: a fifth of a 135M model is neither packed nor held twice.

    Raises:
        ModelError: a file can't be read, doesn't hold `config`'s tensors, or holds NaN or Inf.
    """
    check_tensors(folder, config)
    tensors = _Reader(folder)
    dtype = compute_dtype(device)

    def vector(name: str, heads: int = 0) -> Tensor:
        value = tensors.get(name)
        return (_pairs(value, heads) if heads else value).to(device, dtype)

    def matrix(names: list[str], bias: bool, heads: list[int] | None = None) -> Matrix:
        parts = [[_pairs(tensors.get(f"{name}.{kind}"), head) for name, head in
                  zip(names, heads or [0] * len(names), strict=True)]
                 for kind in (("weight", "bias") if bias else ("weight",))]
        joined = [torch.cat(part) for part in parts]
        return Matrix(joined[0], joined[1] if bias else None, device)

    layers = []
    for i in range(config.layers):
        attention, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        layers.append(Layer(
            input_norm=vector(f"model.layers.{i}.input_layernorm.weight"),
            qkv=matrix([f"{attention}{part}_proj" for part in "qkv"], config.qkv_bias,
                       [config.heads, config.kv_heads, 0]),
            q_norm=vector(f"{attention}q_norm.weight", 1) if config.qk_norm else None,
            k_norm=vector(f"{attention}k_norm.weight", 1) if config.qk_norm else None,
            out=matrix([f"{attention}o_proj"], config.out_bias),
            post_norm=vector(f"model.layers.{i}.post_attention_layernorm.weight"),
            gate_up=matrix([f"{mlp}gate_proj", f"{mlp}up_proj"], config.mlp_bias),
            down=matrix([f"{mlp}down_proj"], config.mlp_bias)))
    norm = vector("model.norm.weight")
    embedding = tensors.get("model.embed_tokens.weight").to(device)
    if like is not None and torch.equal(embedding, like.embedding):
        return Weights(like.embedding, layers, norm, like.head if config.tied else matrix(["lm_head"], False))
    # Cloned: the reader's tensors are views of the file, which may be deleted or overwritten.
    return Weights(embedding.clone(), layers, norm, matrix(["model.embed_tokens" if config.tied else "lm_head"], False))


def compute_dtype(device: torch.device) -> torch.dtype:
    """The type of activations: float32 on the CPU, bfloat16 on a GPU."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """Rotary frequencies: radians per position of each pair of a head's values, float32 [head_dim / 2].

    Source: RoFormer (arXiv:2104.09864), theta_i = base^(-2 i / d); for `llama3` scaling see RopeScaling.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta ** exponents) / config.rope_factor
    scaling = config.rope_scaling
    if scaling:
        # Low frequencies are divided by `factor`, high ones kept, those in between blended.
        waves = scaling.original_context * frequencies / (2 * torch.pi)
        blend = ((waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
        frequencies = blend * frequencies + (1 - blend) * frequencies / scaling.factor
    return frequencies


def rotary_table(config: ModelConfig, length: int, device: torch.device) -> Tensor:
    """The rotations of positions 0 to length - 1: complex64 [length, head_dim / 2]."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rotary_frequencies(config))
    return torch.polar(torch.ones_like(angles), angles).to(device)


def _pairs(value: Tensor, heads: int) -> Tensor:
    """Reorder the rows of each head from (a0 a1 .. b0 b1 ..) to (a0 b0 a1 b1 ..); heads = 0 keeps the order."""
    if not heads:
        return value
    return value.view(heads, 2, -1, *value.shape[1:]).transpose(1, 2).reshape(value.shape)


def _range(value: Tensor) -> tuple[float, float]:
    """The least and the greatest element; NaN if one is. In a fortieth of the time of `isfinite().all()`."""
    low, high = torch.aminmax(value)
    return float(low), float(high)


class _Reader:
    """All tensors of a folder by name, rounded to bfloat16."""

    def __init__(self, folder: Path) -> None:
        self._of = {}
        for path in tensor_files(folder):
            file = safe_open(path, framework="pt")
            self._of.update(dict.fromkeys(file.keys(), (path, file)))

    def get(self, name: str) -> Tensor:
        path, file = self._of[name]
        value: Tensor = file.get_tensor(name).to(torch.bfloat16)
        if not all(map(math.isfinite, _range(value))):
            raise ModelError(f"{path}: tensor {name} holds NaN or Inf")
        return value
