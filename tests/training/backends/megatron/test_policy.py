"""A group of one rank, in this process: the same step as the torch back end's, for each family of models."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from openclaw_rl.training.algorithms import objective
from openclaw_rl.training.algorithms.example import AbnormalStep
from openclaw_rl.training.backends import evaluate
from openclaw_rl.training.backends import torch as backend_torch
from openclaw_rl.training.backends.interface import OPTIMIZER_FOLDER, WEIGHTS_FOLDER, StartPoint, Stopped
from openclaw_rl.training.backends.megatron.layout import Layout
from openclaw_rl.training.backends.torch import TorchBackend
from tests.training.backends.megatron.families import FAMILIES, PROMPTS, examples, make, never, settings

pytestmark = pytest.mark.slow

ALONE = Layout(1, 1, 1)


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_torch, "compute_dtype", lambda device: torch.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("model"), "llama")


def policy(folder: Path, start: StartPoint | None = None, **changes: object) -> Any:
    from openclaw_rl.training.backends.megatron.policy import MegatronPolicy

    return MegatronPolicy(folder, settings(**changes), ALONE, start or StartPoint())


def exported(backend: Any, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.frombuffer(bytearray(data), dtype=like[name].dtype).reshape(shape)
            for name, _, shape, data in backend.tensors()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_that_of_the_torch_back_end(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "LOGIT_ROWS", 7)
    make(tmp_path, family)
    base = load_file(tmp_path / "model.safetensors")
    rate = 1e-2  # that bf16 shows
    ours, theirs = policy(tmp_path, learning_rate=rate), TorchBackend(
        tmp_path, settings(learning_rate=rate), StartPoint())
    before = exported(ours, base)
    assert before.keys() == base.keys()
    assert all(torch.equal(before[name], base[name]) for name in base)

    from openclaw_rl.training.backends.megatron.cpu import redirected

    eager = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([examples()[0].prompt_ids])
    with redirected(torch.device("cpu")), torch.no_grad():
        [hidden] = ours._read(ours._frozen, [(ids[0].tolist(), list(range(ids.shape[1] - 1)))])
        assert torch.allclose(ours._frozen.logits(hidden), eager(ids).logits[0, :-1], atol=2e-5)

    metrics, expected = (backend.step(examples(), 0, never) for backend in (ours, theirs))
    assert metrics.keys() == expected.keys()
    for key in metrics.keys() - {"seconds"}:
        assert metrics[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    after, expected_after = exported(ours, base), exported(theirs, base)
    for name in base:
        # Adam's first step is the gradient's sign: entries whose gradient is nothing but rounding may differ.
        assert torch.isclose(after[name].float(), expected_after[name].float(), rtol=1e-2).float().mean() > 0.99, name
        assert not torch.equal(after[name], base[name]), name


@pytest.mark.parametrize("algorithm", ["binary_rl", "opd", "opd_full"])
def test_other_losses_are_the_same_too(model: Path, algorithm: str) -> None:
    metrics, expected = (backend.step(examples(3), 0, never) for backend in (
        policy(model, algorithm=algorithm), TorchBackend(model, settings(algorithm=algorithm), StartPoint())))
    for key in metrics.keys() - {"seconds"}:
        assert metrics[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key


def test_replay_and_a_shortened_step_are_the_same_too(model: Path) -> None:
    batch = [*examples(3), replace(examples(1)[0], replayed=True)]
    limit = TorchBackend(model, settings(), StartPoint()).step(batch, 0, never)["step_kl"] / 10
    metrics, expected = (backend.step(batch, 0, never) for backend in (
        policy(model, max_kl=limit), TorchBackend(model, settings(max_kl=limit), StartPoint())))
    assert 0 < expected["step_share"] < 0.5 and expected["step_kl"] <= limit
    for key in metrics.keys() - {"seconds"}:
        assert metrics[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-6), key


def test_activations_may_be_computed_twice(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw_rl.training.backends.megatron import policy as module

    kept = policy(model).step(examples(), 0, never)
    monkeypatch.setattr(module, "CHECKPOINT_TOKENS", 30)
    again = policy(model).step(examples(), 0, never)
    assert {**again, "seconds": 0} == {**kept, "seconds": 0}


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(model: Path, tmp_path: Path) -> None:
    backend = policy(model)
    backend.step(examples(), 0, never)
    backend.save(tmp_path)
    resumed = policy(model, StartPoint(tmp_path / WEIGHTS_FOLDER, tmp_path / OPTIMIZER_FOLDER))
    fresh = policy(model, StartPoint(tmp_path / WEIGHTS_FOLDER))
    results = [b.step(examples(3), 1, never) for b in (backend, resumed, fresh)]
    assert results[0]["loss"] == results[1]["loss"] == results[2]["loss"]
    values = [b._optimizer.masters for b in (backend, resumed, fresh)]
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
    # A fresh optimizer takes another step from the same place.
    assert any(not torch.equal(values[0][name], values[2][name]) for name in values[0])


def test_it_goes_on_from_a_published_version(model: Path) -> None:
    assert policy(model, StartPoint(model / "model.safetensors")).step(examples(), 0, never)["kl"] == pytest.approx(
        0, abs=1e-6)


def test_a_checkpoint_of_another_model_does_not_fit(model: Path, tmp_path: Path) -> None:
    policy(model).save(tmp_path)
    other = make(tmp_path / "other", "qwen2")
    with pytest.raises(ValueError, match=r"weights: does not hold the shards of this model: .*bias"):
        policy(other, StartPoint(tmp_path / WEIGHTS_FOLDER))
    with pytest.raises(ValueError, match=r"model.safetensors: tensor .*bias is missing"):
        policy(other, StartPoint(model / "model.safetensors"))


def test_a_full_disk_is_told(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    backend = policy(model)
    monkeypatch.setattr(filesystem_async, "_write_item", full)
    with pytest.raises(OSError, match=r"weights: the shards can't be written: .*No space left on device"):
        backend.save(tmp_path)


def test_it_says_what_it_cannot_do(model: Path) -> None:
    from openclaw_rl.training.backends.megatron.policy import MegatronPolicy

    with pytest.raises(ValueError, match="method: lora needs the torch back end"):
        policy(model, method="lora")
    with pytest.raises(ValueError, match="tensor 2 x pipeline 1 x data 1 needs 2 ranks, 1 are there"):
        MegatronPolicy(model, settings(), Layout(2, 1, 1), StartPoint())


def test_abnormal_steps_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = replace(examples()[0], behaviour=[math.nan] * len(examples()[0].response_ids))
    backend = policy(model, max_kl=1e-6)
    before = {name: p.detach().clone() for name, p in backend._optimizer.masters.items()}
    with pytest.raises(AbnormalStep, match="the loss is nan"):
        backend.step([examples()[1], nan], 0, never)
    answers = iter([False, True])
    with pytest.raises(Stopped):
        backend.step(examples(), 0, lambda: next(answers))
    with monkeypatch.context() as patch, pytest.raises(AbnormalStep, match=r"the gradient's norm is .* is 1e-09"):
        patch.setattr(objective, "EXPLODING", 1e-9)
        backend.step(examples(), 0, never)
    assert all(torch.equal(p, before[name]) for name, p in backend._optimizer.masters.items())
    with pytest.raises(AbnormalStep, match=r"the policy moved .* nats per token, max_kl is 1e-06"):
        backend.step(examples(), 0, never)
    backend = policy(model)
    monkeypatch.setattr(backend._optimizer, "step", lambda *_: [
        p.data.fill_(math.inf) for p in backend._optimizer.masters.values()])
    with pytest.raises(AbnormalStep, match="weights are NaN or infinite"):
        backend.step(examples(), 0, never)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_it_answers_as_the_torch_back_end_does(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "_BATCH", 2)  # two batches, of different lengths
    make(tmp_path, family)
    ours, theirs = policy(tmp_path), TorchBackend(tmp_path, settings(), StartPoint())
    first = ours.evaluate(PROMPTS, 12, never)
    for backend in (ours, theirs):
        backend.step(examples(), 0, never)
    for base in (False, True):
        found, expected = (b.evaluate(PROMPTS, 12, never, base=base) for b in (ours, theirs))
        assert found.answers == expected.answers
        assert found.perplexity == pytest.approx(expected.perplexity, rel=1e-3)
        assert (found == first) == base
    answers = iter([False, True])
    with pytest.raises(Stopped):
        ours.evaluate(PROMPTS, 12, lambda: next(answers))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(model: Path) -> None:
    """NCCL, bf16, and fp32 masters. Run alone: the process group of this file is gloo's."""
    dist.destroy_process_group()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1)
    backend = policy(model, device="cuda")
    base = load_file(model / "model.safetensors")
    assert all(torch.equal(tensor, base[name]) for name, tensor in exported(backend, base).items())
    metrics = backend.step(examples(), 0, never)
    expected = TorchBackend(model, settings(), StartPoint()).step(examples(), 0, never)
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=0.05)
    assert backend.evaluate(PROMPTS, 4, never).perplexity > 1
