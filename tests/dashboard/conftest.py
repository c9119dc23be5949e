"""The browser and the stand-ins for the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.home import Home

from .fakes import FakeMesh
from .rig import browse, chromium  # noqa: F401


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


@pytest.fixture
def mesh(home: Home) -> Iterator[FakeMesh]:
    """Four stand-ins that answer."""
    with FakeMesh(home) as made:
        made.start()
        yield made
