"""What the clients in all languages are tried on: the real mesh, a judge with certificates and keys, and bad peers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from openclaw_rl.runtime.home import Home
from tests.mesh.languages.bad_peers import BadPeers
from tests.mesh.mesh import Mesh, running, running_mesh
from tests.support.models import embedded_model
from tests.support.waiting import until


@pytest.fixture(scope="package")
def secure_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh of one judge, with mTLS and a port for bearer keys."""
    home = Home(tmp_path_factory.mktemp("secure-judge") / "home").create()
    off = {"enabled": False}
    home.config_file.write_text(yaml.safe_dump({"security": {"tls": "on"}, "components": {
        "prm_judge": {"port": 0, "keys_port": 0}, "policy_server": off, "env_server": off, "trainer": off}}))
    mesh = Mesh(home)
    mesh.command("init")
    with running(mesh):
        yield mesh


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One of their own: they send it what is refused, which its status tells for an hour. Its model takes long enough
    over a story for them to break it off."""
    with running_mesh(tmp_path_factory.mktemp("clients") / "home", embedded_model()) as mesh:
        yield mesh


@pytest.fixture(scope="package")
def peers(mesh: Mesh, secure_judge: Mesh) -> Iterator[dict[str, str]]:
    """Variables for a client's own tests; each client's README lists them."""
    bad = BadPeers()
    log = secure_judge.home.logs / "prm_judge.log"
    keys = until(lambda: re.search(r"with bearer keys on (\S+)", log.read_text()), 30, "the keys' port")
    values = {
        "MESH": mesh.cli("mesh", "id").strip(),
        "POLICY": mesh.record("policy_server").address, "ENVIRONMENT": mesh.record("env_server").address,
        "JUDGE": mesh.record("prm_judge").address, "TRAINER": mesh.record("trainer").address,
        "SECURE_JUDGE": secure_judge.record("prm_judge").address, "SECURE_KEYS": keys[1],
        "CERTS": str(secure_judge.home.certs), **bad.addresses}
    for scope in ("chat", "read"):
        values[f"KEY_{scope.upper()}"] = secure_judge.json("keys", "add", f"a-{scope}", "--scope", scope)["key"]
    yield {f"OPENCLAW_RL_TEST_{name}": value for name, value in values.items()}
    bad.close()
