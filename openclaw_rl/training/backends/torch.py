"""Training with PyTorch on one device: low-rank adapters or all weights of a Llama-family model.

Samples go through the model one at a time and are never padded; their gradients add up to those of the batch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from typing_extensions import Buffer

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms.example import AbnormalStep, Example
from openclaw_rl.training.algorithms.objective import Objective, Totals, check_gradients, pieces
from openclaw_rl.training.algorithms.trust_region import shorten, stay_near
from openclaw_rl.training.backends.evaluate import evaluate
from openclaw_rl.training.backends.interface import (
    BETAS,
    OPTIMIZER_FILE,
    WEIGHTS_FILE,
    Evaluation,
    HeldOut,
    StartPoint,
    Stopped,
)
from openclaw_rl.training.backends.selection import learning_rate, method
from openclaw_rl.weights.format.digest import ITEM_SIZE
from openclaw_rl.weights.format.encoding import Adapted, Adapter, merge
from openclaw_rl.weights.format.safetensors import Tensors, read_folder

#: Samples with more tokens compute their activations twice instead of keeping them (Llama has no dropout, so
#: training mode changes nothing else).
CHECKPOINT_TOKENS = 1024
_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class TorchBackend:
    """See openclaw_rl.training.backends.interface.Backend."""

    def __init__(self, folder: Path, config: TrainerConfig, start: StartPoint) -> None:
        torch.set_num_threads(config.threads)
        self._config = config
        self._folder = folder
        self._device = device_of(config.device)
        self._lora = method(config) == "lora"
        dtype = compute_dtype(self._device) if self._lora else torch.float32
        inner = _load(folder, dtype, self._device)
        self._frozen = inner if self._lora else _load(folder, compute_dtype(self._device), self._device)
        self._frozen.requires_grad_(False)
        self._peft: Any = None
        if self._lora:
            torch.manual_seed(0)
            self._peft = get_peft_model(inner, LoraConfig(
                r=config.lora_rank, lora_alpha=2 * config.lora_rank, target_modules="all-linear"))
        self._model = inner
        self._model.gradient_checkpointing_enable({"use_reentrant": False})
        self._parameters = {name: p for name, p in inner.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=learning_rate(config), betas=BETAS,
                                            weight_decay=0.0)
        if start.weights:
            self._restore_weights(load_file(start.weights))
        if start.optimizer:
            self._restore_optimizer(load_file(start.optimizer))

    def step(self, examples: Sequence[Example], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        started = time.perf_counter()
        objective = Objective(self._config, Totals.of(examples), version)
        self._optimizer.zero_grad(set_to_none=True)
        taught: list[Tensor | None] = []
        try:
            for example in examples:
                if stop():
                    raise Stopped
                taught.append(self._backward(example, objective))
            loss = objective.metrics()["loss"]
            norm = float(nn.utils.clip_grad_norm_(self._parameters.values(), self._config.max_grad_norm))
            check_gradients(loss, norm, self._config)
            self._optimizer.step()
            if not all(bool(p.isfinite().all()) for p in self._parameters.values()):
                raise AbnormalStep("weights are NaN or infinite")
            metrics, share = stay_near(lambda: self._measure(examples, taught, objective),
                                       lambda taken, keep: shorten(self._optimizer, taken, keep), self._config)
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return metrics | {"grad_norm": norm, "step_share": share, "seconds": time.perf_counter() - started}

    def _measure(self, examples: Sequence[Example], taught: Sequence[Tensor | None],
                 objective: Objective) -> dict[str, float]:
        """Compare the policy with the one before the step, and with the teacher."""
        objective.compare_again()
        for example, teacher in zip(examples, taught, strict=True):
            if not example.replayed or teacher is not None:
                self._compare(example, teacher, objective)
        return objective.metrics()

    def _backward(self, example: Example, objective: Objective) -> Tensor | None:
        """Add one sample's gradients; return what predicts the response's tokens for the teacher, (R, width), if it has
        one."""
        ids, places, response, behaviour = self._load_example(example)
        base = None if example.replayed else self._frozen_hidden(ids, places)
        teacher = None
        if (hinted := example.teacher_prompt_ids) is not None and objective.distils:
            teacher = self._frozen_hidden(*(torch.tensor(values, device=self._device) for values in
                                            replace(example, prompt_ids=hinted).text()))
        self._model.train(len(ids) > CHECKPOINT_TOKENS)
        hidden = _hidden(self._model, ids, places)
        leaf = hidden.detach().requires_grad_()
        for rows in pieces(len(response)):
            loss = objective(
                example, rows, response[rows], behaviour[rows],
                student=self._model.lm_head(leaf[rows]),
                base=None if base is None else self._frozen.lm_head(base[rows]).detach(),
                teacher=None if teacher is None else self._frozen.lm_head(teacher[rows]).detach())
            loss.backward()  # type: ignore[no-untyped-call]
        hidden.backward(leaf.grad)  # type: ignore[no-untyped-call]
        return teacher

    @torch.no_grad()
    def _compare(self, example: Example, teacher: Tensor | None, objective: Objective) -> None:
        """Measure what the step did to one sample."""
        ids, places, response, behaviour = self._load_example(example)
        self._model.eval()  # type: ignore[no-untyped-call]
        hidden = _hidden(self._model, ids, places)
        for rows in pieces(len(response)):
            student = self._model.lm_head(hidden[rows])
            if not example.replayed:
                objective.moved(response[rows], behaviour[rows], student)
            if teacher is not None:
                objective.followed(student, self._frozen.lm_head(teacher[rows]))

    def _load_example(self, example: Example) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the whole text, the places that predict the response tokens, these, and their recorded
        log-probabilities."""
        text, places, response, behaviour = (torch.tensor(values, device=self._device) for values in (
            *example.text(), example.response_ids, example.behaviour))
        return text, places, response, behaviour

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation:
        with self._peft.disable_adapter() if base and self._peft is not None else contextlib.nullcontext():
            return evaluate(self._frozen if base else self._model, self._folder, prompts, max_new_tokens, stop)

    @torch.no_grad()
    def _frozen_hidden(self, ids: Tensor, places: Tensor) -> Tensor:
        self._frozen.eval()  # type: ignore[no-untyped-call]
        with self._peft.disable_adapter() if self._peft is not None else contextlib.nullcontext():
            return _hidden(self._frozen, ids, places)

    @torch.no_grad()
    def tensors(self) -> Iterator[tuple[str, str, Sequence[int], Buffer]]:
        adapted = {f"{name}.weight": module for name, module in self._model.named_modules()
                   if hasattr(module, "get_delta_weight")}
        base = Tensors(read_folder(self._folder))
        # Wide element types first, as the file wants them.
        for name in sorted(base.places.keys() & (adapted.keys() | self._parameters.keys()),
                           key=lambda name: (-ITEM_SIZE[base.places[name].dtype], name)):
            dtype, shape = base.places[name].dtype, list(base.places[name].shape)
            if name in adapted:
                adapter = _adapter(adapted[name])
                tensor = Adapted((name, dtype, shape, b"".join(merge(base[name], dtype, adapter))))
                tensor.adapter = adapter
                yield tensor
            else:
                values = self._parameters[name].detach().cpu().to(_TYPES[dtype]).contiguous()
                yield name, dtype, shape, values.reshape(-1).view(torch.uint8).numpy().data

    def save(self, folder: Path) -> None:
        save_file({name: p.detach().cpu().contiguous() for name, p in self._parameters.items()},
                  folder / WEIGHTS_FILE)
        state = {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state[parameter].items():
                state[f"{name}:{key}"] = torch.as_tensor(value).cpu().contiguous()
        save_file(state, folder / OPTIMIZER_FILE)

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        pass  # its memory goes with it

    @torch.no_grad()
    def _restore_weights(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            if name not in tensors or tensors[name].shape != parameter.shape:
                raise ValueError(f"the checkpoint has no fitting {name}")
            parameter.copy_(tensors[name])

    def _restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            state = {key.rpartition(":")[2]: value for key, value in tensors.items()
                     if key.rpartition(":")[0] == name}
            if not state:
                raise ValueError(f"the checkpoint has no optimizer state of {name}")
            self._optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in state.items()}


def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).to(device)  # type: ignore


def _adapter(layer: Any) -> Adapter:
    """Return the adapter of a peft layer."""
    a, b = (part["default"].weight.detach().float().cpu().numpy() for part in (layer.lora_A, layer.lora_B))
    return Adapter(a, b, layer.scaling["default"])


def _hidden(model: LlamaForCausalLM, ids: Tensor, places: Tensor) -> Tensor:
    """Return (R, width): what predicts each response token, at its place in a text."""
    output = model.model(input_ids=ids.unsqueeze(0), use_cache=False)
    hidden: Tensor = output.last_hidden_state[0, places]
    return hidden


def device_of(name: str) -> torch.device:
    """Return the device `cpu` or `cuda`, or what there is."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return bf16 where the hardware computes in it; elsewhere it is emulated, and slower than fp32 (see README.md)."""
    native = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32
