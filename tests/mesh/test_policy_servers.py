"""One trainer, the mesh's own policy server, one that joins late, and one that copies the late one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from openclaw_rl.client import PolicyServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1.policy_pb2 import PolicyState
from tests.mesh.mesh import Mesh, make_home
from tests.mesh.test_ring import COMPLAINT
from tests.support.ports import free_port
from tests.support.waiting import until

#: Of all of them, each of which has a home folder of its own.
MESH = "mesh-of-replicas"


@contextmanager
def policy_server(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """A policy server on its own, as it is started on another machine."""
    with (home.logs / "policy_server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "openclaw_rl.launch.component", "policy_server", "--config", str(home.config_file)],
            env={**os.environ, "OPENCLAW_RL_HOME": str(home.root)}, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def state(address: str) -> PolicyState | None:
    try:
        with PolicyServiceClient(address) as client:
            return client.get_policy(timeout=10).state
    except MeshError:
        return None


def train(mesh: Mesh, name: str) -> PolicyState:
    """Complain until there is a version that answers at the mesh's own policy server; its state."""
    own = mesh.record("policy_server").address
    before = state(own)
    assert before is not None
    for i in range(4):
        mesh.session(f"{name}-{i}", "How do I boil an egg?", COMPLAINT, "Thanks, that is great!", done=True)

    def newer() -> PolicyState | None:
        now = state(own)
        return now if now is not None and now.active_version > before.active_version else None

    result: PolicyState = until(newer, 300, "a new version")
    return result


@pytest.mark.timeout(1200)  # three engines and a trainer, on a machine that may be busy
def test_all_policy_servers_reach_the_same_version(model: Path, tmp_path: Path) -> None:
    late, copy = (f"127.0.0.1:{free_port()}" for _ in range(2))
    mesh = Mesh(make_home(tmp_path / "mesh", model, {
        "policy_server": {"port": 0, "grpc_port": 0, "max_tokens": 24}, "env_server": {"port": 0},
        "prm_judge": {"port": 0}, "trainer": {"port": 0, "min_samples": 4, "update_interval": 2,
                                              "policy_servers": [late], "gate": {"enabled": False}}}, mesh_id=MESH))
    port = {"late": int(late.rpartition(":")[2]), "copy": int(copy.rpartition(":")[2])}
    homes = {name: make_home(tmp_path / name, model, {
        "policy_server": {"port": 0, "grpc_port": port[name], "weights_from": source},
        "env_server": {"address": "127.0.0.1:1"}}, mesh_id=MESH) for name, source in (("late", None), ("copy", late))}

    def all_at(wanted: PolicyState) -> None:
        for address in (late, copy):
            found: PolicyState = until(
                lambda a=address: (now := state(a)) and now.active_version >= wanted.active_version and now, 300,
                f"version {wanted.active_version} at {address}")
            if found.active_version == wanted.active_version:
                assert found.active_digest == wanted.active_digest

    with ExitStack() as stack:
        stack.callback(mesh.cli, "stop-all")
        mesh.cli("local-start")
        train(mesh, "first")  # nobody waits for the one that isn't there
        mesh.settle()  # those that come later get this version, and can go back to it
        first = state(mesh.record("policy_server").address)
        assert first is not None
        delivered = {d["address"]: d for d in mesh.json("versions", "show", str(first.active_version))["deliveries"]}
        assert delivered[mesh.record("policy_server").address]["active"]
        assert delivered[late]["detail"].startswith("can't be reached") and not delivered[late]["active"]

        process = stack.enter_context(policy_server(homes["late"]))
        stack.enter_context(policy_server(homes["copy"]))
        all_at(first)
        mesh.cli("resume")
        process.send_signal(signal.SIGSTOP)  # hangs, with its connections open
        second = train(mesh, "second")
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        stack.enter_context(policy_server(homes["late"]))
        all_at(second)

        mesh.settle()  # no version may follow
        mesh.cli("rollback", str(first.active_version))
        until(lambda: all((now := state(a)) and now.active_version == first.active_version for a in (late, copy)), 300,
              "the rollback everywhere")
        shown = mesh.json("versions", "show", str(first.active_version))["deliveries"]
        assert {d["address"]: d["active"] for d in shown}[late]
    assert not mesh.processes()
