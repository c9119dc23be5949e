"""The four servers in other languages keep the contract, as the kit sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.reports import conforming

from .stacks import BUILDS, needs, shell

_SERVERS = {"go": "judge_go", "typescript": "environment_typescript", "java": "trainer_java", "rust": "policy_rust"}
#: What one may leave out over plain text, and why.
_ALLOWED = ("needs --certs", "not implemented here, which the contract allows", "API model", "the engine takes weights")


@pytest.mark.timeout(1200)
def test_they_conform(tmp_path: Path) -> None:
    for language in _SERVERS:
        needs(language)
        for folder, command in BUILDS[language][0]:
            shell(folder, command)
    reports = conforming(tmp_path, *_SERVERS.values(), jobs=4)
    for server, report in reports.items():
        assert len(report.checks) > 60 and not report.warned, (server, report.warned)
        needless = {id: why for id, why in report.skipped.items() if not any(word in why for word in _ALLOWED)}
        assert not needless, (server, needless)
