"""megatron-core against the torch back end on the embedded model: loss, gradients, and the weights behind a step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from openclaw_rl.config import EMBEDDED_MODEL, TrainerConfig
from openclaw_rl.models.memory import free_memory
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.backends import torch as backend_torch
from openclaw_rl.training.backends.interface import StartPoint
from openclaw_rl.training.backends.megatron.layout import Layout
from openclaw_rl.training.backends.torch import TorchBackend
from openclaw_rl.v1 import turn_pb2
from tests.training.backends.megatron.families import never

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PADDING = 2  # <|im_end|>, its config.json says
ASKED = (("Why is the sky blue?", "Air scatters the short waves of blue light more than those of red light.", 1),
         ("What is an atom?", "1. **Atoms** are the small parts that all things are made of.", -1),
         ("How do bees make honey?", "They dry nectar in their hive.", 0))


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()
    free_memory()


def samples(folder: Path) -> list[Example]:
    """Turns of 30 to 60 tokens; those that were judged have a hint."""
    template = ChatTemplate(folder)
    found = []
    for number, (asked, said, score) in enumerate(ASKED):
        prompt, hinted = (template.chat([turn_pb2.ChatMessage(role="user", content=text)]).ids
                          for text in (asked, f"{asked}\n\nAnswer in one plain sentence."))
        response = template.encode(said)
        found.append(Example(str(number), prompt, response, [-2.0] * len(response), [0] * len(response), score,
                             "hint" if score else "", hinted if score else None))
    return found


def test_a_step_on_the_embedded_model(_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from openclaw_rl.training.backends.megatron.policy import MegatronPolicy

    monkeypatch.setattr(backend_torch, "compute_dtype", lambda device: torch.float32)
    folder = ensure_model(EMBEDDED_MODEL, Home.default())
    config = TrainerConfig(method="full", device="cpu", reward_weight=0.5, kl_weight=0.1, learning_rate=1e-5,
                           max_grad_norm=100)  # nothing is clipped
    examples = samples(folder)

    expected, expected_gradients, after = on_torch(folder, config, examples)
    ours = MegatronPolicy(folder, config, Layout(1, 1, 1), StartPoint())
    differences: dict[str, float] = {}
    do = ours._optimizer.step

    def record(norm: float, limit: float) -> None:
        gradients = {name: p.main_grad for name, p in ours._optimizer._parameters.items()}  # type: ignore[attr-defined]
        differences.update({part: difference(part, value, expected_gradients[part])
                            for part, value in split(ours, gradients)})
        do(norm, limit)

    monkeypatch.setattr(ours._optimizer, "step", record)
    metrics = ours.step(examples, 0, never)
    worst = max(differences, key=differences.__getitem__)
    print(f"the gradient of {worst} differs by {differences[worst]:.2g} of its norm, the loss by "
          f"{abs(metrics['loss'] / expected['loss'] - 1):.2g}")
    assert differences[worst] < 1e-4
    # PyTorch adds up squares in fp32, which costs a ten-thousandth over an embedding.
    tolerances = {"loss": 1e-4, "distillation": 1e-4, "reward_loss": 1e-4, "logprob_before": 1e-4, "grad_norm": 1e-3,
                  "step_kl": 1e-2}
    for name, tolerance in tolerances.items():
        assert metrics[name] == pytest.approx(expected[name], rel=tolerance), name
    for part, value in split(ours, ours._optimizer.masters):
        # Adam's first step is the gradient's sign: entries whose gradient is nothing but rounding may differ.
        assert ((value - after[part]).abs() < 1e-6).float().mean() > 0.98, part


def difference(part: str, value: torch.Tensor, expected: torch.Tensor) -> float:
    """Between gradients of a tensor, relative to their norm."""
    apart = value - expected
    if part == "model.embed_tokens.weight":
        # transformers takes the end of a message for padding, and keeps what is learned of reading it from its row.
        apart[PADDING] = 0
    return float(apart.norm() / expected.norm())


def on_torch(folder: Path, config: TrainerConfig, examples: list[Example],
             ) -> tuple[dict[str, float], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Figures, gradients, and the weights behind the step."""
    backend = TorchBackend(folder, config, StartPoint())
    gradients: dict[str, torch.Tensor] = {}
    step = backend._optimizer.step

    def record() -> None:
        gradients.update({name: p.grad.clone() for name, p in backend._parameters.items() if p.grad is not None})
        step()

    backend._optimizer.step = record  # type: ignore[method-assign, assignment]
    metrics = backend.step(examples, 0, never)
    return metrics, gradients, {name: p.detach() for name, p in backend._parameters.items()}


def split(ours: object, values: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """By Hugging Face's names."""
    for name, rule in ours._rules.items():  # type: ignore[attr-defined]
        for part, piece in zip(rule.parts, rule.split(values[name].detach(), 1), strict=True):
            yield part.name, piece
