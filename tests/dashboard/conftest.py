"""The browser and the stand-ins for the mesh."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.runtime.home import Home
from tests.dashboard.fakes import FakeMesh
from tests.dashboard.pages_mesh import PagesMesh
from tests.dashboard.rig import browse  # noqa: F401
from tests.support.browser import chromium  # noqa: F401


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


@pytest.fixture
def mesh(home: Home) -> Iterator[FakeMesh]:
    """Four stand-ins that answer."""
    with FakeMesh(home) as made:
        made.start()
        yield made


@pytest.fixture
def pages(home: Home) -> Iterator[PagesMesh]:
    """Four stand-ins with turns, versions, environments, episodes and logs."""
    with PagesMesh(home) as made:
        made.start()
        yield made


@pytest.fixture
async def clients(pages: PagesMesh) -> AsyncIterator[MeshData]:
    """Clients of these."""
    made = MeshData(pages.home)
    yield made
    await made.close()
