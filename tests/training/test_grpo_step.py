"""A GRPO step of the PyTorch backend on a tiny model, against the obvious computation of the same step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms import losses, objective
from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.backends import torch as backend_torch
from openclaw_rl.training.backends.interface import StartPoint
from openclaw_rl.training.backends.torch import TorchBackend
from tests.training.fakes import encode


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_torch, "compute_dtype", lambda device: torch.float32)


def never() -> bool:
    return False


def config(**changes: object) -> TrainerConfig:
    return TrainerConfig(**{"device": "cpu", "learning_rate": 1e-2, "method": "full", "max_kl": 99.0, "grpo": {
        "kl_weight": 0.1}, **changes})


def alone(prompt: str, response: str, advantage: float, behaviour: float = -4.5) -> Example:
    ids = encode(response)
    return Example(response, encode(prompt), ids, [behaviour] * len(ids), [0] * len(ids), 1, "", None,
                   [advantage] * len(ids))


FIRST, SECOND = alone("[hello]:", "look around", 1.2), alone("[hello]:look around[seen]", "do it", -0.7, -4.0)
OTHER = alone("[go on]:", "nothing at all", 0.4, -5.5)
#: FIRST and SECOND as one text.
JOINED = Example("both", FIRST.prompt_ids, FIRST.response_ids + SECOND.response_ids,
                 FIRST.behaviour + SECOND.behaviour, FIRST.versions + SECOND.versions, 2, "", None,
                 [*(FIRST.advantages or []), *(SECOND.advantages or [])], 2,
                 [(len(FIRST.response_ids), encode("[seen]"))])


@pytest.mark.parametrize("examples", [[FIRST, SECOND, OTHER], [JOINED, OTHER]], ids=["apart", "joined"])
def test_a_step_is_that_of_the_whole_batch(model: Path, monkeypatch: pytest.MonkeyPatch,
                                           examples: list[Example]) -> None:
    monkeypatch.setattr(objective, "LOGIT_ROWS", 7)
    monkeypatch.setattr(backend_torch, "CHECKPOINT_TOKENS", 30)
    backend = TorchBackend(model, config(), StartPoint())
    metrics = backend.step(examples, 0, never)

    student, base = (LlamaForCausalLM.from_pretrained(model, dtype=torch.float32) for _ in range(2))
    surrogate, kl, entropy, low, high = [], [], [], 0, 0
    for e in (FIRST, SECOND, OTHER):
        ids, behaviour, advantages = map(torch.tensor, (e.response_ids, e.behaviour, e.advantages))
        logits = student(torch.tensor([e.prompt_ids + e.response_ids])).logits[0, len(e.prompt_ids) - 1:-1]
        own = losses.token_logprobs(logits, ids)
        with torch.no_grad():
            reference = losses.token_logprobs(
                base(torch.tensor([e.prompt_ids + e.response_ids])).logits[0, len(e.prompt_ids) - 1:-1], ids)
        ratio = losses.importance_ratio(own, behaviour, 2.0)
        surrogate.append(-torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages))
        kl.append(ratio.detach() * losses.kl_k3(own, reference))
        probabilities = logits.softmax(-1)
        entropy.append(-(probabilities * probabilities.log()).sum(-1))
        low, high = low + int((ratio < 0.8).sum()), high + int((ratio > 1.28).sum())
    loss = losses.token_mean(surrogate) + 0.1 * losses.token_mean(kl)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()

    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert metrics["entropy"] == pytest.approx(losses.token_mean(entropy).item(), rel=1e-4)
    tokens = sum(len(e.response_ids) for e in (FIRST, SECOND, OTHER))
    assert (metrics["clipped_low"], metrics["clipped_high"]) == pytest.approx((low / tokens, high / tokens))
    assert low and high
    assert metrics["clipped"] == pytest.approx(metrics["clipped_low"] + metrics["clipped_high"])
    assert (metrics["samples"], metrics["tokens"], metrics["score_mean"]) == (3, tokens, 1)
    for name, parameter in student.named_parameters():
        # Adam's first step is the gradient's sign: entries whose gradient is nothing but rounding may differ.
        assert ((backend._parameters[name] - parameter).abs() < 1e-4).float().mean() > 0.99, name


def test_what_did_better_than_the_others_becomes_likelier(model: Path) -> None:
    backend = TorchBackend(model, config(learning_rate=3e-3), StartPoint())
    good, bad = alone("[hello]:", "good", 1.0), alone("[hello]:", "evil", -1.0)
    figures = backend.step([good, bad], 0, never)
    assert figures["logprob_praised_after"] > figures["logprob_praised_before"]
    assert figures["logprob_complained_after"] < figures["logprob_complained_before"]


def test_no_advantage_moves_nothing_but_towards_the_base(model: Path) -> None:
    backend = TorchBackend(model, config(), StartPoint())
    metrics = backend.step([replace(FIRST, advantages=[0.0] * len(FIRST.response_ids))], 0, never)
    assert metrics["reward_loss"] == 0
    assert metrics["grad_norm"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["combine", "opd", "grpo"])
def test_episodes_are_learned_from_by_grpo_whatever_the_users_algorithm(model: Path, algorithm: str) -> None:
    results = [TorchBackend(model, config(algorithm=name), StartPoint()).step([FIRST, OTHER], 0, never)["loss"]
               for name in ("binary_rl", algorithm)]
    assert results[0] == results[1] != 0
