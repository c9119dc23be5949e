from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reward.fake_api import FakeApi, serve
from tests.training.backends.playbook.rig import KEY, Rig


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("ZHIPUAI_API_KEY", raising=False)
    with serve() as found:
        yield found


@pytest.fixture
def rig(tmp_path: Path, api: FakeApi) -> Iterator[Rig]:
    rig = Rig(tmp_path, api)
    yield rig
    rig.store.close()
