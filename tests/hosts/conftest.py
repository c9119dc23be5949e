"""Four hosts in namespaces; without root or a tool for them these tests are left out, or fail if none may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.rig import Rig, why_not
from tests.support.required import left_out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.mesh)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def hosts_possible() -> None:
    if reason := why_not():
        left_out(reason)


@pytest.fixture(scope="module")
def rig(hosts_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Four hosts without anything on them."""
    with Rig(tmp_path_factory.mktemp("rig")) as rig:
        yield rig
