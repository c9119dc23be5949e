"""Figures of a step before and after it, against the obvious computation; and held-out prompts on a real model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from openclaw_rl.training.algorithms import losses, objective
from openclaw_rl.training.backends import evaluate
from openclaw_rl.training.backends import torch as backend_torch
from openclaw_rl.training.backends.interface import HeldOut, StartPoint, Stopped
from openclaw_rl.training.backends.torch import TorchBackend
from tests.training.fakes import encode
from tests.training.test_backend_torch import config, logprob_rows, make, never


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_torch, "compute_dtype", lambda device: torch.float32)


def test_a_step_tells_before_and_after(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "LOGIT_ROWS", 7)
    examples = [make("a"), make("b", 1, hint=False, response=encode("fine words")), make("c", 0, hint=False)]
    backend = TorchBackend(model, config(method="full", algorithm="binary_rl"), StartPoint())
    base = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)

    def logprobs(of: torch.nn.Module) -> list[torch.Tensor]:
        with torch.no_grad():
            return [losses.token_logprobs(logprob_rows(of, e.prompt_ids, e.response_ids), torch.tensor(e.response_ids))
                    for e in examples]

    before = logprobs(backend._model)
    metrics = backend.step(examples, 0, never)
    after, of_base = logprobs(backend._model), logprobs(base)
    for name, which in (("", (0, 1, 2)), ("_complained", (0,)), ("_praised", (1,))):
        for when, values in (("before", before), ("after", after)):
            mean = torch.cat([values[i] for i in which]).mean().item()
            assert metrics[f"logprob{name}_{when}"] == pytest.approx(mean, abs=1e-4)
    assert metrics["logprob_praised_after"] > metrics["logprob_praised_before"]
    assert metrics["logprob_complained_after"] < metrics["logprob_complained_before"]
    assert metrics["score_mean"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    behaviour = [torch.tensor(e.behaviour) for e in examples]
    kl = torch.cat([losses.importance_ratio(a, b, 2.0) * losses.kl_k3(a, o)
                    for a, b, o in zip(after, behaviour, of_base, strict=True)]).mean().item()
    assert metrics["kl_after"] == pytest.approx(kl, abs=1e-4)
    assert metrics["kl_after"] > 0


def test_without_praise_nothing_is_told_of_it(model: Path) -> None:
    metrics = TorchBackend(model, config(), StartPoint()).step([make()], 0, never)
    assert "logprob_praised_before" not in metrics
    assert metrics["score_mean"] == -1


PROMPTS = [HeldOut("hello you", "fine"), HeldOut("a", "a long answer that goes on"), HeldOut("what is it", "so so")]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_held_out_prompts_are_answered_greedily(model: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "_BATCH", 2)
    backend = TorchBackend(model, config(method=method), StartPoint())
    found = backend.evaluate(PROMPTS, 12, never)
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    total, count = 0.0, 0
    for prompt, answer in zip(PROMPTS, found.answers, strict=True):
        # The tests' vocabulary has no line breaks.
        ids = encode(f"User: {prompt.prompt}Assistant:")
        good = encode(prompt.answer)
        with torch.no_grad():
            total += losses.token_logprobs(logprob_rows(reference, ids, good), torch.tensor(good)).sum().item()
            expected: list[int] = []
            while len(expected) < 12:
                token = int(reference(torch.tensor([ids + expected])).logits[0, -1].argmax())
                if token == 1:
                    break
                expected.append(token)
        count += len(good)
        assert answer.ids == expected
    assert found.perplexity == pytest.approx(math.exp(-total / count), rel=1e-4)
    backend.step([make()], 0, never)
    assert backend.evaluate(PROMPTS, 12, never).perplexity != pytest.approx(found.perplexity, rel=1e-6)
    assert backend.evaluate(PROMPTS, 12, never, base=True).perplexity == pytest.approx(found.perplexity, rel=1e-4)


def test_an_answer_that_ends_leaves_the_batch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TorchBackend(model, config(), StartPoint())
    free = [answer.ids for answer in backend.evaluate(PROMPTS, 12, never).answers]
    # Let an answer end where the first one has its third token.
    stop = free[0][2]
    config_class = evaluate.ModelConfig
    read = config_class.read(model)
    monkeypatch.setattr(config_class, "read", lambda folder: type("Config", (), {"eos_ids": (stop,)})())
    ended = [answer.ids for answer in backend.evaluate(PROMPTS, 12, never).answers]
    assert ended == [ids[:ids.index(stop)] if stop in ids else ids for ids in free]
    assert read.eos_ids == (1,)


def test_it_is_given_up_when_asked(model: Path) -> None:
    backend = TorchBackend(model, config(), StartPoint())
    with pytest.raises(Stopped):
        backend.evaluate(PROMPTS, 12, lambda: True)


def test_prompts_that_the_tokenizer_cannot_write(model: Path) -> None:
    backend = TorchBackend(model, config(), StartPoint())
    with pytest.raises(ValueError, match="can't write the held-out prompts"):
        backend.evaluate([HeldOut("hello", "\u5317\u4eac")], 12, never)
