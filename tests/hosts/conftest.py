"""Four hosts in namespaces; without root or a tool for them these tests are left out, or fail if none may be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.rig import Rig, why_not
from tests.support.required import left_out


@pytest.fixture(scope="session")
def hosts_possible() -> None:
    if reason := why_not():
        left_out(reason)


@pytest.fixture(scope="module")
def rig(hosts_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Four hosts without anything on them."""
    with Rig(tmp_path_factory.mktemp("rig")) as rig:
        yield rig
