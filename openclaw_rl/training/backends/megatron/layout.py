"""Layout of a model over ranks. Pure Python: it is checked before anything is started.

Bytes of a parameter on the rank that has it: 20. In mixed precision (Micikevicius et al. 2018, arXiv:1710.03740) 2 of
the bf16 weight, 4 of its fp32 gradient, 4 of the fp32 master copy, 8 of Adam's two moments; and 2 of the frozen base
model. On the CPU, in fp32: 4 of the weight, 4 of the gradient, 8 of the moments, 4 of the frozen model.

Activations, an estimate, of one sample in bf16 (twice that in fp32): a layer keeps 10 + 24 / t bytes for each token and
unit of width when it is cut into t parts (Korthikanti et al. 2022, arXiv:2205.05198, equation 2, without the scores,
which are never kept). Of samples of more than 1024 tokens only each layer's input is kept, 2 bytes, and one layer is
computed again at a time (Chen et al. 2016, arXiv:1604.06174). Logits are there for a few rows. A pipeline of p stages
has up to p samples in flight on its first stage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from openclaw_rl.config import MegatronConfig
from openclaw_rl.models.config import ModelConfig

BYTES_PER_PARAMETER = 20
#: Bytes of a process before it has a model: PyTorch and megatron-core; a GPU's context and NCCL's buffers.
CPU_PROCESS, GPU_PROCESS = 1_000_000_000, 2_000_000_000
_LOGIT_ROWS, _LOGIT_BYTES = 128, 24
#: Longer samples compute their activations twice; see policy.py.
_KEPT_TOKENS = 1024
_KEYS = "components.trainer.megatron"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
#: Sizes are named roundly: Llama 3 8B has 8.03e9 parameters, Qwen2.5 7B 7.6e9, Qwen2 1.5B 1.54e9.
_ROUNDING = 1.3


@dataclass(frozen=True, slots=True)
class Layout:
    """The group's shape; its world size is the product."""

    tensor: int  #: parts that each layer is cut into
    pipeline: int  #: parts that the layers are dealt to
    data: int  #: copies that share a batch

    @property
    def world(self) -> int:
        """Number of ranks of the group."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        return f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}"


class LayoutError(ValueError):
    """There is no such layout; the text has a line for each problem: key, value, and what fits."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of one rank, in bytes."""

    parameters: int  #: weights, gradients, optimizer, and the frozen model
    activations: int  #: an estimate, of the longest sample
    process: int

    @property
    def total(self) -> int:
        return self.parameters + self.activations + self.process


