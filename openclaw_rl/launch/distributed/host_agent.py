"""Agent of one host, in a Ray actor there: runs the components that the controller names, and reports their state.

While the controller is silent it goes on as before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openclaw_rl.config import load_config
from openclaw_rl.launch import leftovers, supervisor
from openclaw_rl.launch.children import Child, Program
from openclaw_rl.launch.distributed.host import HostError, Ssh
from openclaw_rl.launch.distributed.ray_node import RayNode
from openclaw_rl.rpc.server import HOST_VARIABLE
from openclaw_rl.runtime import private
from openclaw_rl.runtime.home import Home, write_atomically

logger = logging.getLogger(__name__)

#: Seconds between two looks at a head that is silent, and from when on it is.
_HEAD_EVERY, _HEAD_SILENT = 10.0, 30.0


class Agent:
    """One host.

    Args:
        home: folder on this host.
        host: its address.
        standby: settings (config.DistributedConfig as JSON) for starting the head's part of Ray again by ssh when it
            is back; None when this host is not the one to do that.
    """

    def __init__(self, home: str, host: str, standby: dict[str, Any] | None = None) -> None:
        self.home, self.host = Home(Path(home)).create(), host
        private.tighten(self.home.root)
        self._sockets = supervisor.socket_folder(self.home)
        for name in leftovers.end_orphans(self.home):
            logger.warning("ended %s, whose agent was gone", name)
        self._children: dict[str, Child] = {}
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self._stopping = False
        if standby is not None:
            threading.Thread(target=self._watch_head, args=(standby,), daemon=True).start()

    def tick(self, components: list[str], files: dict[str, str]) -> dict[str, Any]:
        """Run exactly these components.

        Args:
            files: content by path in the home, of those that are to be so; what is there already stays untouched.

        Returns:
            Each component's ChildState.
        """
        with self._lock:
            self._heard = time.monotonic()
            if self._stopping:
                return self._report()
            for name, text in files.items():
                _write(self.home.root / name, text.encode())
            gone = [self._children.pop(name) for name in list(self._children) if name not in components]
            for child in gone:
                logger.warning("%s now runs on another host; it is ended here", child.name)
            _stop(gone)
            for name in components:
                if name not in self._children:
                    self._children[name] = Child(program(name, self.home, self.host), self.home, self._sockets)
            return self._report()

    def _report(self) -> dict[str, Any]:
        return {name: child.report() for name, child in self._children.items()}

    def restart(self, names: list[str]) -> None:
        """Try components that wait in a pause again at once."""
        with self._lock:
            for name in names:
                if name in self._children:
                    self._children[name].restart()

    def stop(self) -> list[str]:
        """End all components; their names."""
        with self._lock:
            self._stopping = True
            children, self._children = list(self._children.values()), {}
            _stop(children)
            return [child.name for child in children] + leftovers.end_orphans(self.home)

    def _watch_head(self, settings: dict[str, Any]) -> None:
        """Start the head's part of Ray again once its host is back: nobody on that host would."""
        from openclaw_rl.config import DistributedConfig

        config = DistributedConfig.model_validate(settings)
        ray = RayNode.read(self.home)
        if ray is None or config.python is None:
            return
        head = Ssh(ray.head.rpartition(":")[0], config.python, config)
        while not self._stopping:
            time.sleep(_HEAD_EVERY)
            if time.monotonic() - self._heard > _HEAD_SILENT:
                with contextlib.suppress(HostError):
                    if head.call("ray-start", timeout=150, home=config.home):
                        logger.warning("started Ray's head on %s again", head.name)


def program(name: str, home: Home, host: str) -> Program:
    """A component of this host. It ends with us, however that happens."""
    config_file = home.run / "config.yaml"

    def environment() -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        if not env.get("CUDA_VISIBLE_DEVICES", "all"):
            del env["CUDA_VISIBLE_DEVICES"]  # Ray hides the GPUs from who asks it for none; it does not deal ours out
        env |= supervisor.environment(load_config(config_file), name) | read_environment(home)
        return env | supervisor.marks(name, home) | {HOST_VARIABLE: host}

    return Program(name, lambda: [*supervisor.component_command(name, config_file), "--with-parent", str(os.getpid())],
                   environment)


def read_environment(home: Home) -> dict[str, str]:
    """Variables that were handed over for the components (`distributed.environment`)."""
    try:
        data = json.loads((home.run / "environment.json").read_text())
        return {str(key): str(value) for key, value in data.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _stop(children: list[Child]) -> None:
    if children:
        with ThreadPoolExecutor(len(children)) as pool:
            list(pool.map(Child.stop, children))


def _write(path: Path, data: bytes) -> None:
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return
    try:
        write_atomically(path, data)
    except OSError as error:
        logger.error("%s can't be written: %s", path, error)


def hosts_file(home: Home) -> dict[str, Any] | None:
    """The controller's last facts on the hosts of this mesh: `at`, `hosts` and `components`; None without any."""
    try:
        data: dict[str, Any] = json.loads((home.run / "hosts.json").read_text())
        return data if {"at", "hosts", "components"} <= data.keys() else None
    except (OSError, ValueError, AttributeError):
        return None
