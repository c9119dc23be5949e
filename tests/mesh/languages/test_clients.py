"""Each language's own checks and tests, against one running mesh."""

from __future__ import annotations

import pytest

from tests.mesh.languages.stacks import CHECKS, build, shell


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("language", CHECKS)
def test_checks_and_tests_pass(language: str, peers: dict[str, str]) -> None:
    build(language)
    for folder, command in CHECKS[language][1]:
        shell(folder, command, peers)
