"""Evaluation of a model on held-out prompts: perplexity of good answers, and its own, greedily decoded ones.

Prompts are written by the model's chat template, so they are what a policy server would give to it. They decode as one
batch with a KV cache; an answer that ends leaves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.algorithms import losses
from openclaw_rl.training.backends.interface import Answer, Evaluation, HeldOut, Stopped

#: For models that come without a template, as the policy server writes their prompts.
_PLAIN = ("{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
          "{% if add_generation_prompt %}Assistant:{% endif %}")
#: Prompts that decode at the same time.
_BATCH = 16


class Reader(Protocol):
    """A model with a cache: reads batches of tokens and continues behind them."""

    device: torch.device  #: of its tensors

    def read(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """Return hidden states (b, tokens, width) of tokens that follow those read before.

        Args:
            ids, places: (b, tokens), with their positions.
            mask: (b, all tokens so far): 0 where there is padding, else 1.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (rows, V) of hidden states (rows, width)."""

    def forget(self) -> None:
        """Empty the cache: what is read next begins new texts."""

    def crop(self, tokens: int) -> None:
        """Cut the cache to so many tokens."""

    def select(self, rows: Tensor) -> None:
        """Continue with these rows of the batch only."""


def evaluate(model: LlamaForCausalLM, folder: Path, prompts: Sequence[HeldOut], max_new_tokens: int,
             stop: Callable[[], bool]) -> Evaluation:
    """See Backend.evaluate.

    Args:
        model: the policy; left in evaluation mode.
        folder: of the base model: its tokenizer and chat template.
    """
    model.eval()  # type: ignore[no-untyped-call]
    questions = Questions.read(folder, prompts)
    return questions.evaluation(*answer(_Llama(model), questions, max_new_tokens, stop))


@dataclass(frozen=True, slots=True)
class Questions:
    """Held-out prompts as token ids."""

    tokenizer: PreTrainedTokenizerFast
    asked: list[list[int]]  #: as the chat template writes them
    good: list[list[int]]  #: the good answers
    eos: tuple[int, ...]  #: tokens that end an answer

    @classmethod
    def read(cls, folder: Path, prompts: Sequence[HeldOut]) -> Questions:
        """Encode the prompts.

        Raises:
            ValueError: the folder's tokenizer or chat template can't write them.
        """
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        asked = [_encode(tokenizer, prompt.prompt) for prompt in prompts]
        good = [tokenizer.encode(prompt.answer, add_special_tokens=False) for prompt in prompts]
        if not any(good) or not all(asked):
            raise ValueError(f"the tokenizer of {folder} can't write the held-out prompts")
        return cls(tokenizer, asked, good, ModelConfig.read(folder).eos_ids)

    def evaluation(self, answers: Sequence[list[int]], log_likelihood: float) -> Evaluation:
        """Return the evaluation, of the answers to all prompts and the sum of the good answers' log-probabilities, in
        nats."""
        mean = log_likelihood / sum(map(len, self.good))
        return Evaluation([Answer(str(self.tokenizer.decode(ids, skip_special_tokens=True)), ids) for ids in answers],
                          math.exp(-mean) if mean > -700 else math.inf)


@torch.no_grad()
def answer(reader: Reader, questions: Questions, max_new_tokens: int, stop: Callable[[], bool],
           share: slice = slice(None)) -> tuple[list[list[int]], float]:
    """Return answers to the prompts, or a share of them, and the log-likelihood of the good ones, in nats.

    Raises:
        Stopped: as `stop`, asked between tokens, wanted it.
    """
    asked, good = questions.asked[share], questions.good[share]
    total, answers = 0.0, []
    for begin in range(0, len(asked), _BATCH):
        some = slice(begin, begin + _BATCH)
        batch = _Batch(reader, asked[some], good[some])
        total += batch.log_likelihood
        answers += batch.decode(questions.eos, max_new_tokens, stop)
    return answers, total


def _encode(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False,
                                         add_generation_prompt=True, chat_template=tokenizer.chat_template or _PLAIN)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


class _Batch:
    """Prompts that were read together with their good answers: padding, prompt | answer, padding. What the model keeps
    of the prompts serves for both the answers' likelihood and the decoding.

    Attributes:
        log_likelihood: sum of the log-probabilities of the good answers' tokens, in nats.
    """

    def __init__(self, reader: Reader, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> None:
        self._reader = reader
        self._width, longest = max(map(len, prompts)), max(map(len, answers))
        rows = [[0] * (self._width - len(p)) + p + a + [0] * (longest - len(a))
                for p, a in zip(prompts, answers, strict=True)]
        real = [[0] * (self._width - len(p)) + [1] * (len(p) + len(a)) + [0] * (longest - len(a))
                for p, a in zip(prompts, answers, strict=True)]
        ids, self._mask = torch.tensor(rows, device=reader.device), torch.tensor(real, device=reader.device)
        reader.forget()
        hidden = reader.read(ids, self._mask, self._places(self._mask))
        # Row by row: the logits of all tokens at once would be large.
        self.log_likelihood = sum(
            float(losses.token_logprobs(reader.logits(hidden[row, self._width - 1:self._width - 1 + len(answer)]),
                                        ids[row, self._width:self._width + len(answer)]).sum())
            for row, answer in enumerate(answers) if answer)
        self._last = hidden[:, self._width - 1]  # (rows, hidden size): what predicts the first token of an answer

    def decode(self, eos: Sequence[int], max_new_tokens: int, stop: Callable[[], bool]) -> list[list[int]]:
        """Decode greedily, each prompt until one of `eos`, which is left out. May be called once."""
        reader = self._reader
        reader.crop(self._width)
        mask = self._mask[:, :self._width]
        places = self._places(mask)[:, -1:]
        chosen = reader.logits(self._last).argmax(-1)
        found: list[list[int]] = [[] for _ in mask]
        going = list(range(len(mask)))  # the prompt of each row that still decodes
        for length in range(1, max_new_tokens + 1):
            if stop():
                raise Stopped
            rows = [row for row, token in enumerate(chosen.tolist()) if token not in eos]
            for row in rows:
                found[going[row]].append(int(chosen[row]))
            if not rows or length == max_new_tokens:
                break
            if len(rows) < len(going):
                keep = torch.tensor(rows, device=reader.device)
                reader.select(keep)
                chosen, mask, places = chosen[keep], mask[keep], places[keep]
                going = [going[row] for row in rows]
            places = places + 1
            mask = torch.cat([mask, mask.new_ones(len(going), 1)], -1)
            chosen = reader.logits(reader.read(chosen.unsqueeze(-1), mask, places)[:, -1]).argmax(-1)
        return found

    @staticmethod
    def _places(mask: Tensor) -> Tensor:
        return (mask.cumsum(-1) - 1).clamp(min=0)


class _Llama:
    """A Reader of a transformers model."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.device = model.device
        self._model = model
        self.forget()

    def read(self, ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        hidden: Tensor = self._model.model(input_ids=ids, attention_mask=mask, position_ids=places,
                                           past_key_values=self._cache, use_cache=True).last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._model.lm_head(hidden)
        return logits

    def forget(self) -> None:
        self._cache = DynamicCache(config=self._model.config)

    def crop(self, tokens: int) -> None:
        self._cache.crop(tokens)

    def select(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
