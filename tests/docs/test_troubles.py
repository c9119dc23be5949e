"""What the table of troubles says that one sees is what the programs say, and says what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from openclaw_rl.config import Config, ConfigError, load_config
from openclaw_rl.docs import LANGUAGES, page_file
from openclaw_rl.launch import checks, start
from openclaw_rl.models.api_endpoints import check_credentials
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.entrypoints.openai.entrypoint import check_keys
from tests.docs.blocks import ROOT


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def configured(**components: dict[str, Any]) -> Config:
    return Config.model_validate({"components": components})


def _port(home: Home, patch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        checks.check_ports(configured(policy_server={"port": taken.getsockname()[1]}), ["policy_server"])


def _key(home: Home, patch: pytest.MonkeyPatch) -> None:
    file = home.root / "wrong.yaml"
    file.write_text("components: {trainer: {min_sample: 3}}")
    load_config(file)


def _packages(home: Home, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("importlib.util.find_spec", lambda name: None)
    checks.check_packages(Config())


def _gpus(home: Home, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PATH", "/nowhere")  # without nvidia-smi
    checks.check_trainer(configured(trainer={"gpus": 8}), home)


def _disk(home: Home, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=150 * 2**20))
    checks.check_home(home, Config())


def _api_key(home: Home, patch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ZHIPUAI_API_KEY", "OPENAI_BASE_URL"):
        patch.delenv(name, raising=False)
    check_credentials(configured(policy_server={"model": "gpt-4o-mini"}))


def _door(home: Home, patch: pytest.MonkeyPatch) -> None:
    patch.delenv("OPENCLAW_RL_API_KEYS", raising=False)
    check_keys(configured(policy_server={"host": "0.0.0.0"}), home)


def _hosts(home: Home, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("openclaw_rl.launch.start.mesh_file.read", lambda home: object())
    start.local_start(home, Config(), Console(quiet=True))


@pytest.mark.parametrize("cause, said, cure", [
    (_port, "is in use by pid", "0 for any free one"),
    (_key, "unknown key; allowed here:", "min_samples"),
    (_packages, "the embedded model needs packages that are not installed", "openclaw-rl[embedded]"),
    (_gpus, "gpus: 8, found 0 GPUs", "what would fit"),
    (_disk, "free and needs", "OPENCLAW_RL_HOME"),
    (_api_key, "there is no key for it: set OPENAI_API_KEY in the environment", "set OPENAI_API_KEY"),
    (_door, "is reachable from the network, and there is no key", "openclaw-rl keys add"),
    (_hosts, "belongs to a mesh on several hosts", "openclaw-rl stop-all"),
], ids=lambda value: value.__name__ if callable(value) else "")
def test_messages_at_the_start(cause: Callable[[Home, pytest.MonkeyPatch], None], said: str, cure: str, home: Home,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((ConfigError, checks.StartError)) as error:
        cause(home, monkeypatch)
    assert said in str(error.value) and cure in str(error.value)
    for language in LANGUAGES:
        assert said in page_file("troubles-and-cures", language).read_text()


@pytest.mark.parametrize("said", [
    "this mesh is running already", "no mesh is running in ", "times as soon as it was started", "https_needed",
    "is taken by another mesh, which", "has made no progress for", "was killed", "its standby were killed",
    "other users can enter it", "it belongs to ",
    "version_not_active", "A newer release wrote the component's file", "WRONG_SCOPE", "WRONG_ROLE",
    "it speaks HTTP/1, not gRPC", "WRONG_COMPONENT", "CONTRACT_MISMATCH", "NO_ACK", "FOREIGN_ACK"])
def test_other_messages_are_in_the_sources(said: str) -> None:
    sources = "\n".join(file.read_text() for file in (ROOT / "openclaw_rl").rglob("*.py") if "docs" not in file.parts)
    assert said in sources or said.upper() in sources
    for language in LANGUAGES:
        assert said.strip() in page_file("troubles-and-cures", language).read_text()


def test_the_seeds_troubles_are_there() -> None:
    """Each with how to see it, why, and what to do."""
    text = page_file("troubles-and-cures").read_text()
    for trouble in ("Judge silent", "Trainer never updates", "Log too large", "Wrong classes", "Memory grows"):
        section = text.split(f"\n## {trouble}\n")[1].split("\n## ")[0]
        assert "**See it:**" in section and re.search(r"```sh\n.+```", section, re.S)
        assert "| why | what to do |" in section or "```yaml" in section
