from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.rollouts.episodes.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    await rig.start()
    yield rig
    await rig.stop()
