"""Evaluation of a model on held-out prompts: likelihood of good and of wrong answers, and its own answers.

Prompts are written by the model's chat template, so they are what a policy server would give to it. They decode in
batches with a KV cache; an answer that ends leaves its batch.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from openclaw_rl.models.config import ModelConfig
from openclaw_rl.training.algorithms import losses
from openclaw_rl.training.algorithms.objective import pieces
from openclaw_rl.training.backends.interface import Answer, Evaluation, HeldOut, Stopped

#: For models that come without a template, as the policy server writes their prompts.
_PLAIN = ("{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
          "{% if add_generation_prompt %}Assistant:{% endif %}")
#: Texts that are read, or prompts that decode, at the same time.
_BATCH = 32


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
    questions = Questions.read(folder, prompts, max_new_tokens)
    return questions.evaluation(*answer(_Llama(model), questions, max_new_tokens, stop))


@dataclass(frozen=True, slots=True)
class Questions:
    """Held-out prompts as token ids."""

    tokenizer: PreTrainedTokenizerFast
    asked: list[list[int]]  #: as the chat template writes them
    good: list[list[int]]  #: the good answers; empty where only others have a wrong one to be compared with
    wrong: list[list[int]]  #: the wrong answers; empty where there is none
    temperatures: list[float]  #: of the policy's answers; 0: greedy
    eos: tuple[int, ...]  #: tokens that end an answer

    @classmethod
    def read(cls, folder: Path, prompts: Sequence[HeldOut], max_tokens: int) -> Questions:
        """Encode the prompts, and of each answer so many tokens at most.

        Raises:
            ValueError: the folder's tokenizer or chat template can't write them.
        """
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        asked = [_encode(tokenizer, prompt.prompt) for prompt in prompts]
        good, wrong = ([tokenizer.encode(text, add_special_tokens=False)[:max_tokens] for text in texts]
                       for texts in ([prompt.answer for prompt in prompts], [prompt.wrong for prompt in prompts]))
        if any(wrong):  # likelihoods cost as much as answers do: those that can be compared are enough
            good = [right if other else [] for right, other in zip(good, wrong, strict=True)]
        if not any(good) or not all(asked):
            raise ValueError(f"the tokenizer of {folder} can't write the held-out prompts")
        return cls(tokenizer, asked, good, wrong, [prompt.temperature for prompt in prompts],
                   ModelConfig.read(folder).eos_ids)

    def evaluation(self, answers: Sequence[list[int]], sums: Sequence[float]) -> Evaluation:
        """Return the evaluation, of the answers to all prompts and the `sums` of `answer` over them."""
        log_likelihood, margin, pairs, compared = sums
        mean = log_likelihood / sum(map(len, self.good))
        return Evaluation([Answer(str(self.tokenizer.decode(ids, skip_special_tokens=True)), ids) for ids in answers],
                          math.exp(-mean) if mean > -700 else math.inf,
                          {"margin": margin / compared, "pairs": pairs / compared} if compared else {})


@torch.no_grad()
def answer(reader: Reader, questions: Questions, max_new_tokens: int, stop: Callable[[], bool],
           share: slice = slice(None)) -> tuple[list[list[int]], list[float]]:
    """Return answers to the prompts, or a share of them, and four sums over these: the log-likelihood of the good
    answers, in nats; by how much it is above that of the wrong one, in nats a token, where there is one; in how many it
    is above; and how many were compared.

    Raises:
        Stopped: as `stop`, asked between batches and between tokens, wanted it.
    """
    asked, good, wrong = questions.asked[share], questions.good[share], questions.wrong[share]
    if not asked:
        return [], [0.0] * 4
    prompts = _Prompts(reader, asked, stop)
    found = prompts.likelihoods([(n, text) for texts in (good, wrong) for n, text in enumerate(texts)])
    margins = [found[n] / len(good[n]) - found[len(asked) + n] / len(wrong[n])
               for n in range(len(asked)) if good[n] and wrong[n]]
    sums = [sum(found[:len(asked)]), sum(margins), float(sum(m > 0 for m in margins)), float(len(margins))]
    return prompts.decode(questions.eos, max_new_tokens, questions.temperatures[share]), sums


def _encode(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False,
                                         add_generation_prompt=True, chat_template=tokenizer.chat_template or _PLAIN)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


class _Prompts:
    """Prompts in batches of similar length. What they have in common, a chat template's system prompt most of all, the
    model reads once and keeps: half of what there is to read."""

    def __init__(self, reader: Reader, prompts: Sequence[list[int]], stop: Callable[[], bool]) -> None:
        self._reader, self._prompts, self._stop = reader, prompts, stop
        common = min(
            sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))),
            min(map(len, prompts)) - 1)
        self._rest = [prompt[common:] for prompt in prompts]
        self._common = torch.ones(1, common, dtype=torch.int64, device=reader.device)
        reader.forget()
        if common:
            reader.read(torch.tensor([prompts[0][:common]], device=reader.device), self._common,
                        self._places(self._common))

    def likelihoods(self, answers: Sequence[tuple[int, list[int]]]) -> list[float]:
        """Return the sum of the log-probabilities of each answer's tokens, in nats.

        Args:
            answers: the number of the prompt, and an answer to it; 0.0 for an empty one.
        """
        found = [0.0] * len(answers)
        for some in _batches([i for i, (_, text) in enumerate(answers) if text],
                             lambda i: len(self._rest[answers[i][0]]) + len(answers[i][1])):
            before = [self._rest[answers[i][0]] for i in some]
            texts = [answers[i][1] for i in some]
            hidden, _ = self._read([a + b for a, b in zip(before, texts, strict=True)], left=False)
            states = torch.cat([hidden[row, len(a) - 1:len(a) - 1 + len(b)]
                                for row, (a, b) in enumerate(zip(before, texts, strict=True))])
            ids = torch.tensor([token for text in texts for token in text], device=hidden.device)
            # In pieces: the logits of all tokens at once would be large.
            logprobs = torch.cat([losses.token_logprobs(self._reader.logits(states[rows]), ids[rows])
                                  for rows in pieces(len(ids))])
            for i, part in zip(some, logprobs.split([len(text) for text in texts]), strict=True):
                found[i] = float(part.sum())
        return found

    def decode(self, eos: Sequence[int], max_new_tokens: int, temperatures: Sequence[float]) -> list[list[int]]:
        """Decode each prompt until one of `eos`, which is left out, greedily or at its temperature."""
        found: list[list[int]] = [[] for _ in self._prompts]
        for some in _batches(list(range(len(found))), lambda i: len(self._rest[i])):
            hidden, mask = self._read([self._rest[i] for i in some], left=True)
            draws = [_Draw(self._prompts[i], temperatures[i]) for i in some]
            self._continue(hidden[:, -1], mask, draws, [found[i] for i in some], eos, max_new_tokens)
        return found

    def _continue(self, last: Tensor, mask: Tensor, draws: list[_Draw], found: list[list[int]], eos: Sequence[int],
                  max_new_tokens: int) -> None:
        """Decode a batch.

        Args:
            last: (rows, hidden size), what predicts the first token of each answer.
            mask: (rows, tokens), of what was read.
            found: the answers, to be filled.
        """
        reader, places = self._reader, self._places(mask)[:, -1:]
        chosen = _choose(reader.logits(last), draws)
        for length in range(1, max_new_tokens + 1):
            if self._stop():
                raise Stopped
            rows = [row for row, token in enumerate(chosen.tolist()) if token not in eos]
            for row in rows:
                found[row].append(int(chosen[row]))
            if not rows or length == max_new_tokens:
                return
            if len(rows) < len(found):
                keep = torch.tensor(rows, device=reader.device)
                reader.select(keep)
                chosen, mask, places = chosen[keep], mask[keep], places[keep]
                found, draws = [found[row] for row in rows], [draws[row] for row in rows]
            places = places + 1
            mask = torch.cat([mask, mask.new_ones(len(found), 1)], -1)
            chosen = _choose(reader.logits(reader.read(chosen.unsqueeze(-1), mask, places)[:, -1]), draws)

    def _read(self, texts: Sequence[list[int]], *, left: bool) -> tuple[Tensor, Tensor]:
        """Read what follows the common beginning, padded on the left or on the right; return its hidden states (rows,
        tokens, hidden size) and the mask (rows, all tokens)."""
        if self._stop():
            raise Stopped
        reader, width = self._reader, max(map(len, texts))

        def padded(row: list[int]) -> list[int]:
            padding = [0] * (width - len(row))
            return padding + row if left else row + padding

        ids, real = (torch.tensor([padded(row) for row in rows], device=reader.device)
                     for rows in (texts, [[1] * len(text) for text in texts]))
        common = self._common.shape[1]
        if common:
            reader.crop(common)
            reader.select(torch.zeros(len(texts), dtype=torch.int64, device=reader.device))
        else:
            reader.forget()
        mask = torch.cat([self._common.expand(len(texts), -1), real], -1)
        return reader.read(ids, mask, self._places(mask)[:, common:]), mask

    @staticmethod
    def _places(mask: Tensor) -> Tensor:
        return (mask.cumsum(-1) - 1).clamp(min=0)


class _Draw:
    """How the tokens of an answer are chosen. The same model draws the same tokens, whatever else is asked, so that
    figures of two versions differ by the versions alone."""

    def __init__(self, prompt: list[int], temperature: float) -> None:
        self.temperature = temperature
        self._random = random.Random(zlib.crc32(repr(prompt).encode()))

    def next(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()


def _choose(logits: Tensor, draws: Sequence[_Draw]) -> Tensor:
    """Return the next token of each row of (rows, V): the likeliest, or one drawn by the inverse of the distribution
    function, which takes one number whatever the vocabulary."""
    picked = logits.argmax(-1)
    warm = [row for row, draw in enumerate(draws) if draw.temperature > 0]
    if warm:
        temperatures, numbers = (torch.tensor(values, device=logits.device).unsqueeze(-1) for values in zip(
            *((draws[row].temperature, draws[row].next()) for row in warm), strict=True))
        share = (logits[warm].float() / temperatures).softmax(-1).cumsum(-1)
        at = torch.searchsorted(share, numbers * share[:, -1:]).squeeze(-1)
        picked[warm] = at.clamp(max=share.shape[-1] - 1)
    return picked


def _batches(numbers: list[int], length: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield numbers of texts in batches, the short ones first: little padding."""
    ordered = sorted(numbers, key=length)
    return (ordered[begin:begin + _BATCH] for begin in range(0, len(ordered), _BATCH))


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
        if surplus := self._cache.get_seq_length() - tokens:
            self._cache.crop(-surplus)

    def select(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
