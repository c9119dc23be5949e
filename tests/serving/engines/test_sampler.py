"""Tokens are drawn with the probabilities that are reported."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from openclaw_rl.serving.engines.embedded.sampler import Draw, sample
from openclaw_rl.serving.engines.interface import EngineError, Sampling, Token

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -4.0])


def draws(sampling: Sampling, count: int = 4000) -> list[Token]:
    drawn = sample(LOGITS.repeat(count, 1), [Draw(sampling)] * count, 3)
    assert all(isinstance(token, Token) for token in drawn)
    return drawn  # type: ignore[return-value]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (1.5, 0.6), (0.3, 0.05)])
def test_draws_what_it_reports(temperature: float, top_p: float) -> None:
    p = (LOGITS / temperature).softmax(-1).tolist()
    kept: list[float] = []
    while sum(kept) < top_p - 1e-6:
        kept.append(p[len(kept)])
    drawn = draws(Sampling(temperature=temperature, top_p=top_p, seed=0))
    counts = Counter(token.id for token in drawn)
    assert set(counts) <= set(range(len(kept)))
    for id_, mass in enumerate(kept):
        assert counts[id_] / len(drawn) == pytest.approx(mass / sum(kept), abs=0.04)
    for token in drawn[:200]:
        assert token.logprob == pytest.approx(math.log(p[token.id] / sum(kept)), abs=1e-5)
        assert token.model_logprob == pytest.approx(float(LOGITS.log_softmax(-1)[token.id]), abs=1e-5)
        assert token.version == 3


def test_temperature_0_takes_the_likeliest() -> None:
    token = draws(Sampling(temperature=0, top_logprobs=2), 1)[0]
    assert (token.id, token.logprob) == (0, 0.0)
    assert token.model_logprob == pytest.approx(float(LOGITS.log_softmax(-1)[0]))
    assert [id_ for id_, _ in token.top] == [0, 1]


def test_a_flat_distribution_is_cut_too() -> None:
    logits = torch.zeros(1, 5000)
    drawn = sample(logits, [Draw(Sampling(temperature=1, top_p=0.5, seed=1))], 0)[0]
    assert isinstance(drawn, Token)
    assert drawn.logprob == pytest.approx(math.log(1 / 2500), abs=1e-3)


def test_rows_keep_their_own_rules_and_a_broken_row_fails_alone() -> None:
    rows = LOGITS.repeat(3, 1)
    rows[1, 2] = float("nan")
    result = sample(rows, [Draw(Sampling(temperature=0)), Draw(Sampling(seed=1)), Draw(Sampling(seed=1))], 9)
    alone = sample(rows[2:], [Draw(Sampling(seed=1))], 9)
    assert isinstance(result[0], Token)
    assert result[0].id == 0
    assert isinstance(result[1], EngineError)
    assert "version 9 computed something that is not a number" in str(result[1])
    assert result[2] == alone[0]
