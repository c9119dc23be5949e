"""Figures of a policy by log-probability, which no wording of its answers can fool."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.algorithms import losses
from openclaw_rl.v1 import turn_pb2
from tools.bench.learning import items
from tools.bench.learning.items import Item
from tools.bench.learning.scorers import Share

#: Tokens of a teacher's answer that the distance is measured on, at most.
_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Figures:
    """What is measured of one policy."""

    pairs: Share  #: of the reference pairs whose right answer is the likelier one
    margin: Share  #: by how much, nats a token
    neutral: dict[str, float]  #: perplexity of prose by language: exp of the mean negative log-likelihood a token
    distance: Share  #: Jensen-Shannon divergence to the teacher, nats a token, over what the teacher answers


class Likelihood:
    """Measures policies against one base model and the teacher that it is with a hint."""

    def __init__(self, base: Path, questions: Sequence[Item], hint: str, taught: Sequence[str], *,
                 texts: int | None = None) -> None:
        """Prepare the teacher's distributions.

        Args:
            base: folder of the base model.
            questions: whose reference answers are compared.
            hint: what the teacher is told behind each question.
            taught: its answers to the first of the questions; as many as the distance is to be measured on.
            texts: prose of each language, at most; None: all.
        """
        self._template, self._questions = ChatTemplate(base), questions
        self._prose = {name: entries[:texts] for name, entries in items.read("neutral").items()}
        self._taught = [(item.prompt, self._template.encode(text)[:_TOKENS])
                        for item, text in zip(questions, taught, strict=False) if text.strip()]
        model = _load(base)
        # In half precision: the vocabulary times all tokens of all answers is large.
        self._teacher = [_logits(model, self._prompt(f"{prompt}\n\n{hint}"), ids).log_softmax(-1).half()
                         for prompt, ids in self._taught]

    def measure(self, folder: Path) -> Figures:
        """Measure the policy in a model folder."""
        model = _load(folder)
        margins = [self._mean(model, item.prompt, item.right) - self._mean(model, item.prompt, item.wrong)
                   for item in self._questions]
        distances = [float(losses.opd_full(_logits(model, self._prompt(prompt), ids), teacher.float()).mean())
                     for (prompt, ids), teacher in zip(self._taught, self._teacher, strict=True)]
        return Figures(Share.of([float(margin > 0) for margin in margins]), Share.of(margins),
                       {name: self._perplexity(model, texts) for name, texts in self._prose.items()},
                       Share.of(distances))

    def _prompt(self, text: str) -> list[int]:
        return self._template.chat([turn_pb2.ChatMessage(role="user", content=text)]).ids

    def _mean(self, model: LlamaForCausalLM, prompt: str, answer: str) -> float:
        ids = self._template.encode(answer)
        return float(_logprobs(model, self._prompt(prompt), ids).mean())

    def _perplexity(self, model: LlamaForCausalLM, texts: Iterable[str]) -> float:
        values = []
        for text in texts:
            first, *rest = self._template.encode(text)
            values.append(_logprobs(model, [first], rest))
        return math.exp(-float(torch.cat(values).mean()))


def _load(folder: Path) -> LlamaForCausalLM:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return cast(LlamaForCausalLM, model.eval())


@torch.no_grad()
def _logits(model: LlamaForCausalLM, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    """Return (len(ids), V), of the positions that predict `ids` behind the prompt."""
    hidden = model.model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden[0, len(prompt) - 1:-1])
    return logits


def _logprobs(model: LlamaForCausalLM, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    return losses.token_logprobs(_logits(model, prompt, ids), torch.tensor(ids))
