"""The four servers in other languages keep the contract, as the kit sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.rpc.auth import ca
from openclaw_rl.rpc.auth.certificates import ROLES
from tests.conformance.reports import conforming
from tests.mesh.languages.stacks import build

_SERVERS = {"go": "judge_go", "typescript": "environment_typescript", "java": "trainer_java", "rust": "policy_rust"}
#: What one may leave out over plain text, and why.
_ALLOWED = ("needs --certs", "not implemented here, which the contract allows", "API model", "the engine takes weights")


@pytest.mark.timeout(1200)
def test_they_conform(tmp_path: Path) -> None:
    for language in _SERVERS:
        build(language)
    reports = conforming(tmp_path, *_SERVERS.values(), jobs=4)
    for server, report in reports.items():
        assert len(report.checks) > 60 and not report.warned, (server, report.warned)
        needless = {id: why for id, why in report.skipped.items() if not any(word in why for word in _ALLOWED)}
        assert not needless, (server, needless)


def test_over_tls(tmp_path: Path) -> None:
    """The kit has the certificates of the neighbours, as caller and as the one that is called."""
    build("go")
    certs = tmp_path / "certs"
    ca.make_authority(certs)
    for role in ROLES:
        ca.issue(certs, role)
    only = ("component.secure.*", "ring.acks.*", "onward.arrives", "component.drain.streams")
    reports = conforming(tmp_path, "judge", "judge_go", jobs=2, options=(
        "--certs", str(certs), *(option for id in only for option in ("--only", id))))
    for report in reports.values():
        assert not report.skipped and not report.warned and len(report.checks) > 9
