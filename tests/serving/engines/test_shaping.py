"""Penalties, biases and cut-offs change what tokens are drawn from, and both log-probabilities tell it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper

from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.embedded.sampler import Draw, sample
from openclaw_rl.serving.engines.embedded.shaping import Shaper, cut
from openclaw_rl.serving.engines.interface import Sampling, Shaping, Token
from tests.serving.engines.conftest import tokens

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -4.0])


def shaped(rule: Shaping, prompt: list[int], response: list[int]) -> torch.Tensor:
    return Shaper(rule, prompt, response, (5,))(LOGITS)


def test_penalties_are_those_of_the_field() -> None:
    assert shaped(Shaping(frequency_penalty=0.5, presence_penalty=0.25), [3], [0, 0, 4]).tolist() == pytest.approx(
        [2 - 1.25, 1, 0.5, 0, -1.75, -4])
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[0, 4, 4]]), LOGITS[None].clone())[0]
    assert shaped(Shaping(repetition_penalty=1.3), [0], [4, 4]).tolist() == pytest.approx(theirs.tolist())
    assert shaped(Shaping(logit_bias={1: 3, 5: -100}), [], []).tolist() == pytest.approx([2, 4, 0.5, 0, -1, -104])
    assert shaped(Shaping(min_tokens=2), [], [1])[5] == -math.inf
    assert shaped(Shaping(min_tokens=2), [], [1, 1])[5] == -4


def test_a_shaper_counts_each_token_once_as_the_response_grows() -> None:
    response: list[int] = []
    shaper = Shaper(Shaping(frequency_penalty=1), [], response, ())
    for count in range(1, 4):
        response.append(2)
        assert shaper(LOGITS)[2] == pytest.approx(0.5 - count)
    assert LOGITS[2] == 0.5


@pytest.mark.parametrize("rule", [Shaping(top_k=2), Shaping(min_p=0.2), Shaping(top_k=4, min_p=0.3), Shaping(top_k=99)])
def test_cut_offs_are_those_of_transformers(rule: Shaping) -> None:
    kept = cut(LOGITS.softmax(-1), rule) > 0
    warpers = LogitsProcessorList([MinPLogitsWarper(rule.min_p)] if rule.min_p else [])
    if rule.top_k:
        warpers.insert(0, TopKLogitsWarper(rule.top_k))
    theirs = warpers(torch.tensor([[0]]), LOGITS[None].clone())[0]
    assert kept.tolist() == theirs.isfinite().tolist()


def test_draws_what_it_reports_and_says_the_models_own() -> None:
    rule = Shaping(logit_bias={0: -1.0}, presence_penalty=0.5, top_k=3)
    draws = [Draw(Sampling(temperature=0.8, seed=i, shaping=rule), Shaper(rule, [], [1], ())) for i in range(3000)]
    drawn = [token for token in sample(LOGITS.repeat(3000, 1), draws, 0) if isinstance(token, Token)]
    p = (torch.tensor([1.0, 0.5, 0.5]) / 0.8).softmax(-1).tolist()
    counts = Counter(token.id for token in drawn)
    assert set(counts) == {0, 1, 2} and len(drawn) == 3000
    for token in drawn[:50]:
        assert token.logprob == pytest.approx(math.log(p[token.id]), abs=1e-5)
        assert token.model_logprob == pytest.approx(float(LOGITS.log_softmax(-1)[token.id]), abs=1e-5)
    assert all(counts[i] / 3000 == pytest.approx(p[i], abs=0.04) for i in range(3))


def test_rows_without_a_shape_are_untouched() -> None:
    rule = Shaping(logit_bias={3: 100.0})
    plain = Draw(Sampling(temperature=0))
    first, second = sample(LOGITS.repeat(2, 1), [Draw(plain.sampling, Shaper(rule, [], [], ())), plain], 0)
    assert isinstance(first, Token) and isinstance(second, Token)
    assert (first.id, second.id) == (3, 0)


async def test_an_engine_applies_them(engine: EmbeddedEngine, tiny: Path) -> None:
    def greedy(**fields: object) -> Sampling:
        return Sampling(temperature=0, max_tokens=12, shaping=Shaping(**fields))  # type: ignore[arg-type]

    plain = [token.id for token in await tokens(engine, [1, 2, 3], Sampling(temperature=0, max_tokens=12))]
    assert len(set([token.id for token in await tokens(engine, [1, 2, 3], greedy(frequency_penalty=2,
                                                                                 logit_bias={127: -100}))])) > 1
    forced = await tokens(engine, [1, 2, 3], greedy(logit_bias={7: 100.0}))
    assert [token.id for token in forced] == [7] * 12
    assert all(token.model_logprob < -0.01 for token in forced)
    scores, _ = await engine.score([1, 2, 3, *[7] * 12])
    assert [token.model_logprob for token in forced] == pytest.approx(scores[2:], abs=1e-3)
    ended = await tokens(engine, [1, 2, 3], greedy(logit_bias={127: 100.0}))
    assert [token.id for token in ended] == [127]
    later = await tokens(engine, [1, 2, 3], greedy(logit_bias={127: 100.0}, min_tokens=4))
    assert [token.id for token in later][:4] == plain[:4] and later[-1].id == 127 and len(later) == 5
    assert len(await tokens(engine, [1, 2, 3], greedy(logit_bias={127: 100.0}, ignore_eos=True))) == 12


async def test_reading_a_prompt_tells_the_likeliest_in_each_place(engine: EmbeddedEngine) -> None:
    ids = [1, 2, 3, 4] * 30
    read = await engine.read(ids, 3)
    scores, _ = await engine.score(ids)
    assert [token.id for token in read] == ids[1:] and [token.model_logprob for token in read] == scores
    following = await tokens(engine, ids[:50], Sampling(temperature=0, max_tokens=1, top_logprobs=3))
    assert [i for i, _ in read[49].top] == [i for i, _ in following[0].top]
    assert [value for _, value in read[49].top] == pytest.approx([value for _, value in following[0].top], abs=1e-3)
    assert all(not token.top for token in await engine.read(ids, 0))


@pytest.mark.parametrize(("field", "value"), [
    ("frequency_penalty", 2.1), ("presence_penalty", -3), ("repetition_penalty", 0), ("top_k", -1), ("min_p", 1.5),
    ("min_tokens", -1), ("logit_bias", {1: 101})])
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: .*is not allowed"):
        Shaping(**{field: value})  # type: ignore[arg-type]
