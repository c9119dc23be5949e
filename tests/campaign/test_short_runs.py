"""Short forms of the campaign's runs, against a real mesh with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mesh.in_process import tiny_model
from tools.campaign import harms, kills
from tools.campaign.talk import Outcome, Talk

pytestmark = [pytest.mark.slow, pytest.mark.mesh, pytest.mark.timeout(900)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def done(talk: Talk) -> Outcome:
    outcome = talk.once()
    assert not outcome.table.failed, outcome.table.text()
    assert not outcome.notes, outcome.notes
    return outcome


def test_kills_at_moments_of_each_component(tmp_path: Path, model: Path) -> None:
    """One failpoint of the trainer, of the policy server, of forgetting; all ten are in the long run."""
    points = ("training.commit", "serving.activation", "forgetting.erase")
    outcome = done(kills.Campaign(kills.Options(tmp_path / "run", seed=1, failpoints=points, users=3, model=model)))
    assert set(outcome.killed) == set(points)
    assert outcome.table.rows["answered turns"]["checked"] > 0
    assert outcome.table.rows["turns in versions"]["checked"] > 0


def test_little_memory_and_damage_while_up(tmp_path: Path, model: Path) -> None:
    outcome = done(harms.Harms(harms.Options(
        tmp_path / "run", seed=1, kinds=("little memory", "damage while up"), components=("env_server",),
        damages=(("prm_judge", "store"),), users=3, model=model)))
    rows = outcome.table.rows
    for row in ("little memory", "damage while up", "losses by damage are told"):
        assert rows[row]["checked"] == 1
