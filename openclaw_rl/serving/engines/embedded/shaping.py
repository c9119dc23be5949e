"""Penalties, biases and cut-offs of a request: how `Shaping` changes what its tokens are drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from openclaw_rl.serving.engines.interface import Shaping


class Shaper:
    """Shapes the logits of one request, step by step.

    Args:
        prompt: its tokens.
        response: the tokens drawn so far; the caller goes on appending to it.
        stop_ids: tokens that end the response.
    """

    def __init__(self, shaping: Shaping, prompt: Sequence[int], response: Sequence[int],
                 stop_ids: Collection[int]) -> None:
        self._shaping, self._response = shaping, response
        self._stop_ids = sorted(stop_ids)
        self._bias_ids, self._bias = list(shaping.logit_bias), list(shaping.logit_bias.values())
        self._seen = set(prompt) if shaping.repetition_penalty != 1 else set()
        self._counts: Counter[int] = Counter()
        self._counted = 0

    def __call__(self, logits: Tensor) -> Tensor:
        """The shaped copy of logits [vocabulary].

        With c the number of times a token was drawn: l / r (l * r if negative) for tokens of prompt and response
        (Keskar et al. 2019, https://arxiv.org/abs/1909.05858), then l - c * frequency_penalty - (c > 0) *
        presence_penalty, then the bias; before min_tokens, no token that ends the response.
        """
        rule, logits = self._shaping, logits.clone()
        self._counts.update(self._response[self._counted:])
        self._counted = len(self._response)
        if rule.repetition_penalty != 1 and (seen := self._seen.union(self._counts)):
            ids = torch.tensor(sorted(seen), device=logits.device)
            old, r = logits[ids], rule.repetition_penalty
            logits[ids] = torch.where(old > 0, old / r, old * r)
        if self._counts and (rule.frequency_penalty or rule.presence_penalty):
            ids = torch.tensor(list(self._counts), device=logits.device)
            counts = logits.new_tensor(list(self._counts.values()))
            logits[ids] -= counts * rule.frequency_penalty + rule.presence_penalty
        if self._bias_ids:
            logits[self._bias_ids] += logits.new_tensor(self._bias)
        if len(self._response) < rule.min_tokens and self._stop_ids:
            logits[self._stop_ids] = -torch.inf
        return logits


def cut(p: Tensor, shaping: Shaping) -> Tensor:
    """Zero the tokens of p [vocabulary] that top_k or min_p excludes. Of equal ones at the edge, all stay."""
    least = p.max() * shaping.min_p
    if 0 < shaping.top_k < len(p):
        least = torch.maximum(least, p.topk(shaping.top_k).values[-1])
    return torch.where(p >= least, p, 0)