def parse_size(text: str) -> float:
    """Return the number of parameters of a size such as 8B, 1.5B or 135M.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"{text!r} is no size of a model; such as 8B, 1.5B or 135M")
    return float(found[1]) * _UNITS[found[2].upper()]


def size_text(parameters: float) -> str:
    """Format a number of parameters: 135M, 8.0B."""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"


def same_size(named: float, parameters: float) -> bool:
    """Return whether a model of so many parameters may be called so."""
    return 1 / _ROUNDING <= named / parameters <= _ROUNDING


def gigabytes(count: float) -> str:
    """Format a number of bytes: 16.1 GB."""
    return f"{count / 1e9:.1f} GB"


def parameters(model: ModelConfig) -> int:
    """Count the parameters of a model."""
    return sum(math.prod(shape) for shape in model.tensors().values())


def tensor_sizes(model: ModelConfig) -> list[int]:
    """Return the numbers of parts that each layer can be cut into: whole heads, key-value heads and units of the
    MLP."""
    return _divisors(math.gcd(model.heads, model.kv_heads, model.intermediate_size))


def pipeline_sizes(model: ModelConfig) -> list[int]:
    """Return the numbers of stages that the layers can be divided into."""
    return _divisors(model.layers)


def need(model: ModelConfig, layout: Layout, tokens: int, *, gpu: bool) -> Need:
    """Return the memory of the rank that needs most.

    Args:
        model: its sizes.
        layout: how it is dealt.
        tokens: of the longest sample, prompt and response.
        gpu: bf16 on a GPU; else fp32 on the CPU.
    """
    table = model.vocab_size * model.hidden_size
    tables = 1 if model.tied else 2
    layers = parameters(model) - tables * table
    held = layers / layout.pipeline + table * (tables if layout.pipeline == 1 else 1)
    stage_layers, inside = model.layers / layout.pipeline, 10 + 24 / layout.tensor
    kept = min(tokens, _KEPT_TOKENS) * inside * stage_layers
    again = tokens * (2 * stage_layers + inside) if tokens > _KEPT_TOKENS else 0
    values = max(kept, again) * model.hidden_size * layout.pipeline * (1 if gpu else 2)
    return Need(int(BYTES_PER_PARAMETER * held / layout.tensor),
                int(values + _LOGIT_ROWS * model.vocab_size * _LOGIT_BYTES), GPU_PROCESS if gpu else CPU_PROCESS)


def choose(model: ModelConfig, ranks: int, memory: float | None, overrides: MegatronConfig, tokens: int, *,
           gpu: bool, key: str = "gpus") -> Layout:
    """Choose the layout that cuts the model least among those that fit into the memory: the fewer parts, the less the
    ranks say to one another. Layers are cut (within one machine that is the faster way) before they are dealt; what is
    left are copies.

    Args:
        model: its sizes.
        ranks: of the group.
        memory: bytes of one rank; None when it is not known.
        overrides: what the user set.
        tokens: of the longest sample.
        gpu: see `need`.
        key: under which the ranks are configured, for the text of an error.

    Raises:
        LayoutError: what is set doesn't fit the model or the ranks, or nothing fits the memory.
    """
    if problems := _wrong(model, overrides):
        raise LayoutError("\n".join(problems))
    found = [layout for layout in layouts(model, ranks) if _as_set(layout, overrides)]
    if not found:
        raise LayoutError(_no_product(model, ranks, overrides, key))
    found.sort(key=lambda layout: (layout.tensor * layout.pipeline, layout.pipeline))
    if memory is None:
        return found[0]
    needs = [need(model, layout, tokens, gpu=gpu) for layout in found]
    for layout, needed in zip(found, needs, strict=True):
        if needed.total <= memory:
            return layout
    least = min(range(len(found)), key=lambda i: needs[i].total)
    if needs[least].parameters + needs[least].process > memory:
        raise LayoutError(
            f"components.trainer.{key}: {ranks}, each with {gigabytes(memory)} of memory, are too little for a model "
            f"of {size_text(parameters(model))}: {found[least]} needs {gigabytes(needs[least].parameters)} a rank for "
            f"weights, gradients and optimizer ({BYTES_PER_PARAMETER} bytes a parameter) and "
            f"{gigabytes(needs[least].process)} for the process; take more of them, more memory, or a smaller model")
    return found[least]


def layouts(model: ModelConfig, ranks: int) -> Iterator[Layout]:
    """Yield all layouts that the model allows on so many ranks."""
    for tensor in tensor_sizes(model):
        for pipeline in pipeline_sizes(model):
            if ranks % (tensor * pipeline) == 0:
                yield Layout(tensor, pipeline, ranks // (tensor * pipeline))


def _wrong(model: ModelConfig, overrides: MegatronConfig) -> list[str]:
    problems = []
    tensor, pipeline = overrides.tensor_parallel, overrides.pipeline_parallel
    if tensor is not None and tensor not in (fit := tensor_sizes(model)):
        what = f"the model's {model.heads} heads / {model.kv_heads} key-value heads"
        if math.gcd(model.heads, model.kv_heads) % tensor == 0:
            what = f"the model's MLP of {model.intermediate_size}"
        problems.append(f"{_KEYS}.tensor_parallel: {tensor} does not divide {what}; {_listed(fit)}")
    if pipeline is not None and pipeline not in (fit := pipeline_sizes(model)):
        problems.append(f"{_KEYS}.pipeline_parallel: {pipeline} does not divide the model's {model.layers} layers; "
                        f"{_listed(fit)}")
    return problems


def unsupported(config: ModelConfig) -> str | None:
    """Return what megatron-core's layers can't compute of a model, or None."""
    for key, value in (("attention_bias", config.out_bias), ("mlp_bias", config.mlp_bias)):
        if value:
            return f"{key}: true is not supported by the megatron back end; use the torch back end"
    return None


def _as_set(layout: Layout, overrides: MegatronConfig) -> bool:
    return all(wanted in (None, there) for wanted, there in (
        (overrides.tensor_parallel, layout.tensor), (overrides.pipeline_parallel, layout.pipeline),
        (overrides.data_parallel, layout.data)))


def _no_product(model: ModelConfig, ranks: int, overrides: MegatronConfig, key: str) -> str:
    names = {"tensor_parallel": overrides.tensor_parallel, "pipeline_parallel": overrides.pipeline_parallel,
             "data_parallel": overrides.data_parallel}
    given = {name: value for name, value in names.items() if value is not None}
    says = " x ".join(f"{name} {value}" for name, value in given.items())
    wrong = f"are {math.prod(given.values())} ranks, and components.trainer.{key} is {ranks}" if len(given) == 3 else \
        f"fits no layout of {ranks} ranks (components.trainer.{key})"
    fit = ", ".join(f"{some.tensor} x {some.pipeline} x {some.data}" for some in islice(layouts(model, ranks), 6))
    return f"{_KEYS}: {says} {wrong}; tensor x pipeline x data may be {fit}"


def _listed(numbers: list[int]) -> str:
    text = " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))
    return f"{text} do" if len(numbers) > 1 else f"only {text} does"


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]
