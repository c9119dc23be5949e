"""Addresses, ids and times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.rpc.messages import new_id, now, to_datetime
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home, RunRecord, remove_record, write_record
from openclaw_rl.runtime.mesh_file import Cluster, MeshFile


def test_a_configured_address_wins_over_the_recorded_one(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    assert resolve(home, Config(), "trainer") is None
    write_record(home, RunRecord("trainer", 1, "127.0.0.1:1234"))
    assert resolve(home, Config(), "trainer") == "127.0.0.1:1234"
    configured = Config.model_validate({"components": {"trainer": {"address": "gpu-host:50054"}}})
    assert resolve(home, configured, "trainer") == "gpu-host:50054"
    (home.run / "trainer.json").write_text("{half a rec")
    assert resolve(home, Config(), "trainer") is None
    remove_record(home, "trainer")
    assert resolve(home, Config(), "trainer") is None


def test_ids_are_unique_and_in_order() -> None:
    ids = [new_id("t-") for _ in range(20_000)]
    assert len(set(ids)) == len(ids)
    coarse = [id[:18] for id in ids]  # prefix, milliseconds, version and their fraction
    assert coarse == sorted(coarse)
    assert all(id.startswith("t-") and id[14] == "7" and id[18] in "89ab" for id in ids)


def test_now_is_now() -> None:
    assert abs(to_datetime(now()).timestamp() - time.time()) < 1


def test_a_mesh_file_wins_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    started = Config.model_validate({"components": {"trainer": {"address": "10.0.0.4:50054"}}})
    write_record(home, RunRecord("prm_judge", 1, "127.0.0.1:1"))
    assert mesh_file.read(home) is None
    for host in ("10.0.0.4", "10.0.0.2"):
        config = Config.model_validate({"mode": "distributed", "components": {"trainer": {"address": f"{host}:50054"}}})
        mesh_file.write(home, MeshFile(config, "https://10.0.0.1:30000", {"trainer": host},
                                       Cluster("m", "10.0.0.1:6379", True, "10.0.0.1", [host])))
        assert resolve(home, started, "trainer") == f"{host}:50054"
    assert resolve(home, started, "prm_judge") == "127.0.0.1:1"
    mesh = mesh_file.read(home)
    assert mesh is not None and mesh.addresses == {"trainer": "10.0.0.2:50054"} and mesh.cluster.hosts == ["10.0.0.2"]
    assert mesh_file.path(home).stat().st_mode & 0o777 == 0o600
    mesh_file.path(home).write_text("config: {moode: 1}")
    with pytest.raises(ConfigError, match=r"mesh\.yaml is damaged"):
        mesh_file.read(home)
    assert resolve(home, started, "trainer") == "10.0.0.4:50054"
    mesh_file.remove(home)
    assert mesh_file.read(home) is None
