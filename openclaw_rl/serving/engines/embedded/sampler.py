"""Sampling of tokens from logits, with parameters per row and exact log-probabilities."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from openclaw_rl.serving.engines.embedded.grammars import Guide
from openclaw_rl.serving.engines.embedded.shaping import Shaper, cut
from openclaw_rl.serving.engines.interface import EngineError, Sampling, Token


class Draw:
    """A request's sampling parameters and random numbers, so that its tokens don't depend on the rest of the batch."""

    def __init__(self, sampling: Sampling, shaper: Shaper | None = None, guide: Guide | None = None) -> None:
        """Without a seed, random numbers are seeded by the operating system. `guide`: holds it to a grammar."""
        self.sampling, self.shaper, self.guide = sampling, shaper, guide
        self.random = random.Random(sampling.seed)


def sample(logits: Tensor, draws: Sequence[Draw], version: int) -> list[Token | EngineError]:
    """Draw one token for each row.

    With temperature T and top_p, p = softmax(logits / T) of the shaped logits (see `Shaper`) of the tokens that the
    row's grammar allows, cut to the smallest set of likeliest tokens whose mass reaches top_p, then by top_k and min_p,
    and divided by the mass of what is left; `logprob` is log p of the drawn token. `model_logprob` is of
    softmax(logits), before any of this.

    Args:
        logits: float32 [rows, vocabulary]; written to.
        draws: one a row.
        version: written into the tokens.

    Returns:
        For each row its token, or the error of a row whose logits hold NaN or Inf, or whose grammar is too complex.
    """
    rules = [draw.sampling for draw in draws]
    mass = logits.logsumexp(-1)
    tops: dict[int, list[tuple[int, float]]] = {}
    for i, rule in enumerate(rules):
        if rule.top_logprobs:
            values, ids = (logits[i] - mass[i]).topk(min(rule.top_logprobs, logits.shape[1]))
            tops[i] = list(zip(ids.tolist(), values.tolist(), strict=True))
    failed = {i: EngineError(f"version {version} computed something that is not a number")
              for i, fine in enumerate(mass.isfinite().tolist()) if not fine}
    guided = {i: draw.guide for i, draw in enumerate(draws) if draw.guide is not None and i not in failed}
    forced: set[int] = set()
    shaped = _shaped(logits, draws)
    for i, guide in guided.items():
        try:
            allowed = guide.allowed()
        except EngineError as error:
            failed[i] = error
            continue
        if allowed is not None:
            if allowed.sum() == 1:
                forced.add(i)
            # In place: the figures of the whole vocabulary are taken already, and allowed tokens keep their logits.
            others = torch.from_numpy(~allowed).to(logits.device)
            shaped[i].masked_fill_(others, float("-inf"))
            if draws[i].shaper is not None and not shaped[i].max().isfinite():
                shaped[i] = logits[i].masked_fill(others, float("-inf"))  # an end that min_tokens forbids
    drawn, logprobs = _draw(shaped, draws)
    model_logprobs = (logits.gather(1, drawn[:, None])[:, 0] - mass).tolist()
    result: list[Token | EngineError] = []
    for i, id_ in enumerate(drawn.tolist()):
        if i in failed:
            result.append(failed[i])
            continue
        if i in guided:
            guided[i].take(id_)
        result.append(Token(id_, logprobs[i], model_logprobs[i], version, tops.get(i, []), forced=i in forced))
    return result


def _shaped(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The logits that are drawn from; the model's own stay as they are."""
    shapers = [(i, draw.shaper) for i, draw in enumerate(draws) if draw.shaper is not None]
    if not shapers:
        return logits
    logits = logits.clone()
    for i, shaper in shapers:
        logits[i] = shaper(logits[i])
    return logits


def _draw(logits: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, list[float]]:
    """Ids [rows] and the log-probabilities with which they were drawn."""
    logprobs = [0.0] * len(draws)
    rows = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
    drawn = logits.argmax(-1) if len(rows) < len(draws) else logits.new_empty(len(draws), dtype=torch.long)
    if rows:
        rules = [draws[i].sampling for i in rows]
        temperatures = logits.new_tensor([rule.temperature for rule in rules])[:, None]
        p = ((logits if len(rows) == len(draws) else logits[rows]) / temperatures).softmax(-1)
        for i, rule in enumerate(rules):
            if rule.top_p < 1 or rule.shaping is not None:
                kept = p[i] if rule.top_p == 1 else _nucleus(p[i], rule.top_p)
                p[i] = kept if rule.shaping is None else cut(kept, rule.shaping)
        # Inverse transform sampling with one uniform number per row, in float64.
        cumulated = p.cumsum(-1, dtype=torch.float64)
        total = cumulated[:, -1:]
        uniform = torch.tensor([[draws[i].random.random()] for i in rows], dtype=torch.float64, device=p.device)
        ids = torch.searchsorted(cumulated, uniform * total, right=True).clamp_(max=p.shape[1] - 1)
        chosen = (p.gather(1, ids)[:, 0].double() / total[:, 0]).log()
        drawn[torch.tensor(rows, device=drawn.device)] = ids[:, 0]
        for i, logprob in zip(rows, chosen.tolist(), strict=True):
            logprobs[i] = logprob
    return drawn, logprobs


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Zero the tokens of p [vocabulary] beyond the likeliest ones whose mass reaches top_p."""
    # The rest, tokens each below (1 - top_p) / vocabulary, can't add up to 1 - top_p: few tokens need sorting.
    ids = (p >= (1 - top_p) / len(p)).nonzero()[:, 0]
    values, order = p[ids].sort(descending=True)
    kept = values.cumsum(-1) - values < top_p
    return torch.zeros_like(p).scatter_(0, ids[order[kept]], values[kept])
