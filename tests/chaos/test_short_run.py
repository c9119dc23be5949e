"""A short run of the real thing: some kills, and each other fault once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.models import small_model
from tools.chaos.plan import KINDS
from tools.chaos.run import Options, Run

SEED = 3


@pytest.mark.slow
@pytest.mark.mesh
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_trained_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))  # whose model the run takes
    small_model(tmp_path)
    run = Run(Options(tmp_path / "run", SEED, kills=8, faults=KINDS, max_staleness=4))
    report = None
    try:
        report = run.run()
        assert not report.violations, report.text()
        facts = report.facts
        assert facts["kills"] >= 8 and set(facts["faults"]) == set(KINDS), "all of the plan was done"
        assert facts["requests"]["complete"] >= 10 and facts["fates"]["trained"] > 0 and facts["active_version"] > 0
    finally:
        run.close(keep=report is None or bool(report.violations))
