"""A mesh that `openclaw-rl distributed-start` made on the four hosts, as its users and its operator have it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.runtime.home import COMPONENTS, Home
from tests.hosts.rig import Host, Rig
from tests.support.waiting import until

EXAMPLE = """
mode: "distributed"
components:
  policy_server:
    host: "10.0.0.1"
    port: 30000
    workers: 2
  env_server:
    host: "10.0.0.2"
    environments:
      terminal:
        count: 128
        image: "openclaw/terminal-env:latest"
      gui:
        count: 64
        image: "openclaw/gui-env:latest"
  prm_judge:
    host: "10.0.0.3"
    workers: 4
  trainer:
    host: "10.0.0.4"
    gpus: 8
    model_size: "8B"
"""
COMPLAINT = "That is wrong. Answer in one short plain sentence, without lists."
TEXTS = ["How do I boil an egg?", COMPLAINT, "Thanks, that is great!"]
CLI = str(Path(sys.executable).parent / "openclaw-rl")
_USER = str(Path(__file__).parent / "user.py")
#: Of an operator on a host, beside the mesh's own home there.
OPERATOR = {"OPENCLAW_RL_HOME": "/root/operator"}


def adapted() -> str:
    """The example file without what is not there: GPUs, a model of 8B, images."""
    config = yaml.safe_load(EXAMPLE)
    for key in ("gpus", "model_size"):
        del config["components"]["trainer"][key]
    for environment in config["components"]["env_server"]["environments"].values():
        del environment["image"]
    return yaml.safe_dump(config)


class HostsMesh:
    """Args:
        folder: for what the tests keep.
    """

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder = rig, folder
        self._users: list[tuple[Host, subprocess.Popen[Any]]] = []
        self.key = ""  #: of the OpenAI door
        self.logs: list[Path] = []  #: the users' logs

    def start(self) -> None:
        """As a user does, on host1."""
        (self.rig.host1.home / "distributed_config.yaml").write_text(adapted())
        self.cli("init")
        self.cli("distributed-start", "--config", "distributed_config.yaml", timeout=400)
        self.key = (self.rig.host1.home / ".openclaw-rl/first-key").read_text().strip()
        for host in self.rig.hosts:  # users elsewhere need the CA's certificate
            (host.home / "ca.crt").write_bytes((self.rig.host1.home / ".openclaw-rl/certs/ca.crt").read_bytes())

    def cli(self, *args: str, host: Host | None = None, timeout: float = 120) -> str:
        """A command, on host1 or as an operator on another host, that has to succeed."""
        host = host or self.rig.host1
        done = host.run([CLI, *args], env=OPERATOR if host is not self.rig.host1 else {}, timeout=timeout, check=False,
                        folder="/root")
        assert done.returncode == 0, f"{host.name}: openclaw-rl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *args: str, host: Host | None = None) -> Any:
        """What a command prints with --json, whatever its exit code: `status` has one for a mesh that isn't well."""
        host = host or self.rig.host1
        done = host.run([CLI, *args, "--json"], env=OPERATOR if host is not self.rig.host1 else {}, check=False)
        return json.loads(done.stdout or "{}")

    def states(self, host: Host | None = None) -> dict[str, str]:
        return {c["name"]: c["state"] for c in self.json("status", host=host).get("components", [])}

    def all_running(self) -> bool:
        states = self.states()
        return states.keys() == set(COMPONENTS) and set(states.values()) == {"RUNNING"}

    def talk(self, host: Host, user: str, **arguments: Any) -> list[dict[str, Any]]:
        """Sessions from a host, to their end; their lines."""
        process, log = self._talk(host, user, arguments)
        assert process.wait(300) == 0
        return [entry for entry in entries(log) if entry["user"] == user]

    def keep_talking(self, host: Host, user: str) -> None:
        """Sessions from a host until `hush`."""
        process, _ = self._talk(host, user, {"until": f"/root/{user}.stop"})
        (host.home / f"{user}.stop").unlink(missing_ok=True)
        self._users.append((host, process))

    def hush(self) -> None:
        """End all users that keep talking; they end their sessions first."""
        for host, _ in self._users:
            for stop in host.home.glob("*.user"):
                (host.home / f"{stop.stem}.stop").touch()
        for _, process in self._users:
            assert process.wait(300) == 0
        self._users.clear()

    def answered(self) -> int:
        """Requests that were answered whole so far."""
        return sum(entry["outcome"] == "complete" for log in self.logs for entry in entries(log))

    def _talk(self, host: Host, user: str, arguments: dict[str, Any]) -> tuple[subprocess.Popen[Any], Path]:
        log = host.home / f"{user}.user"
        if log not in self.logs:
            self.logs.append(log)
        arguments = {"url": "https://10.0.0.1:30000", "ca": "/root/ca.crt", "log": f"/root/{user}.user", "texts": TEXTS,
                     "user": user, **arguments}
        return host.popen([sys.executable, _USER, json.dumps(arguments)],
                          env={"OPENCLAW_RL_TEST_KEY": self.key}), log

    def version(self) -> int:
        """The one that answers."""
        version: int = self.json("status").get("policy_version") or 0
        return version

    def newer_version(self, than: int, seconds: float = 600) -> int:
        """Wait until a newer one answers."""
        found: int = until(lambda: (now := self.version()) > than and now, seconds, f"a version after {than}")
        return found

    def all_stores(self) -> Home:
        """One home whose folders are those of the components on their hosts, for tools.chaos."""
        root = self.folder / "stores"
        root.mkdir(exist_ok=True)
        for name, host in zip(COMPONENTS, self.rig.hosts, strict=True):
            link = root / name
            if not link.is_symlink():
                link.symlink_to(host.home / ".openclaw-rl" / name)
        return Home(root)


def entries(log: Path) -> list[dict[str, Any]]:
    """Lines of a user's log."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def until_answered(mesh: HostsMesh, more: int, seconds: float, also: Callable[[], bool] = lambda: True) -> None:
    """Wait until the users got so many more whole answers, and until the condition holds."""
    before = mesh.answered()
    until(lambda: mesh.answered() >= before + more and also(), seconds, f"{more} more answers")
