"""Planning of a group before anything is started: the layout, or what stands in the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from openclaw_rl.config import EMBEDDED_MODEL, Config, TrainerConfig
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.models.config import ModelConfig, ModelError
from openclaw_rl.models.hub import hub_folder, is_hub_id
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.backends.megatron import hardware
from openclaw_rl.training.backends.megatron.hardware import Hardware
from openclaw_rl.training.backends.megatron.layout import (
    BYTES_PER_PARAMETER,
    Layout,
    LayoutError,
    Need,
    choose,
    gigabytes,
    need,
    parameters,
    parse_size,
    same_size,
    size_text,
    unsupported,
)
from openclaw_rl.training.backends.selection import kind

#: The embedded model's sizes, for a machine on which it was not prepared yet.
EMBEDDED = ModelConfig(
    architecture="llama", hidden_size=576, intermediate_size=1536, layers=30, heads=9, kv_heads=3, head_dim=64,
    vocab_size=49152, context_length=8192, norm_eps=9.999999747378752e-06, rope_theta=100000.0, rope_scaling=None,
    rope_factor=1.0, tied=True, qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False, eos_ids=(2,))
_KEYS = "components.trainer"


@dataclass(frozen=True, slots=True)
class Plan:
    """Group that is to be started."""

    layout: Layout
    gpu: bool
    model: ModelConfig
    needs: Need  #: of the rank that needs most
    memory: int  #: bytes that a rank has

    def __str__(self) -> str:
        n = self.needs
        return (f"Megatron {self.layout}: {self.layout.world} {'GPU' if self.gpu else 'process'}"
                f"{('' if self.gpu else 'e') + 's' if self.layout.world > 1 else ''}"
                f"{'' if self.gpu else ' on the CPU'} for {size_text(parameters(self.model))} parameters; each needs "
                f"about {gigabytes(n.total)} ({gigabytes(n.parameters)} weights, gradients, optimizer and base model "
                f"at {BYTES_PER_PARAMETER} bytes a parameter, {gigabytes(n.activations)} activations, "
                f"{gigabytes(n.process)} process) and has {gigabytes(self.memory)}")


def plan(trainer: TrainerConfig, model: ModelConfig, found: Hardware) -> Plan:
    """Plan the group for this model on this machine.

    Raises:
        LayoutError: the configuration doesn't fit the model or the machine; a line for each problem.
    """
    problems = _contradictions(trainer, model)
    try:
        made = _on_gpus(trainer, model, found) if _wants_gpus(trainer, found) else _on_cpu(trainer, model, found)
    except LayoutError as error:
        problems.append(str(error))
    if problems:
        raise LayoutError("\n".join(problems))
    return made


def check_trainer(config: Config, home: Home) -> list[str]:
    """Return what keeps the megatron back end from running on this machine: a sentence for each problem, with its key,
    its value and what would fit. Empty when nothing does, and for other back ends."""
    trainer, policy = config.components.trainer, config.components.policy_server
    if uses_api(policy):
        return [f"{_KEYS}.backend: megatron trains weights, and components.policy_server.model: {policy.model} is an "
                "API model, which has none; allowed: auto, playbook"] if trainer.backend == "megatron" else []
    if kind(trainer) != "megatron":
        return []
    problems = []
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        problems.append(f"{_KEYS}.backend: megatron needs a package that is not installed (megatron-core): "
                        "pip install 'openclaw-rl[megatron]'")
    try:
        plan(trainer, _model(policy.model, home), hardware.find())
    except LayoutError as error:
        problems.extend(str(error).splitlines())
    except ModelError as error:
        problems.append(f"components.policy_server.model: {error}")
    return problems


def describe_trainer(config: Config, home: Home) -> str:
    """Describe the layout that the trainer will take on this machine, for a person; empty for other back ends, and when
    it can't run."""
    trainer, policy = config.components.trainer, config.components.policy_server
    if uses_api(policy) or kind(trainer) != "megatron":
        return ""
    try:
        return str(plan(trainer, _model(policy.model, home), hardware.find()))
    except (LayoutError, ModelError):
        return ""


def _model(name: str, home: Home) -> ModelConfig:
    if name == EMBEDDED_MODEL:
        return EMBEDDED
    folder = hub_folder(name, home.models) if is_hub_id(name) else Path(name).expanduser()
    if not folder.is_dir():
        raise ModelError(f"{name!r} is neither {EMBEDDED_MODEL!r} nor a folder, nor downloaded yet, and the layout is "
                         "derived from it")
    return ModelConfig.read(folder)


