"""Policy in training on each rank of a Megatron group, cut among the ranks by megatron-core.

Everything is collective: all ranks call the same methods with the same arguments, and return or raise alike; what a
rank finds out alone (that it was asked to stop, that its values are infinite) is agreed on before anybody acts on it.

A sample goes through megatron-core's own pipeline schedule as a micro-batch of its own, never padded. The losses are
those of the torch back end, computed where the hidden states come out: the logits of a piece of a response are gathered
from the ranks that share the vocabulary, so that the same Objective serves. Its gradient is taken at once, piece by
piece, down to the hidden states; what the schedule gets is a scalar that has just this gradient. The frozen base model
reads a round's samples before the policy does.

All weights are trained: in fp32 on a CPU; on GPUs computed in bf16, with fp32 values in the optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import Tensor
from typing_extensions import Buffer

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.algorithms.example import AbnormalStep, Example
from openclaw_rl.training.algorithms.objective import Objective, Totals, check_gradients, pieces
from openclaw_rl.training.algorithms.trust_region import stay_near
from openclaw_rl.training.backends.evaluate import Questions, answer
from openclaw_rl.training.backends.interface import (
    OPTIMIZER_FOLDER,
    WEIGHTS_FOLDER,
    Evaluation,
    HeldOut,
    StartPoint,
    Stopped,
)
from openclaw_rl.training.backends.megatron import dist as shards
from openclaw_rl.training.backends.megatron import files, mapping
from openclaw_rl.training.backends.megatron.cpu import redirected
from openclaw_rl.training.backends.megatron.layout import Layout, unsupported
from openclaw_rl.training.backends.megatron.model import Model, build
from openclaw_rl.training.backends.megatron.optimizer import Optimizer
from openclaw_rl.training.backends.megatron.parallel import Place, device_of
from openclaw_rl.training.backends.selection import learning_rate, method
from openclaw_rl.weights.format.safetensors import read_folder, read_header

#: Samples with more tokens compute their activations twice instead of keeping them.
CHECKPOINT_TOKENS = 1024
#: Samples of a replica that are in the pipeline between two questions whether to stop, for each stage. With one stage
#: there is nothing to fill, and it is asked before each sample.
_PER_STAGE = 4


class MegatronPolicy:
    """See openclaw_rl.training.backends.interface.Backend. One for each rank, when torch.distributed is initialized.

    Args:
        folder: of the base model.
        config: the trainer's.
        layout: how the model is dealt to the ranks.
        start: where to go on from: WEIGHTS_FOLDER and OPTIMIZER_FOLDER that a group of any layout saved, or a file with
            all of Hugging Face's tensors, as versions have it, and no optimizer.
    Raises:
        OSError, ValueError: the model can't be trained so, or the start point can't be read.
    """

    def __init__(self, folder: Path, config: TrainerConfig, layout: Layout, start: StartPoint) -> None:
        if method(config) != "full":
            raise ValueError("method: lora needs the torch back end; the megatron back end trains all weights "
                             "(method: full, or auto)")
        torch.set_num_threads(config.threads)
        self._config, self._folder = config, folder
        model = ModelConfig.read(folder)
        if problem := unsupported(model):
            raise ValueError(f"{folder / 'config.json'}: {problem}")
        self._vocab_size, self._width = model.vocab_size, model.hidden_size
        device = device_of(config.device)
        with redirected(device):
            self._place = Place.take(layout, device)
            if device.type == "cuda":
                model_parallel_cuda_manual_seed(0)
            self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
            self._rules = mapping.rules(model, layout, self._place.stage)
            self._frozen, self._model = (build(model, layout, self._dtype, device) for _ in range(2))
            self._frozen.requires_grad_(False).eval()
            base = files.Files(read_folder(folder))
            files.load(base, self._rules, dict(self._frozen.named_parameters()), self._place)
            self._replicated = DistributedDataParallel(
                self._model.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), self._model,
                disable_bucketing=True)
            self._optimizer = Optimizer(dict(self._model.named_parameters()), learning_rate(config))
            self._begin(start, base)

    def _begin(self, start: StartPoint, base: files.Files) -> None:
        if start.weights is not None and start.weights.is_dir():
            shards.load_weights(start.weights, self._rules, self._optimizer, self._place)
        else:
            source = files.Files(read_header(start.weights)) if start.weights is not None else base
            files.load(source, self._rules, self._optimizer.masters, self._place)
            self._optimizer.publish()
        if start.optimizer is not None:
            shards.load_optimizer(start.optimizer, self._rules, self._optimizer, self._place)

    def step(self, examples: Sequence[Example], version: int, stop: Callable[[], bool]) -> dict[str, float]:
        """See Backend.step. `stop` may be asked of any rank; the figures are the same on all of them."""
        started, place = time.perf_counter(), self._place
        objective = Objective(self._config, Totals.of(examples), version)
        own, taught = examples[place.replica::place.layout.data], list[Tensor | None]()
        with redirected(self._place.device):
            self._replicated.zero_grad_buffer()
            try:
                for some in self._rounds(examples):
                    self._ask(stop)
                    taught += self._backward(own[some], objective)
                self._ask(stop)
                finalize_model_grads([self._replicated])
                [norm] = place.largest([self._optimizer.norm()])
                check_gradients(self._figures(objective)["loss"], norm, self._config)
                self._optimizer.step(norm, self._config.max_grad_norm)
                if place.any_of_all(not self._optimizer.finite()):
                    raise AbnormalStep("weights are NaN or infinite")
                metrics, share = stay_near(
                    lambda: self._measure(own, taught, objective), self._optimizer.shorten, self._config)
            finally:
                self._replicated.zero_grad_buffer()
        return metrics | {"grad_norm": norm, "step_share": share, "seconds": time.perf_counter() - started}

    def _measure(self, own: Sequence[Example], taught: Sequence[Tensor | None],
                 objective: Objective) -> dict[str, float]:
        """Compare the policy with the one before the step, and with the teacher."""
        objective.compare_again()
        self._compare([(e, teacher) for e, teacher in zip(own, taught, strict=True)
                       if not e.replayed or teacher is not None], objective)
        return self._figures(objective)

    def _ask(self, stop: Callable[[], bool]) -> None:
        if self._place.any_of_all(stop()):
            raise Stopped

    def _rounds(self, examples: Sequence[Example]) -> Iterator[slice]:
        """Yield parts of each replica's samples, equally many on all of them."""
        layout = self._place.layout
        size = _PER_STAGE * layout.pipeline if layout.pipeline > 1 else 1
        return (slice(begin, begin + size) for begin in range(0, -(-len(examples) // layout.data), size))

    def _figures(self, objective: Objective) -> dict[str, float]:
        added, largest = objective.noted()
        if not self._place.speaks:
            added, largest = [0.0] * len(added), 0.0
        return objective.metrics((self._place.total(added), self._place.largest([largest])[0]))

    def _backward(self, examples: Sequence[Example], objective: Objective) -> list[Tensor | None]:
        """Add some samples' gradients; return for each what predicts the response's tokens for the teacher, (R, width),
        if it has one."""
        texts = [e.text() for e in examples]
        new = [i for i, e in enumerate(examples) if not e.replayed]
        base = dict(zip(new, self._read(self._frozen, [texts[i] for i in new]), strict=True))
        hinted = [i for i, e in enumerate(examples) if e.teacher_prompt_ids is not None and objective.distils]
        teacher = dict(zip(hinted, self._read(
            self._frozen, [replace(examples[i], prompt_ids=examples[i].teacher_prompt_ids or []).text()
                           for i in hinted]), strict=True))

        def finish(index: int, hidden: Tensor) -> Tensor:
            example = examples[index]
            ids, behaviour = self._tensors(example)
            leaf = hidden.detach().requires_grad_()
            for rows in pieces(len(ids)):
                with torch.no_grad():
                    frozen = self._frozen.logits(base[index][rows]) if index in base else None
                    taught = self._frozen.logits(teacher[index][rows]) if index in teacher else None
                objective(example, rows, ids[rows], behaviour[rows], student=self._model.logits(leaf[rows]),
                          base=frozen, teacher=taught).backward()  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            return (hidden * leaf.grad).sum()

        self._through(self._replicated, texts, finish)
        return [teacher.get(i) for i in range(len(examples))]

    @torch.no_grad()
    def _compare(self, examples: Sequence[tuple[Example, Tensor | None]], objective: Objective) -> None:
        """Measure what the step did to samples, each with what its teacher predicts it from."""
        def finish(index: int, hidden: Tensor) -> None:
            example, teacher = examples[index]
            ids, behaviour = self._tensors(example)
            for rows in pieces(len(ids)):
                student = self._model.logits(hidden[rows])
                if not example.replayed:
                    objective.moved(ids[rows], behaviour[rows], student)
                if teacher is not None:
                    objective.followed(student, self._frozen.logits(teacher[rows]))

        self._through(self._model, [e.text() for e, _ in examples], finish)

    def _tensors(self, example: Example) -> tuple[Tensor, Tensor]:
        """Return the response and its recorded log-probabilities."""
        return (torch.tensor(example.response_ids, device=self._place.device),
                torch.tensor(example.behaviour, device=self._place.device))

    @torch.no_grad()
    def _read(self, model: Model, texts: Sequence[tuple[list[int], list[int]]]) -> list[Tensor]:
        """Return (R, width) for each text: what predicts the response tokens; empty but on the last stage."""
        found: list[Tensor] = []
        self._through(model, texts, lambda _, hidden: found.append(hidden))
        return found if self._place.last else [torch.empty(0)] * len(texts)

    def _through(self, model: Any, texts: Sequence[tuple[list[int], list[int]]],
                 finish: Callable[[int, Tensor], Tensor | None]) -> None:
        """Send texts through the pipeline.

        Args:
            model: with gradients unless torch.no_grad() is on.
            texts: see Example.text.
            finish: called on the last stage with the number of a text and what predicts its response's tokens, (R,
                width); returns the loss, where there are gradients.
        """
        if not texts:
            return
        numbers = iter(range(len(texts)))

        def forward(_: Any, stage: Any) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, None]]]:
            number = next(numbers)
            text, places = texts[number]
            ids, where = (torch.tensor(values, device=self._place.device) for values in ([text], places))
            # megatron-core computes activations again in training mode only, which changes nothing else: no dropout.
            self._model.train(torch.is_grad_enabled() and ids.shape[1] > CHECKPOINT_TOKENS)
            hidden = stage(ids, torch.arange(ids.shape[1], device=ids.device).unsqueeze(0))
            return hidden, lambda output: _scalar(output, finish(number, output[where, 0]))

        self._schedule(model, forward, len(texts))

    def _schedule(self, model: Any, forward: Callable[..., Any], count: int) -> None:
        get_forward_backward_func()(
            forward_step_func=forward, data_iterator=None, model=model, num_microbatches=count, seq_length=1,
            micro_batch_size=1, forward_only=not torch.is_grad_enabled())

    def evaluate(self, prompts: Sequence[HeldOut], max_new_tokens: int, stop: Callable[[], bool], *,
                 base: bool = False) -> Evaluation | None:
        """See Backend.evaluate; None on all ranks but the first. The replicas share the prompts."""
        place, model = self._place, self._frozen if base else self._model
        questions = Questions.read(self._folder, prompts, max_new_tokens)
        share = slice(place.replica, None, place.layout.data)
        ids = torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64, device=place.device)
        stopped, sums = False, [0.0] * 4
        model.eval()
        with redirected(place.device), torch.no_grad():
            try:
                answers, sums = answer(_Reader(self, model), questions, max_new_tokens,
                                             lambda: place.any_of_replica(stop()), share)
                for row, found in zip(range(len(prompts))[share], answers, strict=True):
                    ids[row, :len(found)] = torch.tensor(found, dtype=torch.int64, device=place.device) + 1
            except Stopped:
                stopped = True
            finally:
                model.keep(False)
            if place.any_of_all(stopped):
                raise Stopped
            sums = place.total(sums if place.speaks else [0.0] * len(sums))
            dist.all_reduce(ids if place.speaks else ids.zero_())
        if dist.get_rank() != 0:
            return None
        return questions.evaluation([[token - 1 for token in row if token] for row in ids.tolist()], sums)

    def tensors(self) -> Iterator[tuple[str, str, Sequence[int], Buffer]]:
        """See Backend.tensors; yields on rank 0 only, the others run through it. At any time one tensor is whole, on
        rank 0; a consumer that stops early must close the iterator."""
        return files.gathered(self._folder, self._optimizer.masters, self._place)

    def save(self, folder: Path) -> None:
        """Write what a StartPoint needs into `folder`: WEIGHTS_FOLDER and OPTIMIZER_FOLDER, each rank its shards."""
        with redirected(self._place.device):
            for name, save in ((WEIGHTS_FOLDER, shards.save_weights), (OPTIMIZER_FOLDER, shards.save_optimizer)):
                if dist.get_rank() == 0:
                    (folder / name).mkdir()
                dist.barrier()
                save(folder / name, self._rules, self._optimizer, self._place)


