"""A mesh of fake components under the real supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from openclaw_rl.config import Config
from openclaw_rl.launch import start, supervisor
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.supervision import START_VARIABLE

ANY_PORT = {"components": {"policy_server": {"port": 0, "grpc_port": 0}, "env_server": {"port": 0},
                           "prm_judge": {"port": 0}, "trainer": {"port": 0}}}


@pytest.fixture
def config() -> Config:
    return Config.model_validate(ANY_PORT)


@pytest.fixture
def console() -> Console:
    return Console(quiet=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home whose components are fakes; nothing of it runs afterwards."""
    root = tmp_path / "home; with #marks %"
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(root))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv(START_VARIABLE, "1")
    monkeypatch.setattr(supervisor, "COMPONENT_MODULE", "fake_component")
    monkeypatch.setattr(start, "check_credentials", lambda config: None)
    monkeypatch.setattr(start, "_prepare_model", lambda *args: None)
    home = Home(root)
    yield home
    start.stop_all(home)
