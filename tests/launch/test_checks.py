"""What stands in the way of a start is said before anything is started."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from rich.console import Console

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.home import Home
from openclaw_rl.launch import checks, start
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.supervisor import Supervisor


def test_a_port_in_use_names_key_port_and_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = Config.model_validate({"components": {"prm_judge": {"port": port}, "trainer": {"port": 0}}})
        with pytest.raises(StartError, match=rf"components.prm_judge.port: 127.0.0.1:{port} is in use by pid "
                                             rf"{os.getpid()} .*; set another port, or 0"):
            checks.check_ports(config, ["prm_judge", "trainer"])
        checks.check_ports(config, ["trainer"])


def test_no_two_components_want_the_same_port() -> None:
    config = Config.model_validate({"components": {"policy_server": {"port": 0, "grpc_port": 1025},
                                                   "trainer": {"port": 1025}}})
    with pytest.raises(StartError, match=r"trainer\.port: 1025 is components\.policy_server\.grpc_port too"):
        checks.check_ports(config, [])
    elsewhere = {"components": {"policy_server": {"port": 0, "grpc_port": 1025},
                                "trainer": {"port": 1025, "address": "192.0.2.1:1025"}}}
    checks.check_ports(Config.model_validate(elsewhere), [])


def test_a_host_that_is_not_ours_is_named() -> None:
    config = Config.model_validate({"components": {"trainer": {"host": "192.0.2.1", "port": 1}}})
    with pytest.raises(StartError, match=r"192\.0\.2\.1:1 can't be used"):
        checks.check_ports(config, ["trainer"])


def test_a_file_in_place_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(StartError, match=r"can.t be written.*OPENCLAW_RL_HOME"):
        checks.check_home(Home(tmp_path / "home"), Config())
    assert start.stop_all(Home(tmp_path / "home")) == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(StartError, match="has 1 MB free and needs 2048 MB"):
        checks.check_home(Home(tmp_path), Config())


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"openclaw-rl\[embedded\]"):
        checks.check_packages(Config())
    checks.check_packages(Config.model_validate({"components": {"policy_server": {"model": "glm-4-flash"}}}))


def test_nothing_is_started_when_a_check_fails(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = Config.model_validate({"components": {"policy_server": {"model": "m", "engine": "openai",
                                                                         "api_key_env": "SOME_KEY", "port": port}}})
        with pytest.raises(ConfigError, match="SOME_KEY"):
            start.local_start(home, config, Console(quiet=True))
    assert not Supervisor(home).running()
    with pytest.raises(StartError, match="distributed"):
        start.local_start(home, Config(mode="distributed"), Console(quiet=True))


def test_a_model_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    config = Config.model_validate({"components": {"policy_server": {"model": "model"}}})
    assert start.with_absolute_model(config).components.policy_server.model == str(tmp_path / "model")
    assert start.with_absolute_model(Config()) == Config()
