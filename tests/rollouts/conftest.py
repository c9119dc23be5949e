from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollouts.harness import Harness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.store.close()
