"""Tensor, pipeline and data parallel, two real ranks each over gloo: the losses, gradients and weights of one rank."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from openclaw_rl.training.backends.interface import OPTIMIZER_FOLDER, WEIGHTS_FOLDER, StartPoint
from openclaw_rl.training.backends.megatron.layout import Layout
from openclaw_rl.training.backends.torch import TorchBackend
from tests.training.backends.megatron.families import PROMPTS, episodes, examples, make, never, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAMILIES = ("llama", "qwen2", "qwen3")
LAYOUTS = ("tensor", "pipeline", "data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What one rank does, in `alone`, and what two ranks wrote."""
    folder = tmp_path_factory.mktemp("layouts")
    for family in FAMILIES:
        make(folder / family, family, torch.float32)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'alone'}", rank=0, world_size=1)
    try:
        from tests.training.backends.megatron.ranks import collected, tried

        for family in FAMILIES:
            results = folder / "results" / f"{family}-alone"
            results.mkdir(parents=True)
            policy = alone(folder / family)
            first, gradients = tried(policy, 0)
            policy.save(results)
            second, _ = tried(policy, 1)
            evaluation = policy.evaluate(PROMPTS, 12, never)
            yielded = collected(policy.tensors())
            on_episodes = policy.step(episodes(), 1, never)
            ALONE[family] = {"first": first, "second": second, "gradients": gradients, "weights": yielded,
                             "episodes": on_episodes, "answers": [a.ids for a in evaluation.answers],
                             "perplexity": evaluation.perplexity}
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-m", "tests.training.backends.megatron.ranks",
                                   str(folder), str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for rank in range(2)]
        try:
            said = [rank.communicate(timeout=500)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(text[-3000:] for text in said)
        yield folder
    finally:
        dist.destroy_process_group()


ALONE: dict[str, Any] = {}


def alone(model: Path, start: StartPoint | None = None) -> Any:
    from openclaw_rl.training.backends.megatron.policy import MegatronPolicy

    return MegatronPolicy(model, settings(), Layout(1, 1, 1), start or StartPoint())


def same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    for key in found.keys() - {"seconds"}:
        assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layout_changes_nothing(folder: Path, family: str, layout: str) -> None:
    results, expected = folder / "results" / f"{family}-{layout}", ALONE[family]
    report = json.loads((results / "report.json").read_text())
    same(report["first"], expected["first"])
    gradients = load_file(results / "gradients.safetensors")
    assert gradients.keys() == expected["gradients"].keys() == expected["weights"].keys()
    for name, gradient in expected["gradients"].items():
        assert (gradients[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7, name
    same(report["second"], expected["second"])
    weights = load_file(results / "weights.safetensors")
    for name, weight in expected["weights"].items():
        # Adam's first step is the gradient's sign: entries whose gradient is nothing but rounding may differ.
        assert ((weights[name] - weight).abs() < 1e-6).float().mean() > 0.98, name
    assert report["answers"] == expected["answers"]
    assert report["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layout_changes_nothing_of_a_step_on_episodes(folder: Path, family: str, layout: str) -> None:
    """Five texts of seven turns, which two replicas can't share evenly."""
    report = json.loads((folder / "results" / f"{family}-{layout}" / "report.json").read_text())
    same(report["episodes"], ALONE[family]["episodes"])
    assert report["episodes"]["samples"] == 7
    assert report["episodes"]["entropy"] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_on_episodes_is_that_of_the_torch_back_end(folder: Path, family: str, monkeypatch: pytest.MonkeyPatch
                                                          ) -> None:
    # Both compare with the base model in fp32, also on a CPU that computes in bf16.
    monkeypatch.setattr("openclaw_rl.training.backends.torch.compute_dtype", lambda _: torch.float32)
    ours, theirs = alone(folder / family), TorchBackend(folder / family, settings(), StartPoint())
    for version in range(2):
        found, expected = (backend.step(episodes(), version, never) for backend in (ours, theirs))
        assert found.keys() == expected.keys()
        for name in found.keys() - {"seconds"}:
            assert found[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-5), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_act_together(folder: Path, layout: str) -> None:
    report = json.loads((folder / "results" / f"llama-{layout}" / "report.json").read_text())
    assert (report["stopped"], report["evaluation stopped"], report["abnormal"]) == (2, 2, 2)
    assert report["one sample"]["samples"] == 1  # one of the replicas has none
    assert report["one sample"]["grad_norm"] > 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_tensor_is_gathered_at_a_time(folder: Path, family: str, layout: str) -> None:
    report = json.loads((folder / "results" / f"{family}-{layout}" / "report.json").read_text())
    sizes = [weight.nbytes for weight in ALONE[family]["weights"].values()]
    # The whole tensor, and the rank's or the received part of it.
    assert 0 < report["peak"] <= 2 * max(sizes) < sum(sizes) / 2


@pytest.mark.parametrize("move", ["tensor to pipeline", "pipeline to data", "data to tensor", "alone to tensor"])
def test_another_layout_goes_on(folder: Path, move: str) -> None:
    figures = json.loads((folder / "results" / "resumed.json").read_text())[move]
    same(figures, ALONE["llama"]["second"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_rank_goes_on(folder: Path, layout: str) -> None:
    start = folder / "results" / f"llama-{layout}"
    policy = alone(folder / "llama", StartPoint(start / WEIGHTS_FOLDER, start / OPTIMIZER_FOLDER))
    same(policy.step(examples(), 1, never), ALONE["llama"]["second"])
