"""One host's part of a Ray cluster of ours: start it, and end exactly what was started.

Every process of it, those that it starts included, has the variable OPENCLAW_RL_RAY with the node's temporary folder:
by that it is known, whatever it calls itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.process import marked

#: Names a node's processes.
MARK = "OPENCLAW_RL_RAY"
#: File beside a node's certificates with what Ray's processes show one another: the same on all hosts, made by each
#: start anew.
TOKEN_FILE = "token"
#: Seconds for a node's start, which takes 3 to 6 on an idle machine.
_START_SECONDS = 120
#: Seconds that processes have to end after SIGTERM, one kind after the other; all at once they wait for one another.
#: What is left behind raylet and server has nothing to lose.
_STOP_SECONDS, _REST_SECONDS = 6, 1


class RayError(Exception):
    """Ray can't be started or stopped here; the text says why."""


@dataclass(frozen=True)
class RayNode:
    """A host's part.

    Attributes:
        mesh: the mesh's name.
        ip: this host's address.
        head: HOST:PORT of the cluster's head.
        memory: bytes of the object store.
        temp: folder for sockets and logs of this host alone; short, since a socket's path is at most 107 bytes.
        certs: folder with operator.crt, operator.key and ca.crt of the cluster's own CA; "" for none.
        launcher: file with the configuration that Ray's cluster launcher left on the head; "" for none.
    """

    mesh: str
    ip: str
    head: str
    memory: int
    temp: str
    certs: str
    launcher: str = ""

    @property
    def is_head(self) -> bool:
        return self.head.rpartition(":")[0] == self.ip

    @classmethod
    def read(cls, home: Home) -> RayNode | None:
        """Read what was written; None without any."""
        try:
            return cls(**json.loads((home.run / "ray.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None


def variables(certs: str, state: str = "") -> dict[str, str]:
    """Variables of everything that is or uses a cluster of ours, on a host of it.

    Args:
        certs: as of RayNode.
        state: folder for the state of Ray's head.
    """
    found = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # A host that can't be reached for a while comes back with everything on it running: Ray ends what it has given
        # up on, so it waits for longer than we do. A host that answers "nothing here" is given up after 24 s.
        "RAY_health_check_period_ms": "3000",
        "RAY_health_check_timeout_ms": "10000",
        "RAY_health_check_failure_threshold": "8",
        # The others outlive the head: without it they only aren't started again when they die.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
        "RAY_DEDUP_LOGS": "0",
        # The components are what the host is for; Ray would let everything else on it come first (nice 15).
        "RAY_worker_niceness": "0",
    }
    if certs:
        found |= {"RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": f"{certs}/operator.crt",
                  "RAY_TLS_SERVER_KEY": f"{certs}/operator.key", "RAY_TLS_CA_CERT": f"{certs}/ca.crt"}
        found |= token(certs)
    if state:
        found |= {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": state}
    return found


def token(certs: str) -> dict[str, str]:
    """Variables of the token in a folder on this host; none where it is not. Without one, Ray's ports that speak plain
    HTTP whatever RAY_USE_TLS says, such as the runtime_env agent's, obey everybody."""
    file = Path(certs) / TOKEN_FILE
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)} if file.exists() else {}


def start(node: RayNode, state: Path) -> bool:
    """Start the host's part, unless it runs.

    Args:
        state: folder for what the head knows: started again it goes on with the actors that there were.

    Returns:
        True when it was started.

    Raises:
        RayError: it does not start.
    """
    temp = Path(node.temp)
    temp.mkdir(mode=0o700, parents=True, exist_ok=True)
    if temp.stat().st_uid != os.getuid():
        raise RayError(f"{temp} belongs to user {temp.stat().st_uid}; remove it")
    # Ray's launcher, the controller and distributed-start may all want the same at the same time.
    with (temp / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        here = processes(node.temp)
        if any(_is(process, "raylet") for process in here):
            return False
        end(here)
        _start(node, state, temp)
    return True


def _start(node: RayNode, state: Path, temp: Path) -> None:
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", f"--node-ip-address={node.ip}",
               "--num-cpus=1", f"--object-store-memory={node.memory}", f"--temp-dir={node.temp}",
               "--disable-usage-stats", "--log-style=record", "--log-color=false"]
    if node.is_head:
        command += ["--head", f"--port={node.head.rpartition(':')[2]}", "--include-dashboard=false"]
        launcher = Path(node.launcher).expanduser()
        if node.launcher and launcher.exists():
            command.append(f"--autoscaling-config={launcher}")
    else:
        command.append(f"--address={node.head}")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "OPENCLAW_RL_"))}
    if node.is_head:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    env |= variables(node.certs, str(state) if node.is_head else "") | {MARK: node.temp}
    out = temp / "start.log"
    try:
        with out.open("wb") as file:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=env,
                                  timeout=_START_SECONDS, check=False)
        failed = bool(done.returncode)
    except subprocess.TimeoutExpired:
        failed = True
    if failed:
        end(processes(node.temp))
        last = [line for line in out.read_text(errors="replace").splitlines() if line.strip()][-4:]
        raise RayError(f"Ray does not start: {' / '.join(last)}")


def stop(node: RayNode) -> list[str]:
    """End the host's part, and what it started.

    Returns:
        What is left, which is nothing unless the kernel holds it.
    """
    return end(processes(node.temp))


def processes(temp: str) -> list[psutil.Process]:
    """All processes of a node."""
    return marked(MARK, temp)


def end(found: Iterable[psutil.Process]) -> list[str]:
    """End processes of a node: what Ray runs is ended by its raylet, that before the head's server, and what is left
    then.

    Returns:
        Command lines of what did not end.
    """
    left = list(found)
    for kinds in (("raylet",), ("gcs_server",), ()):
        some = [process for process in left if not kinds or _is(process, *kinds)]
        _signal(some, signal.SIGTERM)
        _, alive = psutil.wait_procs(some, _STOP_SECONDS if kinds else _REST_SECONDS)
        _signal(alive, signal.SIGKILL)
        psutil.wait_procs(alive, _STOP_SECONDS)
        if some and kinds:  # its workers end with it, a moment later
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline and any(process.is_running() and not _is(process, "gcs_server", "python")
                                                      for process in left):
                time.sleep(0.05)
    return [_line(process) for process in left if _runs(process)]


def _is(process: psutil.Process, *names: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() in names and _runs(process)
    return False


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it may end between the two
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _signal(some: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in some:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"pid {process.pid}: {' '.join(process.cmdline())[:200]}"
    return f"pid {process.pid}"
