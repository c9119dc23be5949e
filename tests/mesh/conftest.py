"""The real mesh: four processes, the embedded model, started and stopped by the real command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.runtime.home import Home
from tests.mesh.mesh import Mesh, running_mesh
from tests.protos.generators import bin_folder
from tests.support.required import left_out


@pytest.fixture(scope="session")
def models() -> Path:
    """Folder of the converted model, kept between runs since making it takes a while."""
    from openclaw_rl.models.prepare import ensure_model

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openclaw-rl-tools/models-home"
    return ensure_model(EMBEDDED_MODEL, Home(cache).create())


@pytest.fixture(scope="package")
def mesh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One mesh for all tests of this folder. Each leaves it as well as it found it."""
    with running_mesh(tmp_path_factory.mktemp("mesh") / "home", models) as mesh:
        yield mesh


@pytest.fixture(scope="session")
def grpcurl() -> str:
    """The real grpcurl; without it the tests that call it are left out, or fail when nothing may be."""
    for name in ("grpcurl", str(Path.home() / ".cache/openclaw-rl-tools/bin/grpcurl"),
                 str(Path(sys.prefix) / "tools/grpcurl")):
        try:
            subprocess.run([name, "-version"], capture_output=True, check=True)
            return name
        except OSError:
            continue
    left_out("grpcurl is missing; tools/outside-tools installs it")


@pytest.fixture(scope="session")
def buf() -> str:
    """The real buf, which tools/generate installs."""
    return str(bin_folder() / "buf")
