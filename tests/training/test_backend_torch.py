"""The PyTorch backend on a tiny model, against the obvious computation of the same step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms import losses, objective
from openclaw_rl.training.algorithms.example import AbnormalStep, Example
from openclaw_rl.training.backends import torch as backend_torch
from openclaw_rl.training.backends.factory import create
from openclaw_rl.training.backends.interface import OPTIMIZER_FILE, WEIGHTS_FILE, StartPoint, Stopped
from openclaw_rl.training.backends.selection import learning_rate
from openclaw_rl.training.backends.torch import TorchBackend
from openclaw_rl.training.buffer.turns import chosen
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.common_pb2 import VersionSpan
from openclaw_rl.weights.format.encoding import Adapted
from tests.training.backends.megatron.families import make as make_family
from tests.training.fakes import encode

PROMPT, RESPONSE = encode("[hello you]:"), encode("a long answer that goes on")


def make(turn_id: str = "t", score: int = -1, hint: bool = True, response: list[int] | None = None) -> Example:
    response = RESPONSE if response is None else response
    return Example(turn_id, PROMPT, response, [-4.5] * len(response), [0] * len(response), score,
                   "brief" if hint else "", encode("[hello you brief]:") if hint else None)


def config(**changes: object) -> TrainerConfig:
    return TrainerConfig(**{"device": "cpu", "learning_rate": 1e-2, "kl_weight": 0.1, "reward_weight": 0.5,
                            "max_kl": 99.0, **changes})


def never() -> bool:
    return False


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever the machine computes fastest in: the comparisons want fp32.
    monkeypatch.setattr(backend_torch, "compute_dtype", lambda device: torch.float32)


def logprob_rows(model: torch.nn.Module, prompt: list[int], response: list[int]) -> torch.Tensor:
    return model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1:-1]


@pytest.mark.parametrize("algorithm", ["combine", "binary_rl", "opd", "opd_full"])
def test_a_step_is_that_of_the_whole_batch(model: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "LOGIT_ROWS", 7)  # several pieces, the last one shorter
    monkeypatch.setattr(backend_torch, "CHECKPOINT_TOKENS", 30)  # one of the samples has more
    settings = config(algorithm=algorithm, method="full")
    examples = [make("a"), make("b", 1, hint=False, response=encode("fine")), make("c", 0),
                *([replace(make("d", response=encode("shown again")), replayed=True)] * (algorithm != "binary_rl"))]
    backend = TorchBackend(model, settings, StartPoint())
    metrics = backend.step(examples, 0, never)

    student, base = (LlamaForCausalLM.from_pretrained(model, dtype=torch.float32) for _ in range(2))
    jsd, sampled, reward, kl = [], [], [], []
    for e in examples:
        ids, behaviour = torch.tensor(e.response_ids), torch.tensor(e.behaviour)
        logits = logprob_rows(student, e.prompt_ids, e.response_ids)
        own = losses.token_logprobs(logits, ids)
        with torch.no_grad():
            reference = losses.token_logprobs(logprob_rows(base, e.prompt_ids, e.response_ids), ids)
            hinted = logprob_rows(base, e.teacher_prompt_ids or PROMPT, e.response_ids)
        if not e.replayed:
            reward.append(losses.policy_gradient(own, behaviour, torch.full_like(own, e.score), 0.2, 2.0))
            kl.append(losses.kl_k3(own, reference))
        if e.teacher_prompt_ids:
            jsd.append(losses.opd_full(logits, hinted))
            sampled.append(losses.opd(own, behaviour, losses.token_logprobs(hinted, ids), 0.2, 2.0))
    parts = {"combine": losses.token_mean(jsd) + 0.5 * losses.token_mean(reward),
             "binary_rl": losses.token_mean(reward), "opd": losses.token_mean(sampled),
             "opd_full": losses.token_mean(jsd)}
    loss = parts[algorithm] + 0.1 * losses.token_mean(kl)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()

    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["tokens"] == sum(len(e.response_ids) for e in examples[:3])
    assert metrics["samples"] == 3
    difference = metrics["logprob_diff_mean"]
    assert 0 < difference <= metrics["logprob_diff_max"]
    for name, parameter in student.named_parameters():
        # Adam's first step is the gradient's sign: entries whose gradient is nothing but rounding may differ.
        close = (backend._parameters[name] - parameter).abs() < 1e-4
        assert close.float().mean() > 0.99, name


@pytest.mark.parametrize("algorithm", ["binary_rl", "opd_full"])
def test_forced_tokens_are_read_and_get_no_loss(model: Path, algorithm: str) -> None:
    forced = [0, 4, 5, len(RESPONSE) - 1]
    record = turn_pb2.TokenRecord(response_ids=RESPONSE, model_logprobs=[-4.5] * len(RESPONSE), forced=forced,
                                  spans=[VersionSpan(version=0, begin=0, end=len(RESPONSE))])
    ids, behaviour, versions, gaps = chosen(record)
    example = replace(make("a"), response_ids=ids, behaviour=behaviour, versions=versions, gaps=gaps)
    metrics = TorchBackend(model, config(algorithm=algorithm, kl_weight=0.0), StartPoint()).step([example], 0, never)

    kept = [i for i in range(len(RESPONSE)) if i not in forced]
    student = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = logprob_rows(student, PROMPT, RESPONSE)[kept]
        own = losses.token_logprobs(logits, torch.tensor(RESPONSE)[kept])
        loss = {"binary_rl": losses.policy_gradient(own, torch.tensor(behaviour), torch.full_like(own, -1), 0.2, 2.0),
                "opd_full": losses.opd_full(logits, logprob_rows(student, example.teacher_prompt_ids or [],
                                                                 RESPONSE)[kept])}[algorithm]
    assert metrics["loss"] == pytest.approx(losses.token_mean([loss]).item(), abs=1e-5)
    assert metrics["tokens"] == len(kept)


def test_figures_of_older_versions_say_nothing_of_the_engine(model: Path) -> None:
    metrics = TorchBackend(model, config(), StartPoint()).step([make()], 3, never)
    assert "logprob_diff_mean" not in metrics
    assert metrics["mean_ratio"] > 0


def tensors(backend: TorchBackend) -> dict[str, torch.Tensor]:
    return {name: torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(shape)
            for name, dtype, shape, data in backend.tensors() if dtype == "BF16"}


@pytest.mark.parametrize("method", ["lora", "full"])
def test_what_is_published_is_what_was_trained(model: Path, method: str) -> None:
    before = load_file(model / "model.safetensors")
    backend = TorchBackend(model, config(method=method, learning_rate=3e-3), StartPoint())
    start = tensors(backend)
    assert start.keys() <= before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in start.items())
    backend.step([make()], 0, never)
    after = tensors(backend)
    changed = {name for name in after if not torch.equal(after[name], start[name])}
    assert "model.layers.1.mlp.down_proj.weight" in changed
    assert ("model.embed_tokens.weight" in after) == (method == "full")
    published = list(backend.tensors())
    assert all(isinstance(tensor, Adapted) for tensor in published) == (method == "lora")
    for name, _, shape, data in published if method == "lora" else ():
        layer = backend._model.get_submodule(name.removesuffix(".weight"))
        merged = before[name].double() + layer.scaling["default"] * (
            layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double())
        rounded = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(shape)
        assert (rounded.double() - merged).abs().max() <= 2**-8 * merged.abs().max(), name
    # The published weights, loaded into a plain model, compute what the trainer computes.
    plain = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    plain.load_state_dict(after, strict=False)
    ids = torch.tensor([PROMPT + RESPONSE])
    with torch.no_grad():
        expected = backend._model(ids).logits.log_softmax(-1)
        difference = (plain(ids).logits.log_softmax(-1) - expected).abs()
    assert difference.mean() < 0.03  # bf16's rounding


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_other_families_are_computed_with_all_that_they_have(tmp_path: Path, family: str) -> None:
    """Biases and norms of heads included."""
    make_family(tmp_path, family)
    backend = TorchBackend(tmp_path, config(method="full"), StartPoint())
    assert {name for name, *_ in backend.tensors()} == load_file(tmp_path / "model.safetensors").keys()
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        ids = torch.tensor([PROMPT])
        assert torch.allclose(backend._model(ids).logits, expected(ids).logits, atol=1e-5)


def test_lora_leaves_the_base_model_alone(model: Path) -> None:
    backend = TorchBackend(model, config(), StartPoint())
    ids, places = map(torch.tensor, make().text())
    before = backend._frozen_hidden(ids, places)
    backend.step([make()], 0, never)
    assert torch.equal(backend._frozen_hidden(ids, places), before)
    assert not torch.equal(backend_torch._hidden(backend._model, ids, places), before)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(model: Path, tmp_path: Path, method: str) -> None:
    settings = config(method=method)
    backend = TorchBackend(model, settings, StartPoint())
    backend.step([make()], 0, never)
    backend.save(tmp_path)
    resumed = create(model, settings, StartPoint(tmp_path / WEIGHTS_FILE, tmp_path / OPTIMIZER_FILE))
    fresh = create(model, settings, StartPoint(tmp_path / WEIGHTS_FILE))
    results = [b.step([make(score=1)], 1, never) for b in (backend, resumed, fresh)]
    assert results[0]["loss"] == results[1]["loss"] == results[2]["loss"]
    assert all(torch.equal(a, b) for a, b in zip(tensors(backend).values(), tensors(resumed).values(), strict=True))
    # A fresh optimizer takes another step from the same place.
    assert any(not torch.equal(a, b) for a, b in zip(
        tensors(backend).values(), tensors(fresh).values(), strict=True))


def test_full_goes_on_from_a_published_version_too(model: Path) -> None:
    backend = create(model, config(method="full"), StartPoint(model / "model.safetensors"))
    assert backend.step([make()], 0, never)["kl"] == pytest.approx(0, abs=1e-6)


def test_a_checkpoint_of_another_rank_does_not_fit(model: Path, tmp_path: Path) -> None:
    TorchBackend(model, config(lora_rank=4), StartPoint()).save(tmp_path)
    with pytest.raises(ValueError, match=r"no fitting .*lora_A"):
        create(model, config(lora_rank=8), StartPoint(tmp_path / WEIGHTS_FILE))


@pytest.fixture
def backend(model: Path) -> Iterator[TorchBackend]:
    """A backend that must be as it was when the test is over."""
    backend = TorchBackend(model, config(), StartPoint())
    before = {name: p.detach().clone() for name, p in backend._parameters.items()}
    yield backend
    assert all(torch.equal(p, before[name]) for name, p in backend._parameters.items())
    assert all(p.grad is None for p in backend._parameters.values())


def test_a_loss_that_is_not_a_number_is_no_step(backend: TorchBackend) -> None:
    with pytest.raises(AbnormalStep, match="the loss is nan"):
        backend.step([make(), replace(make(), behaviour=[math.nan] * len(RESPONSE))], 0, never)


def test_an_exploding_gradient_is_no_step(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "EXPLODING", 1e-9)
    with pytest.raises(AbnormalStep, match=r"the gradient's norm is .*, the limit is 1e-09"):
        backend.step([make()], 0, never)


def test_a_record_that_is_far_off_weighs_no_more_than_the_cap(model: Path) -> None:
    metrics = TorchBackend(model, config(), StartPoint()).step(
        [replace(make(), behaviour=[-1e4] * len(RESPONSE))], 0, never)
    assert metrics["mean_ratio"] == pytest.approx(2, rel=1e-2)
    assert metrics["truncated"] == 1
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["logprob_diff_mean"] > 9000


@pytest.mark.parametrize("pieces", [7, 128])
def test_how_far_a_step_went_is_measured(model: Path, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    monkeypatch.setattr(objective, "LOGIT_ROWS", pieces)
    backend = TorchBackend(model, config(), StartPoint())
    examples = [make("a"), make("b", 1, hint=False, response=encode("fine"))]

    def own() -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([losses.token_logprobs(
                logprob_rows(backend._model, e.prompt_ids, e.response_ids), torch.tensor(e.response_ids))
                for e in examples])

    before = own()
    metrics = backend.step(examples, 0, never)
    ratio = (before + 4.5).exp().clamp(max=2)
    assert metrics["step_kl"] == pytest.approx((ratio * losses.kl_k3(before, own())).mean().item(), rel=1e-3)
    assert metrics["step_kl"] > 0


def test_a_step_that_goes_too_far_is_not_kept(model: Path) -> None:
    with pytest.raises(AbnormalStep, match=r"the policy moved .* nats per token, max_kl is 1e-06"):
        TorchBackend(model, config(max_kl=1e-6), StartPoint()).step([make()], 0, never)


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("score", [1, -1])
def test_a_long_step_is_shortened_along_its_way(model: Path, tmp_path: Path, method: str, score: int) -> None:
    first = TorchBackend(model, config(method=method), StartPoint())
    first.step([make()], 0, never)
    first.save(tmp_path)

    def second(max_kl: float) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        backend = create(model, config(method=method, max_kl=max_kl),
                         StartPoint(tmp_path / WEIGHTS_FILE, tmp_path / OPTIMIZER_FILE))
        assert isinstance(backend, TorchBackend)
        metrics = backend.step([make("b", score)], 1, never)
        return metrics, {name: p.detach() - first._parameters[name].detach()
                         for name, p in backend._parameters.items()}

    whole, way = second(99)
    limit = whole["step_kl"] / 10
    short, shorter_way = second(limit)
    assert whole["step_share"] == 1
    assert 0.5 * limit < short["step_kl"] <= limit
    assert 0.1 < short["step_share"] < 0.5
    for name, value in shorter_way.items():
        assert torch.allclose(value, way[name] * short["step_share"], atol=1e-6), name
    # What the figures say is measured where the step ended.
    changes = [abs(figures["logprob_after"] - figures["logprob_before"]) for figures in (short, whole)]
    assert changes[0] < 0.8 * changes[1]


def test_a_step_can_be_given_up(backend: TorchBackend) -> None:
    answers = iter([False, True])
    with pytest.raises(Stopped):
        backend.step([make(), make()], 0, lambda: next(answers))


def test_weights_that_are_not_numbers_are_no_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TorchBackend(model, config(), StartPoint())
    monkeypatch.setattr(backend._optimizer, "step",
                        lambda: [p.data.fill_(math.inf) for p in backend._parameters.values()])
    with pytest.raises(AbnormalStep, match="weights are NaN or infinite"):
        backend.step([make()], 0, never)


def test_the_method_decides_the_default_rate() -> None:
    assert learning_rate(TrainerConfig()) == 1e-3
    assert learning_rate(TrainerConfig(method="full")) == 1e-4
    assert learning_rate(TrainerConfig(learning_rate=3e-5)) == 3e-5


@pytest.mark.parametrize(("algorithm", "figure"), [
    ("combine", "distillation"), ("opd_full", "distillation"), ("binary_rl", "reward_loss")])
def test_it_learns(model: Path, algorithm: str, figure: str) -> None:
    """What was complained about becomes less likely, or nearer to what the teacher would say."""
    settings = config(algorithm=algorithm, learning_rate=3e-3, kl_weight=0.0, reward_weight=0.01)
    backend = TorchBackend(model, settings, StartPoint())
    figures = [backend.step([make()], 0, never)[figure] for _ in range(6)]
    assert figures[-1] < figures[0] * 0.9
