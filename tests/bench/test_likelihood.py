"""Figures by log-probability, on a model of random weights: what they must be for the base model itself, and for one
that was fine-tuned on the right answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models import small_model
from tools.bench.learning import finetune, items
from tools.bench.learning.likelihood import Likelihood

pytestmark = pytest.mark.slow


def test_a_model_that_saw_the_right_answers_prefers_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, questions = small_model(tmp_path), items.held_out(4)
    likelihood = Likelihood(base, questions, "", [item.right for item in questions], texts=1)
    before = likelihood.measure(base)
    assert before.distance.mean == pytest.approx(0, abs=1e-4)  # the teacher without a hint is the base model
    assert 0.8 < before.neutral["en"] / before.neutral["zh"] < 1.25  # random weights: about the vocabulary's size
    monkeypatch.setattr(finetune, "RATE", 1e-2)
    monkeypatch.setattr(finetune, "EPOCHS", 6)
    finetune.fine_tune(base, tmp_path / "tuned", questions)
    after = likelihood.measure(tmp_path / "tuned")
    assert after.margin.mean > before.margin.mean + 0.5 and after.pairs.mean > 0.9
    assert after.distance.mean > 0.05
