"""The supervisor of a mesh on this machine: started here, and asked over a unix socket in the mesh's folder.

The process is supervisor_process.py. It starts the components, restarts one that crashes with increasing back-off,
writes their logs, and ends exactly those that it started.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from openclaw_rl.config import Config
from openclaw_rl.runtime.home import Home, write_atomically
from openclaw_rl.runtime.supervision import RestartPolicy

#: What a component's process runs, and the supervisor's.
COMPONENT_MODULE = "openclaw_rl.launch.component"
SUPERVISOR_MODULE = "openclaw_rl.launch.supervisor_process"
#: Bytes of the longest folder for sockets: the kernel's 107 for a path, less the longest name.
_FOLDER_LIMIT = 80
#: Seconds for an answer; to end a component takes as long as that has to end.
_ANSWER_SECONDS = 5.0


class SupervisorError(Exception):
    """The supervisor can't do what was asked; the text says why."""


@dataclass(frozen=True)
class Process:
    """A component's process, as the supervisor reports it: see children.ChildState."""

    name: str
    state: str  #: STARTING, RUNNING, BACKOFF, EXITED, STOPPING, STOPPED
    pid: int | None
    since: float
    failures: int
    reason: str
    told: bool
    progress: str

    @property
    def uptime(self) -> float:
        """Seconds since the state began."""
        return max(0.0, time.time() - self.since)


def environment(config: Config, component: str) -> dict[str, str]:
    """Variables that a component's process gets besides the inherited ones."""
    section = getattr(config.components, component)
    threads = str(getattr(section, "threads", 1))
    return {
        # Two teams of spinning OpenMP threads on few cores slow each other down by an order of magnitude.
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
        "OMP_WAIT_POLICY": "passive",
        # Large gRPC messages are allocated and freed all the time; without these each is an mmap (weights: 1.5 x).
        "MALLOC_MMAP_THRESHOLD_": "67108864",
        "MALLOC_TRIM_THRESHOLD_": "268435456",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",  # progress bars have no place in a log
        "PYTHONUNBUFFERED": "1",
    }


def marks(name: str, home: Home) -> dict[str, str]:
    """Variables by which a process is known as one that a supervisor of this mesh started (leftovers.is_component)."""
    return {"OPENCLAW_RL_HOME": str(home.root), "SUPERVISOR_PROCESS_NAME": name}


def component_command(name: str, config_file: Path) -> list[str]:
    """Command line of a component."""
    return [sys.executable, "-P", "-m", COMPONENT_MODULE, name, "--config", str(config_file)]


