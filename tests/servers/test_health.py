"""The containers' health check, and the certificates for it, as README.md says to make them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from openclaw_rl.runtime.home import COMPONENTS, Home
from tests.servers.deployed import KUBERNETES, SERVERS, of_kind, pod
from tests.support.waiting import until


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's commands for certificates ran."""
    folder = tmp_path_factory.mktemp("made")
    text = (KUBERNETES / "README.md").read_text()
    (block,) = re.findall(r"```sh\n(export OPENCLAW_RL_HOME.*?)```", text, re.DOTALL)
    commands = "".join(line for line in block.splitlines(keepends=True) if "keys --help" not in line)
    subprocess.run(["bash", "-euc", commands], cwd=folder, check=True, capture_output=True,
                   env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    return folder


@pytest.fixture
def served(made: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[str], dict[str, str]]]:
    """The environment server as in its container, but for the paths; and the command that asks how it is."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({
        "components": {"env_server": {"host": "0.0.0.0", "port": 0}},
        "security": {"tls": "on", "certs": str(made / "certs/env-server")}}))
    env = {**os.environ, "OPENCLAW_RL_HOME": str(tmp_path / "state")}
    ask = [sys.executable, str(SERVERS / "health.py"), "env_server", str(config)]
    with subprocess.Popen([sys.executable, str(SERVERS / "environment/serve.py"), str(config)], env=env,
                          stderr=subprocess.DEVNULL) as process:
        yield process, ask, env
        process.kill()


def answer(ask: list[str], env: dict[str, str]) -> int:
    return subprocess.run(ask, env=env, capture_output=True, check=False).returncode


def test_the_probe_says_how_it_is(served: tuple[subprocess.Popen[bytes], list[str], dict[str, str]]) -> None:
    process, ask, env = served
    record = Home(Path(env["OPENCLAW_RL_HOME"])).run / "env_server.json"
    until(record.exists, 60)  # each question is a process
    until(lambda: answer(ask, env) == 0, 60, "well")
    assert answer([*ask, "--alive"], env) == 0
    told = record.read_text()
    process.kill()
    process.wait()
    record.write_text(told)  # a process that was killed says no goodbye
    assert answer(ask, env) == 1 and answer([*ask, "--alive"], env) == 1


def test_the_files_are_those_that_the_pods_expect(made: Path) -> None:
    for name in COMPONENTS:
        app = name.replace("_", "-")
        folder = made / "certs" / app
        assert {file.name for file in folder.iterdir()} == {"ca.crt", f"{name}.crt", f"{name}.key"}
        secrets = {volume["secret"]["secretName"] for volume in pod(of_kind("base", "StatefulSet")[app])["volumes"]
                   if "secret" in volume}
        assert f"openclaw-rl-certs-{app}" in secrets