class _Reader:
    """A Reader (see backends/evaluate.py) of a replica; all of its ranks get the same logits."""

    def __init__(self, policy: MegatronPolicy, model: Model) -> None:
        self.device = policy._place.device
        self._policy, self._model = policy, model

    def read(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        count, so_far = ids.shape[1], mask.shape[1]
        order = torch.arange(so_far, device=ids.device)
        causal, itself = (compare(order[None], order[so_far - count:, None]) for compare in (torch.le, torch.eq))
        # Padding attends to itself: attention to nothing is not a number.
        allowed = causal & mask.bool()[:, None, None] | itself
        found: list[Tensor] = []

        def forward(_: Any, stage: Any) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, None]]]:
            def finish(output: Tensor) -> tuple[Tensor, Tensor, None]:
                found.append(output.transpose(0, 1))
                return _scalar(output, None)

            return stage(ids, places, allowed), finish

        self._policy._schedule(self._model, forward, 1)
        if found:
            return found[0]
        # The other stages walk through the same texts without a content.
        return torch.zeros(1, dtype=self._policy._dtype, device=ids.device).expand(
            *ids.shape, self._policy._width)

    def logits(self, hidden: Tensor) -> Tensor:
        own = self._model.logits(hidden) if self._policy._place.last else None
        return self._policy._place.from_last(own, (len(hidden), self._policy._vocab_size), self._policy._dtype)

    def forget(self) -> None:
        self._model.keep(True)

    def crop(self, tokens: int) -> None:
        for attention in self._model.attentions():
            if attention.kept is not None:
                attention.kept = attention.kept[0][:, :, :tokens], attention.kept[1][:, :, :tokens]

    def select(self, rows: Tensor) -> None:
        for attention in self._model.attentions():
            if attention.kept is not None:
                attention.kept = attention.kept[0][rows], attention.kept[1][rows]


def _scalar(output: Tensor, loss: Tensor | None) -> tuple[Tensor, Tensor, None]:
    """Return what the schedule wants of the last stage: the loss, tokens to divide by (none: it is a share already), a
    figure to report."""
    return output.new_zeros(()) if loss is None else loss, torch.zeros((), dtype=torch.int), None
