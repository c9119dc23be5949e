"""What stands in the way of a start is said before anything is started."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.launch import checks, memory, start
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.supervisor import Supervisor
from openclaw_rl.models.config import ModelConfig
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.backends.megatron import hardware
from tests.rpc.auth.certs import make_certs


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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model, whole but for its tokenizer's content."""
    config = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "vocab_size": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
              "eos_token_id": 1, "tie_word_embeddings": True}
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    write_tensors(folder)
    return folder


def write_tensors(folder: Path, **other: tuple[int, ...] | None) -> None:
    """The model's tensors, but for those that are to have another shape or (None) be missing."""
    shapes = ModelConfig.read(folder).tensors() | {name.replace("__", "."): shape for name, shape in other.items()}
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items() if shape is not None},
              folder / "model.safetensors")


def local_start(home: Path, **policy: object) -> None:
    """As far as it comes: nothing is started."""
    config = Config.model_validate({"components": {
        "policy_server": {"port": 0, "grpc_port": 0, **policy},
        **{name: {"port": 0} for name in ("env_server", "prm_judge", "trainer")}}})
    start.local_start(Home(home), config, Console(quiet=True), timeout=5)


@pytest.mark.parametrize(("damage", "text"), [
    (lambda folder: (folder / "tokenizer.json").unlink(), r"tiny: tokenizer\.json is missing.*save_pretrained"),
    (lambda folder: write_tensors(folder, model__norm__weight=None),
     r"tiny.*tensor model\.norm\.weight is missing \(1 of 11"),
    (lambda folder: write_tensors(folder, model__norm__weight=(9,)),
     r"model\.safetensors: tensor model\.norm\.weight has shape \[9\]; config\.json asks for \[8\]"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 100), r"model\.safetensors"),
    (lambda folder: (folder / "model.safetensors").unlink(), r"neither model\.safetensors nor"),
    (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
    (lambda folder: (folder / "tokenizer.json").write_text("not JSON"), r"tokenizer\.json")],
    ids=["no tokenizer", "missing tensor", "shape", "damaged", "no tensors", "no config", "tokenizer"])
def test_a_model_folder_that_can_not_be_used(tmp_path: Path, model: Path, damage: Callable[[Path], object],
                                             text: str) -> None:
    damage(model)
    with pytest.raises(StartError, match=text):
        local_start(tmp_path / "home", model=str(model))
    assert not Supervisor(Home(tmp_path / "home")).running()


def test_too_little_memory_for_the_model(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "find", lambda: hardware.Hardware([], 2 * 2**30))
    monkeypatch.setattr(ModelConfig, "tensors", lambda _self: {"x": (8_000_000_000,)})
    with pytest.raises(StartError, match=r"8\.00 billion weights.* 59\.6 GB .*policy_server 29\.8 GB, trainer 29\.8 "
                                         r"GB.*, and 2\.0 GB are free"):
        memory.check_memory(Config(), model, ["policy_server", "trainer"])
    memory.check_memory(Config(), model, ["env_server"])
    full = Config.model_validate({"components": {"trainer": {"method": "full"}}})
    with pytest.raises(StartError, match="method: lora needs less"):
        memory.check_memory(full, model, ["trainer"])
    monkeypatch.setattr(hardware, "find", lambda: hardware.Hardware([80 * 2**30], 2 * 2**30))
    memory.check_memory(Config(), model, ["policy_server", "trainer"])  # it is the GPU's memory that counts then


def test_a_door_on_a_network_is_not_started_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCLAW_RL_API_KEYS", raising=False)
    config = Config.model_validate({"components": {"policy_server": {"host": "0.0.0.0"}}})
    with pytest.raises(ConfigError, match="openclaw-rl keys add NAME --scope chat"):
        checks.check_entrypoint(Home(tmp_path), config, ["policy_server"])
    checks.check_entrypoint(Home(tmp_path), config, ["trainer"])


def test_certificates_are_looked_for_before_anything_is_started(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    on = Config.model_validate({"security": {"tls": "on"}})
    with pytest.raises(ConfigError, match=r"security\.tls is on, and .* lacks ca\.crt, trainer\.crt"):
        checks.check_certificates(home, on, ["trainer"])
    make_certs(home.certs, roles=("trainer",))
    with pytest.raises(ConfigError, match=r"lacks operator\.crt"):
        checks.check_certificates(home, on, ["trainer"])
    make_certs(home.certs, roles=("operator",))
    checks.check_certificates(home, on, ["trainer"])
    checks.check_certificates(Home(tmp_path / "other"), Config(), ["trainer"])
    with pytest.raises(ConfigError, match=r"security\.tls: off is not allowed"):
        checks.check_certificates(home, Config.model_validate({
            "security": {"tls": "off"}, "components": {"trainer": {"host": "0.0.0.0"}}}), ["trainer"])
