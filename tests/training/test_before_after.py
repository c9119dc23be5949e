"""Figures of a step before and after it, against the obvious computation; and held-out prompts on a real model."""

from __future__ import annotations

import math
from dataclasses import replace
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


@pytest.mark.parametrize("algorithm", ["combine", "opd"])
def test_a_step_tells_how_far_from_the_teacher_it_was_and_is(
        model: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all hinted samples, those too that are shown again and that only count for this."""
    monkeypatch.setattr(objective, "LOGIT_ROWS", 7)
    examples = [make("a"), make("b", 1, hint=False, response=encode("fine words")),
                replace(make("c", response=encode("earlier")), replayed=True)]
    backend = TorchBackend(model, config(method="full", algorithm=algorithm, learning_rate=1e-4), StartPoint())
    base = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)

    def distance() -> float:
        with torch.no_grad():
            return torch.cat([losses.opd_full(
                logprob_rows(backend._model, e.prompt_ids, e.response_ids),
                logprob_rows(base, e.teacher_prompt_ids, e.response_ids))
                for e in examples if e.teacher_prompt_ids is not None]).mean().item()

    before = distance()
    metrics = backend.step(examples, 0, never)
    assert metrics["hint_distance_before"] == pytest.approx(before, rel=1e-3)
    assert metrics["hint_distance_after"] == pytest.approx(distance(), rel=1e-3)
    assert metrics["hint_distance_after"] < before
    assert metrics["tokens"] == sum(len(e.response_ids) for e in examples[:2])


@pytest.mark.parametrize(("hint", "algorithm"), [(False, "combine"), (True, "binary_rl")])
def test_without_a_hint_nothing_is_told_of_the_teacher(model: Path, hint: bool, algorithm: str) -> None:
    metrics = TorchBackend(model, config(algorithm=algorithm), StartPoint()).step([make("a", hint=hint)], 0, never)
    assert not [name for name in metrics if name.startswith("hint_distance")]


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
        good = encode(prompt.answer)[:12]  # as long as its own answers may be
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


def test_wrong_answers_are_compared_with_the_good_ones(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "_BATCH", 2)
    prompts = [HeldOut("hello you", "fine", "no"), HeldOut("a", "a long answer"), HeldOut("what", "so", "never ever")]
    found = TorchBackend(model, config(), StartPoint()).evaluate(prompts, 4, never)
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)

    def mean(prompt: str, text: str) -> float:
        ids = encode(text)[:4]
        with torch.no_grad():
            rows = logprob_rows(reference, encode(f"User: {prompt}Assistant:"), ids)
        return losses.token_logprobs(rows, torch.tensor(ids)).mean().item()

    margins = [mean(p.prompt, p.answer) - mean(p.prompt, p.wrong) for p in prompts if p.wrong]
    assert found.parts == {"margin": pytest.approx(sum(margins) / 2, abs=1e-4),
                           "pairs": sum(margin > 0 for margin in margins) / 2}
    plain = TorchBackend(model, config(), StartPoint()).evaluate(
        [HeldOut(p.prompt, p.answer) for p in prompts], 4, never)
    assert (plain.answers, plain.parts) == (found.answers, {})
    pairs = TorchBackend(model, config(), StartPoint()).evaluate([prompts[0], prompts[2]], 4, never)
    assert found.perplexity == pytest.approx(pairs.perplexity) != pytest.approx(plain.perplexity)


def test_what_prompts_have_in_common_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, ...]] = []
    original = evaluate._Llama.read

    def note(self: evaluate._Llama, ids: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        read.append(tuple(ids.shape))
        return original(self, ids, *args)

    monkeypatch.setattr(evaluate._Llama, "read", note)
    backend = TorchBackend(model, config(), StartPoint())
    backend.evaluate([HeldOut("what", "s"), HeldOut("when", "s"), HeldOut("who", "s")], 1, never)
    common = len("User: wh")
    assert read == [(1, common), (3, len("User: whatAssistant:s") - common),
                    (3, len("User: whatAssistant:") - common)]
    # What all of them share is never the whole of one: its last token predicts the answer.
    assert len({tuple(answer.ids) for answer in backend.evaluate([HeldOut("what", "so")] * 3, 4, never).answers}) == 1


def test_answers_at_a_temperature_are_the_same_each_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is asked: figures of two versions differ by the versions alone."""
    backend = TorchBackend(model, config(), StartPoint())
    warm = [replace(prompt, temperature=2.0) for prompt in PROMPTS]
    first = backend.evaluate(warm, 12, never).answers
    assert first == backend.evaluate(warm, 12, never).answers
    assert first != backend.evaluate(PROMPTS, 12, never).answers
    monkeypatch.setattr(evaluate, "_BATCH", 2)
    mixed = backend.evaluate([PROMPTS[0], warm[1], warm[2]], 12, never).answers
    assert mixed[1:] == first[1:]
    assert mixed[0] == backend.evaluate(PROMPTS[:1], 12, never).answers[0]


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
