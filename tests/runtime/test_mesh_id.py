"""The id of a mesh: one for a home, whoever asks first."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import Home


def test_a_home_has_one_id_for_good(tmp_path: Path) -> None:
    home, other = Home(tmp_path / "home"), Home(tmp_path / "other")
    assert mesh_id.read(home) == "", "nothing is made by looking"
    made = mesh_id.make(home)
    assert re.fullmatch(mesh_id.PATTERN, made)
    assert mesh_id.read(home) == mesh_id.make(home) == made != mesh_id.make(other)
    assert [path.name for path in home.root.iterdir()] == ["mesh-id"], "nothing else is left there"


def test_components_that_start_at_once_agree(tmp_path: Path) -> None:
    home, together = Home(tmp_path / "home"), threading.Barrier(8)
    found: list[str] = []

    def start() -> None:
        together.wait()
        found.append(mesh_id.make(home))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and set(found) == {mesh_id.read(home)}


def test_a_damaged_file_is_not_replaced(tmp_path: Path) -> None:
    """Silently another id would make the mesh a stranger to its own components."""
    (tmp_path / "mesh-id").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match=r"mesh-id is damaged.* remove it"):
        mesh_id.make(Home(tmp_path))


def test_what_is_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mesh_id.VARIABLE, raising=False)
    config = Config(mesh_id="mesh-configured")
    assert mesh_id.configured(Config()) == ""
    assert mesh_id.configured(Config(), "mesh-certified") == "mesh-certified"
    assert mesh_id.configured(config, "mesh-certified") == "mesh-configured"
    monkeypatch.setenv(mesh_id.VARIABLE, "mesh-given")
    assert mesh_id.configured(config, "mesh-certified") == "mesh-given"
    monkeypatch.setenv(mesh_id.VARIABLE, "Not one!")
    with pytest.raises(ConfigError, match=r"OPENCLAW_RL_MESH: 'Not one!' is not allowed.*openclaw-rl mesh id"):
        mesh_id.configured(config)
