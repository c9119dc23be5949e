"""Real sandboxes, real gRPC, real processes that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.launch import start
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home, read_record
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.mesh, pytest.mark.timeout(300)]
CAPACITY = 8
#: What a client does until it is killed: lease, run a command or two, give back.
CLIENT = """
import json, os, random, sys
from google.protobuf.duration_pb2 import Duration
from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.runtime.home import Home
dice = random.Random(os.getpid())
with EnvironmentServiceClient(home=Home.default()) as client:
    print("ready", flush=True)
    for number in range(10_000):
        lease = f"{os.getpid()}-{number}"
        client.acquire(lease_id=lease, type="terminal", wait=Duration(seconds=60), ttl=Duration(seconds=3), timeout=90)
        client.reset(lease_id=lease)
        for step in range(1, dice.randrange(1, 4)):
            client.step(lease_id=lease, step=step, action_json=json.dumps(
                {"name": "run", "arguments": {"command": "echo $((6 * 7))"}}))
        client.release(lease_id=lease)
"""


class Served:
    """An environment server in a process of its own."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.env = os.environ | {"OPENCLAW_RL_HOME": str(home.root)}
        self.config = home.root / "config.yaml"
        self.config.write_text(yaml.safe_dump({
            "components": {"env_server": {"port": 0, "environments": {"terminal": {"count": CAPACITY, "warm": 2}}}},
            "security": {"tls": "off"}}))
        self.process: psutil.Popen | None = None

    def start(self) -> EnvironmentServiceClient:
        log = (self.home.logs / "env_server.log").open("ab")
        self.process = psutil.Popen([sys.executable, "-m", "openclaw_rl.launch.component", "env_server", "--config",
                                     str(self.config)], env=self.env, stdout=log, stderr=log)
        pid = self.process.pid

        def running() -> bool:
            record = read_record(self.home, "env_server")
            return record is not None and record.pid == pid

        until(running)
        return EnvironmentServiceClient(home=self.home)

    def sandboxes(self) -> list[psutil.Process]:
        assert self.process is not None
        return [child for child in self.process.children(recursive=True) if lives(child)]


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(Home(tmp_path / "home").create())
    yield served
    if served.process is not None and served.process.is_running():
        served.process.kill()
        served.process.wait(30)


def test_clients_that_are_killed_leak_no_slot(served: Served) -> None:
    dice = random.Random(3)
    with served.start() as client:
        clients: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(12):  # killed at any moment, and more of them than there are sandboxes
                clients.append(subprocess.Popen([sys.executable, "-c", CLIENT], env=served.env,
                                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            for one in clients:
                assert one.stdout is not None and one.stdout.readline() == b"ready\n"
            for one in clients:
                time.sleep(dice.random() * 0.5)
                one.send_signal(signal.SIGKILL)
        finally:
            for one in clients:
                one.kill()
                one.wait(30)
        held = len(client.list_leases().leases)
        until(lambda: not client.list_leases().leases)
        info = client.list_environments().environments[0]
        assert (info.capacity, info.leased, info.waiting, info.problem) == (CAPACITY, 0, 0, "") and held
        for number in range(CAPACITY):
            client.acquire(lease_id=f"all-{number}", type="terminal", wait=Duration(seconds=30))
        with pytest.raises(MeshError, match="are leased"):
            client.acquire(lease_id="one-more", type="terminal")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_sandbox_outlives_its_server(served: Served, how: signal.Signals) -> None:
    with served.start() as client:
        for number in range(3):
            client.acquire(lease_id=f"l{number}", type="terminal", wait=Duration(seconds=30))
            client.reset(lease_id=f"l{number}")
        sandboxes = until(served.sandboxes)
        assert len(sandboxes) >= 3
    process = served.process
    assert process is not None
    process.send_signal(how)
    process.wait(30)
    until(lambda: not any(map(lives, sandboxes)), 30)
    with served.start() as client, pytest.raises(MeshError, match="acquire another one") as caught:
        client.renew(lease_id="l0")
    assert caught.value.reason == "LEASE_LOST"
    process = served.process
    assert process is not None
    process.kill()
    process.wait(30)
    start.stop_all(served.home)
    from openclaw_rl.rollouts.sandboxes.factory import label

    assert not list(Path("/tmp").glob(f"openclaw-rl-{label(served.home.root)}-*"))
    assert not list(Path("/sys/fs/cgroup").glob(f"**/openclaw-rl-{label(served.home.root)}-*"))
