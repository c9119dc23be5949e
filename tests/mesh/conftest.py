"""The real mesh: four processes, a real model, started and stopped by the real command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.mesh import Mesh, running_mesh
from tests.protos.generators import bin_folder
from tests.support.models import small_model
from tests.support.required import left_out


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one in the embedded one's place."""
    return small_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="package")
def mesh(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One mesh for all tests of this folder. Each leaves it as well as it found it."""
    with running_mesh(tmp_path_factory.mktemp("mesh") / "home", model) as mesh:
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
