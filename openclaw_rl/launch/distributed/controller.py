"""Controller of a mesh on several hosts, in a Ray actor on the head.

It gives each host's agent the components to run, restarts a host's part of Ray when the host is back, and moves
components where that is allowed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from openclaw_rl.config import Config
from openclaw_rl.launch.distributed import plan
from openclaw_rl.launch.distributed.failover import Failover, Reachability
from openclaw_rl.launch.distributed.host import HostError, Ssh, is_here
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home, write_atomically

logger = logging.getLogger(__name__)

#: Seconds between two rounds, for an agent's answer, and between two tries to start Ray on a host.
_EVERY, _ANSWER, _RAY_EVERY = 2.0, 5.0, 15.0


class Agents(Protocol):
    """The hosts' agents."""

    def tick(self, host: str, components: list[str], files: dict[str, str], timeout: float) -> dict[str, Any]:
        """Let the agent of a host, which is made if there is none, run these. Raises TimeoutError or RuntimeError."""


class Controller:
    """Controls one mesh until it is stopped.

    Args:
        home: folder on this host, where the mesh's settings (run/keeper.json) are.
        agents: how the agents are reached.
    """

    def __init__(self, home: str, agents: Agents) -> None:
        self.home, self._agents = Home(Path(home)), agents
        spec = json.loads((self.home.run / "keeper.json").read_text())
        self.config = Config.model_validate(spec["config"])
        self._ours: bool = spec["ours"]
        self._python: str = spec["python"]
        self._cluster: dict[str, Any] = spec["cluster"]
        self._failover = Failover(self.config, spec["hosts"], spec["all_hosts"], spec.get("moved", {}), time.time())
        self._tried: dict[str, float] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with ThreadPoolExecutor(len(self._failover.states) * 2) as pool:
            busy: dict[str, Any] = {}
            while not self._stop.is_set():
                for host in self._failover.states:
                    if host not in busy or busy[host].done():
                        busy[host] = pool.submit(self._tick, host)
                with self._lock:
                    for name, source, target in self._failover.move(time.time()):
                        logger.warning("%s is started on %s, since %s is gone", name, target, source)
                        self._remember()
                self._stop.wait(_EVERY)

    def _tick(self, host: str) -> None:
        """Look after one host."""
        try:
            with self._lock:
                components, files = self._failover.components(host), self._files(host)
            children = self._agents.tick(host, components, files, _ANSWER)
        except Exception as error:  # Ray's are many; all mean that the agent did not answer
            seen, why = self._reachable(host)
            detail = why or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            with self._lock:
                self._failover.observe(host, seen, time.time(), detail=detail)
            if seen == "reachable" and self._ours:
                self._start_ray(host)
            return
        with self._lock:
            self._failover.observe(host, "up", time.time(), children)

    def _reachable(self, host: str) -> tuple[Reachability, str]:
        """The host itself answers, whether at ssh's port or by refusing."""
        try:
            with socket.create_connection((host, self.config.distributed.ssh_port), 3):
                return "reachable", ""
        except ConnectionRefusedError:
            return "reachable", ""
        except OSError as error:
            return "gone", f"no answer: {error.strerror or error}"

    def _start_ray(self, host: str) -> None:
        """Start a host's part of Ray again, unless it runs: it may be on its way, or cut off for a moment."""
        if is_here(host) or time.time() - self._tried.get(host, 0.0) < _RAY_EVERY:
            return
        with self._lock:
            silent = time.time() - self._failover.states[host].answered
        if silent < _RAY_EVERY:
            return
        self._tried[host] = time.time()
        try:
            if Ssh(host, self._python, self.config.distributed).call("ray-start", timeout=150,
                                                                     home=self.config.distributed.home):
                logger.warning("started Ray on %s again", host)
        except HostError as error:
            with self._lock:
                self._failover.states[host].detail = f"Ray can't be started again: {error}"

    def _files(self, host: str) -> dict[str, str]:
        """Files of a host's home by path."""
        failover = self._failover
        mesh = mesh_file.MeshFile(plan.for_clients(self.config, failover.hosts),
                                  plan.http_address(self.config, failover.hosts), dict(failover.hosts),
                                  mesh_file.Cluster(**self._cluster) if host == self._cluster["head"] else None)
        return {"run/config.yaml": config_text(self.config, host, failover.hosts),
                "run/mesh.yaml": mesh.dump().decode(), "run/hosts.json": json.dumps(failover.facts(time.time()))}

    def _remember(self) -> None:
        """Save what was moved, for the next controller."""
        with contextlib.suppress(OSError, ValueError):
            file = self.home.run / "keeper.json"
            spec = json.loads(file.read_text())
            write_atomically(file, json.dumps(spec | {"moved": self._failover.moved}).encode())

    def facts(self) -> dict[str, Any]:
        """Content of run/hosts.json."""
        with self._lock:
            return self._failover.facts(time.time())

    def stop(self) -> None:
        """End the control; components go on."""
        self._stop.set()
        self._thread.join(60)


def config_text(config: Config, host: str, hosts: dict[str, str]) -> str:
    """run/config.yaml of a host."""
    import yaml

    made = plan.derived(plan.Plan(config, hosts, {}, ""), host)
    text: str = yaml.safe_dump(made.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
    return f"# Written by `openclaw-rl distributed-start`; changes are lost.\n{text}"
