"""Our own four conform: the policy server with an API model, and with the embedded engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.reports import conforming
from tests.support.models import small_model

#: What an own server may leave out, over plain text.
_ALLOWED = ("needs --certs", "API model", "the engine takes weights")
#: What a model with weights is asked beside a chat; the rest is the same code as an API model's.
_WEIGHTS = ("weights.serving", "weights.refuses.tensor_digest", "weights.refuses.content", "weights.resume",
            "weights.sparse", "weights.low_rank", "policy.turns", "policy.chat.*", "policy.generate*", "policy.score*",
            "policy.fetch", "policy.http*")

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_ours_conform(tmp_path: Path) -> None:
    reports = conforming(tmp_path, "environment", "judge", "trainer", "policy_api", jobs=3)
    for server, report in reports.items():
        assert len(report.checks) > 60, server
        assert not report.warned, server
        needless = {id: why for id, why in report.skipped.items() if not any(word in why for word in _ALLOWED)}
        assert not needless, (server, needless)


@pytest.mark.timeout(600)
def test_the_embedded_engine_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path))  # whose model the server takes
    small_model(tmp_path)
    only = [option for id in _WEIGHTS for option in ("--only", id if "*" in id else f"{id[:-1]}?")]
    report = conforming(tmp_path, "policy", jobs=1, options=tuple(only))["policy"]
    assert not report.skipped and not report.warned and len(report.checks) > 25