def _contradictions(trainer: TrainerConfig, model: ModelConfig) -> list[str]:
    problems = []
    if trainer.method == "lora":
        problems.append(f"{_KEYS}.method: lora is not there with backend megatron; allowed: auto, full")
    if problem := unsupported(model):
        problems.append(f"components.policy_server.model: its config.json says {problem}")
    if trainer.model_size is not None:
        try:
            named = parse_size(trainer.model_size)
        except ValueError as error:
            return [*problems, f"{_KEYS}.model_size: {error}"]
        if not same_size(named, parameters(model)):
            problems.append(
                f"{_KEYS}.model_size: {trainer.model_size} contradicts the model that the policy server serves, which "
                f"has {size_text(parameters(model))} parameters; set components.policy_server.model to the folder of "
                f"a model of {trainer.model_size}, or model_size to {size_text(parameters(model))}, or leave it out")
    return problems


def _wants_gpus(trainer: TrainerConfig, found: Hardware) -> bool:
    return trainer.gpus is not None or trainer.device.startswith("cuda") or (
        trainer.device == "auto" and bool(found.gpus))


def _product(trainer: TrainerConfig) -> int:
    m = trainer.megatron
    return math.prod(size or 1 for size in (m.tensor_parallel, m.pipeline_parallel, m.data_parallel))


def _on_gpus(trainer: TrainerConfig, model: ModelConfig, found: Hardware) -> Plan:
    if trainer.device == "cpu":
        raise LayoutError(f"{_KEYS}.device: cpu contradicts gpus: {trainer.gpus}; leave one of them out")
    count = trainer.gpus or max(_product(trainer), 1)
    if len(found.gpus) < count:
        raise LayoutError(_too_few(trainer, model, found, count))
    if trainer.gpus is None and _product(trainer) == 1:  # the fewest that the model fits on
        for count in range(1, len(found.gpus) + 1):
            try:
                return _planned(trainer, model, count, min(found.gpus[:count]))
            except LayoutError:
                if count == len(found.gpus):
                    raise
    return _planned(trainer, model, count, min(found.gpus[:count]))


def _planned(trainer: TrainerConfig, model: ModelConfig, ranks: int, memory: int, *, gpu: bool = True,
             key: str = "gpus") -> Plan:
    tokens = min(trainer.max_tokens_per_sample, model.context_length)
    layout = choose(model, ranks, memory, trainer.megatron, tokens, gpu=gpu, key=key)
    return Plan(layout, gpu, model, need(model, layout, tokens, gpu=gpu), memory)


def _on_cpu(trainer: TrainerConfig, model: ModelConfig, found: Hardware) -> Plan:
    ranks = trainer.megatron.processes or max(_product(trainer), 1)
    # The ranks share what the machine has.
    return _planned(trainer, model, ranks, found.free_memory // ranks, gpu=False, key="megatron.processes")


def _too_few(trainer: TrainerConfig, model: ModelConfig, found: Hardware, count: int) -> str:
    key = f"gpus: {trainer.gpus}" if trainer.gpus is not None else f"device: {trainer.device}"
    there = ", ".join(gigabytes(memory) for memory in found.gpus)
    text = (f"{_KEYS}.{key}, found {len(found.gpus)} GPUs ({there or found.why_no_gpu}); what would fit: ")
    fits = []
    for fewer in range(len(found.gpus), 0, -1):
        try:
            fits.append(f"gpus: {fewer} ({_planned(trainer, model, fewer, min(found.gpus[:fewer])).layout})")
            break
        except LayoutError:
            continue
    size = size_text(parameters(model))
    try:
        small = choose(model, 1, None, trainer.megatron.model_copy(update={
            "tensor_parallel": None, "pipeline_parallel": None, "data_parallel": None}), 1, gpu=False)
        alone = need(model, small, min(trainer.max_tokens_per_sample, model.context_length), gpu=False).total
        enough = "" if alone <= found.free_memory else ", too little"
        fits.append(f"backend: megatron without gpus and model_size, on the CPU: the model of {size} needs "
                    f"{gigabytes(alone)} there, {gigabytes(found.free_memory)} are free{enough}")
        most = _planned(trainer, model, count, 1 << 60)
        fits.append(f"a machine with {count} GPUs of {gigabytes(most.needs.total)} or more each ({most.layout})")
    except LayoutError as error:
        fits.append(str(error))
    return text + "; ".join(fits)