def _socket_folder(home: Home) -> Path:
    """The run folder, or, when its path is too long for a unix socket, a short one that its digest names."""
    if len(os.fsencode(home.run)) <= _FOLDER_LIMIT:
        return home.run
    digest = hashlib.sha256(os.fsencode(home.root)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"openclaw-rl-{os.getuid()}-{digest}"


def socket_folder(home: Home) -> Path:
    """Folder for this mesh's sockets, which is made.

    Raises:
        SupervisorError: it belongs to somebody else.
        OSError: it can't be made.
    """
    folder = _socket_folder(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise SupervisorError(f"{folder} belongs to user {owner}; remove it or set TMPDIR")
    return folder


def socket_path(home: Home) -> Path:
    """Path of the supervisor's socket."""
    return _socket_folder(home) / "supervisor.sock"


def state_file(home: Home) -> Path:
    """File with the supervisor's pid, its standby's, the components that it keeps running, and those that were asked to
    end."""
    return home.run / "supervisor.json"


def remove_files(home: Home) -> None:
    """Remove what is for a running supervisor only."""
    for file in (socket_path(home), state_file(home), home.run / "config.yaml", home.run / "supervisor.lock"):
        with contextlib.suppress(OSError):  # none there, or a home that is read-only or no folder
            file.unlink()
    if (folder := _socket_folder(home)) != home.run:
        with contextlib.suppress(OSError):
            folder.rmdir()


class Supervisor:
    """The supervisor of one mesh."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.socket = socket_path(home)

    @property
    def config_file(self) -> Path:
        """The configuration that the running mesh was started with: a restarted component reads the same, whatever
        became of the file it was copied from."""
        return self.home.run / "config.yaml"

    def running(self) -> bool:
        """Return whether it answers."""
        return self.pid() is not None

    def pid(self) -> int | None:
        """Its process id, or None when it doesn't answer."""
        try:
            return int(self._call("pid"))
        except SupervisorError:
            return None

    def ensure(self, config: Config, timeout: float = 30) -> bool:
        """Start it, without any component, unless it runs.

        Returns:
            True when it was started, False when it ran already (with the configuration that it has).

        Raises:
            SupervisorError: it does not start.
            OSError: the files can't be written.
        """
        if self.running():
            return False
        self.home.create()
        socket_folder(self.home)
        state_file(self.home).unlink(missing_ok=True)
        write_atomically(self.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).encode())
        out = self.home.logs / "supervisor.out"
        out.unlink(missing_ok=True)
        with open(out, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            process = subprocess.Popen(command(self.home), stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, cwd=self.home.root, start_new_session=True,
                                       env={**os.environ, "OPENCLAW_RL_HOME": str(self.home.root)}, umask=0o077)
        deadline = time.monotonic() + timeout
        while not self.running():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                last = out.read_text(errors="replace").strip().splitlines()[-3:]
                raise SupervisorError("the supervisor does not start: " + " / ".join(last))
            time.sleep(0.02)
        return True

    def start(self, name: str) -> None:
        """Start a component, unless it is on its way up already; a pause between two tries ends. Returns at once.

        Raises:
            SupervisorError: it can't be started.
        """
        self._call("start", name)

    def stop(self, name: str) -> None:
        """Stop a component and wait until it has ended.

        Raises:
            SupervisorError: it can't be stopped.
        """
        self._call("stop", name, timeout=2 * RestartPolicy.stop_seconds)

    def processes(self) -> dict[str, Process]:
        """All components by name, in any state; empty when no supervisor answers."""
        try:
            return {entry["name"]: Process(**entry) for entry in self._call("processes")}
        except SupervisorError:
            return {}

    def shutdown(self, timeout: float = 2 * RestartPolicy.stop_seconds) -> Iterator[list[str]]:
        """Stop all components and the supervisor itself; iterate to wait for their end.

        Yields:
            The components that have not ended yet, whenever these are others than before; last, none.

        Raises:
            SupervisorError: it did not end in time.
        """
        pid = self.pid()
        if pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            with contextlib.suppress(SupervisorError):  # it may be on its way down already
                self._call("shutdown")
            deadline, before = time.monotonic() + timeout, None
            while True:
                left = [p.name for p in self.processes().values() if p.pid is not None]
                if left != before:
                    before = left
                    yield left
                try:
                    process.wait(0.1)
                    return
                except psutil.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise SupervisorError(f"the supervisor (pid {pid}) has not ended after {timeout:.0f} s"
                                              ) from None

    def standby(self) -> int | None:
        """Process id of what takes its place when it is killed; None when there is none."""
        state = self._state()
        return state[1] if state is not None and _lives(state[1]) else None

    def comes_back(self) -> bool:
        """Return whether it was killed and its standby takes its place."""
        state = self._state()
        return state is not None and not _lives(state[0]) and self.standby() is not None

    def gone(self) -> str:
        """What became of one that does not answer and was not asked to end: a sentence, else empty."""
        state = self._state()
        if state is None or self.running():
            return ""
        pid, standby = state[0], self.standby()
        if _lives(pid):
            return (f"the supervisor (pid {pid}) does not answer, so a component that ends is not started again; "
                    "`openclaw-rl stop-all` ends it, `openclaw-rl local-start` starts the mesh again")
        if standby is not None:
            return (f"the supervisor (pid {pid}) was killed; its standby (pid {standby}) takes its place and starts "
                    "the components again")
        return (f"the supervisor (pid {pid}) and its standby were killed, so a component that ends is not started "
                "again; `openclaw-rl local-start` starts the mesh again")

    def _state(self) -> tuple[int, int] | None:
        """Its pid and its standby's, as it wrote them down; None when it has not, or has ended well."""
        try:
            state = json.loads(state_file(self.home).read_text())
            return int(state["pid"]), int(state["standby"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _call(self, what: str, name: str = "", timeout: float = _ANSWER_SECONDS) -> Any:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(timeout)
                connection.connect(str(self.socket))
                connection.sendall(json.dumps({"call": what, "name": name}).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    answer = json.loads(answers.readline())
        except (OSError, ValueError) as error:
            raise SupervisorError(f"the supervisor at {self.socket} does not answer: {error}") from None
        if "error" in answer:
            raise SupervisorError(f"{name or what}: {answer['error']}")
        return answer["result"]


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def command(home: Home) -> list[str]:
    """Command line of the supervisor."""
    return [sys.executable, "-P", "-m", SUPERVISOR_MODULE, "--home", str(home.root), "--module", COMPONENT_MODULE]
