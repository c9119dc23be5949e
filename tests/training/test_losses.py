"""The losses against naive loops over tokens and vocabulary, in values and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from openclaw_rl.training.algorithms import losses

R, V, CLIP, CAP = 5, 7, 0.2, 2.0


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    # Gradients are compared in double precision; the losses compute in fp32 whatever they are given.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def logits(seed: int) -> torch.Tensor:
    return torch.randn(R, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2


IDS = torch.tensor([0, 3, 6, 2, 2])
#: Ratios from far below to far above the clip range.
SHIFT = torch.tensor([-0.5, -0.1, 0.0, 0.1, 0.5], dtype=torch.float64)


def naive_logprob(row: torch.Tensor, token: int) -> torch.Tensor:
    return row[token] - torch.log(sum((torch.exp(x) for x in row), torch.zeros((), dtype=torch.float64)))


def naive_surrogate(logprob: torch.Tensor, behaviour: float, advantage: float) -> torch.Tensor:
    ratio = torch.exp(logprob - behaviour)
    clipped = min(max(ratio.item(), 1 - CLIP), 1 + CLIP)
    # The smaller one counts; a clipped one has no gradient.
    return -ratio * advantage if ratio.item() * advantage <= clipped * advantage else ratio.new_tensor(
        -clipped * advantage)


def check(fast: Any, naive: Any, x: torch.Tensor) -> None:
    """The same values, the same gradients, and gradients that finite differences confirm."""
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    values, expected = fast(one), torch.stack([naive(two[i], i) for i in range(R)])
    torch.testing.assert_close(values, expected)
    weights = torch.arange(1.0, R + 1, dtype=torch.float64)
    (values * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(one.grad, two.grad)
    assert torch.autograd.gradcheck(fast, (x.clone().requires_grad_(),))


def test_token_logprobs() -> None:
    check(lambda x: losses.token_logprobs(x, IDS), lambda row, i: naive_logprob(row, int(IDS[i])), logits(1))


@pytest.mark.parametrize("score", [1, 0, -1])
def test_the_policy_gradient_of_a_score(score: int) -> None:
    x = logits(2)
    behaviour = losses.token_logprobs(x, IDS) + SHIFT
    advantages = torch.full_like(behaviour, score)

    check(lambda x: losses.policy_gradient(losses.token_logprobs(x, IDS), behaviour, advantages, CLIP, CAP),
          lambda row, i: naive_surrogate(naive_logprob(row, int(IDS[i])), behaviour[i].item(), score), x)


def test_opd_is_the_policy_gradient_of_the_clamped_difference() -> None:
    x = logits(3)
    before = losses.token_logprobs(x, IDS)
    teacher = before + torch.tensor([9.0, 1.0, -1.0, -9.0, 0.5], dtype=torch.float64)
    behaviour = before + SHIFT
    advantages = [5.0, 1.0, -1.0, -5.0, 0.5]
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    losses.opd(losses.token_logprobs(one, IDS), behaviour, teacher, CLIP, CAP).sum().backward()
    sum(naive_surrogate(naive_logprob(two[i], int(IDS[i])), behaviour[i].item(), advantages[i])
        for i in range(R)).backward()
    torch.testing.assert_close(one.grad, two.grad)


def test_a_ratio_weighs_at_most_the_cap_and_still_teaches() -> None:
    logprobs = torch.tensor([-3.0, -1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([-1.0, -1.0, -2.0, -1e5], dtype=torch.float64)
    ratio = losses.importance_ratio(logprobs, behaviour, CAP)
    expected = torch.tensor([math.exp(-2), 1.0, CAP, CAP], dtype=torch.float64)
    torch.testing.assert_close(ratio.detach(), expected)
    ratio.sum().backward()
    torch.testing.assert_close(logprobs.grad, expected)  # min(r, cap) times the gradient of log pi


def test_a_bad_token_that_became_likely_is_bounded_by_the_cap() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    losses.policy_gradient(logprobs, torch.tensor([-9.0]), torch.tensor([-1.0]), CLIP, CAP).sum().backward()
    assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(CAP)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_opd_full(beta: float) -> None:
    teacher = logits(5)

    def naive(row: torch.Tensor, i: int) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for v in range(V):
            s, t = torch.exp(naive_logprob(row, v)), torch.exp(naive_logprob(teacher[i], v))
            m = beta * t + (1 - beta) * s
            total = total + beta * t * torch.log(t / m) + (1 - beta) * s * torch.log(s / m)
        return total

    check(lambda x: losses.opd_full(x, teacher, beta), naive, logits(4))


def test_jensen_shannon_is_between_nothing_and_ln_2() -> None:
    certain = torch.full((1, V), -1000.0, dtype=torch.float64)
    here, there = certain.clone(), certain.clone()
    here[0, 0], there[0, 1] = 1000.0, 1000.0
    assert losses.opd_full(here, here).item() == pytest.approx(0)
    assert losses.opd_full(here, there).item() == pytest.approx(math.log(2))
    torch.testing.assert_close(losses.opd_full(logits(1), logits(2)), losses.opd_full(logits(2), logits(1)))


def test_kl_k3() -> None:
    reference = losses.token_logprobs(logits(6), IDS)

    def naive(row: torch.Tensor, i: int) -> torch.Tensor:
        d = reference[i] - naive_logprob(row, int(IDS[i]))
        return torch.exp(d) - 1 - d

    check(lambda x: losses.kl_k3(losses.token_logprobs(x, IDS), reference), naive, logits(7))


def test_kl_k3_is_unbiased_over_the_students_tokens() -> None:
    student, reference = logits(8)[0].log_softmax(-1), logits(9)[0].log_softmax(-1)
    expected = (student.exp() * (student - reference)).sum()
    estimate = (student.exp() * losses.kl_k3(student, reference)).sum()
    torch.testing.assert_close(estimate, expected)


def test_token_mean_counts_tokens_not_samples() -> None:
    values = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0])]
    assert losses.token_mean(values).item() == 4.0
    # In pieces it is the same sum.
    assert sum(losses.token_mean([v], total=4).item() for v in values) == 4.0
