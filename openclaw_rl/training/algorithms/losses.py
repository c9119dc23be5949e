"""Losses, as pure functions over tensors.

Every function gives one value per token, in natural logarithms and fp32, and knows nothing of prompts, padding or
batches: `token_mean` turns the values of many samples into one loss. Shapes: R response tokens, V vocabulary. All
of them hold response tokens only, so prompts can't be trained on by mistake.

Sources: PPO (Schulman et al., arXiv:1707.06347), generalized Jensen-Shannon divergence and on-policy distillation
(GKD, Agarwal et al., arXiv:2306.13649), the k3 estimator (Schulman, "Approximating KL Divergence", 2020), binary
rewards and hindsight hints from the next state (OpenClaw-RL, Wang et al., arXiv:2603.10165).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

#: Bound on the advantage of one token in `opd`.
OPD_CLAMP = 5.0


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of each sampled token: log softmax(logits)[id].

    Args:
        logits: (R, V), of the positions that predict the tokens.
        ids: (R,), the sampled tokens.
    """
    logits = logits.float()
    return logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)


def importance_ratio(logprobs: Tensor, behaviour: Tensor, cap: float) -> Tensor:
    """Truncated importance ratio min(pi / mu, cap) of each token: pi is the model in training, mu the one that sampled
    the token, which may be an older version or compute a little differently.

    Bounding the weight costs a bias where pi / mu is over the cap, and buys a variance that no single token can blow up
    (Ionides, "Truncated Importance Sampling", JCGS 17(2), 2008; per token as in IMPALA, Espeholt et al.,
    arXiv:1802.01561). The bound holds for the weight only: the gradient is min(pi / mu, cap) grad log pi, so tokens
    over the cap still teach. Computed from the logarithms, so that no ratio overflows.

    Args:
        logprobs: (R,), with gradient or without.
        behaviour: (R,), log-probabilities that the engine recorded when it sampled.
        cap: at least 1.
    """
    difference = logprobs - behaviour
    excess = (difference.detach() - math.log(cap)).clamp(min=0)
    return (difference - excess).exp()


def policy_gradient(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, clip_ratio: float,
                    cap: float, clip_high: float | None = None) -> Tensor:
    """PPO's clipped surrogate (arXiv:1707.06347, eq. 7), negated: -min(r A, clip(r, 1 - c, 1 + c) A).

    With `clip_high` the two sides differ, 1 - clip_ratio and 1 + clip_high ("clip-higher" of DAPO, arXiv:2503.14476,
    section 3.1): unlikely tokens that did well may grow further.

    Of a user's turn each token's advantage is the turn's score, +1, 0 or -1 (arXiv:2603.10165).

    r is the token's `importance_ratio`. PPO's clip alone leaves r without a bound where A is negative; there the cap
    is what holds.

    Args:
        logprobs: (R,), with gradient.
        behaviour: (R,), log-probabilities that the engine recorded when it sampled.
        advantages: (R,), without gradient.
        clip_ratio: c.
        cap: of the ratio.
        clip_high: c above 1; None: the same as below.
    """
    ratio, high = importance_ratio(logprobs, behaviour, cap), clip_ratio if clip_high is None else clip_high
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_ratio, 1 + high) * advantages)


def opd(logprobs: Tensor, behaviour: Tensor, teacher: Tensor, clip_ratio: float, cap: float) -> Tensor:
    """Sampled-token on-policy distillation: advantage = clamp(teacher - student, -5, 5) (arXiv:2603.10165).

    It is the policy gradient of the reverse KL from the student to the teacher, which reads the hint.

    Args:
        logprobs: (R,), the student's, with gradient; its value is the student of the advantage.
        behaviour: (R,), recorded by the engine.
        teacher: (R,), of the same tokens from the frozen base model with the hint in its prompt.
        clip_ratio, cap: as for `policy_gradient`.
    """
    advantages = (teacher - logprobs.detach()).clamp(-OPD_CLAMP, OPD_CLAMP)
    return policy_gradient(logprobs, behaviour, advantages, clip_ratio, cap)


def opd_full(student_logits: Tensor, teacher_logits: Tensor, beta: float = 0.5) -> Tensor:
    """Generalized Jensen-Shannon divergence over the whole vocabulary (GKD, arXiv:2306.13649, eq. 1).

    JSD_b(T, S) = b KL(T || M) + (1 - b) KL(S || M) with the mixture M = b T + (1 - b) S; b = 1/2 is the
    Jensen-Shannon divergence, between 0 and ln 2.

    It has no importance weights: it compares whole distributions and needs no sampled token, the position that it
    stands at may come from any policy (GKD mixes sources on purpose), and its value is bounded by itself.

    Args:
        student_logits: (R, V), without the hint, with gradient.
        teacher_logits: (R, V), of the frozen base model with the hint.
        beta: weight of the teacher, in (0, 1).
    """
    student = student_logits.float().log_softmax(-1)
    teacher = teacher_logits.float().log_softmax(-1)
    mixture = torch.logaddexp(teacher + math.log(beta), student + math.log1p(-beta))
    return (beta * (teacher.exp() * (teacher - mixture)).sum(-1)
            + (1 - beta) * (student.exp() * (student - mixture)).sum(-1))


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(student || reference) at sampled tokens: exp(d) - 1 - d, d = reference - logprobs.

    Never negative and, for tokens sampled from the student, unbiased. For tokens of another policy it is weighted with
    their `importance_ratio`: without, one token that the student has unlearned since counts exp(d) by itself.

    Args:
        logprobs: (R,), the student's, with gradient.
        reference: (R,), the frozen base model's.
    """
    difference = reference - logprobs
    return difference.exp() - 1 - difference


def entropy(logits: Tensor) -> Tensor:
    """Entropy of each position's distribution, in nats.

    Args:
        logits: (R, V).
    """
    logprobs = logits.float().log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def token_mean(values: Sequence[Tensor], total: int | None = None) -> Tensor:
    """Mean over the tokens of all samples, so that each token counts the same (not each sample, and not each episode):
    DAPO's token-level loss (arXiv:2503.14476, section 3.3).

    Args:
        values: one tensor of per-token values for each sample (or piece of one).
        total: tokens to divide by when `values` is only a part of the batch; unset means those in `values`.
    """
    tokens = total if total is not None else sum(v.numel() for v in values)
    return torch.stack([v.sum() for v in values]).sum() / max(tokens, 1)
