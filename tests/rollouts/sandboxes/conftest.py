from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap
from openclaw_rl.rollouts.sandboxes.interface import Sandbox
from tests.rollouts.sandboxes import engine, escapes
from tests.support.required import left_out


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, which tmp_path isn't."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def bubblewrap() -> Bubblewrap:
    if shutil.which("bwrap") is None:
        left_out("bubblewrap is missing: tools/outside-tools installs it")
    return escapes.backend()


@pytest.fixture
async def sandbox(bubblewrap: Bubblewrap) -> AsyncIterator[Sandbox]:
    sandbox = await bubblewrap.make(escapes.SPEC)
    yield sandbox
    await sandbox.close()


@pytest.fixture(scope="session")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real engine, with an image of busybox."""
    if reason := engine.why_not():
        left_out(reason)
    with engine.dockerd(Path(tmp_path_factory.mktemp("dockerd"))) as url:
        engine.import_busybox(url)
        yield url
