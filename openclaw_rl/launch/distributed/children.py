"""The components of one host as child processes, restarted with increasing back-off, their logs rotated.

Nothing here knows of Ray. A component ends with its parent, however that one ends
(`component --with-parent`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from openclaw_rl.config import Config, ConfigError, load_config
from openclaw_rl.launch import supervisor
from openclaw_rl.rpc.server import HOST_VARIABLE
from openclaw_rl.runtime.home import Home, make_way, read_record
from openclaw_rl.runtime.supervision import RestartPolicy

logger = logging.getLogger(__name__)

_LOG_BYTES, _LOG_FILES = 20 * 2**20, 3


@dataclass
class ChildState:
    """State of a component's process."""

    name: str
    state: str = "STOPPED"  #: STARTING, RUNNING, BACKOFF, EXITED (it was asked to end), STOPPED
    pid: int | None = None
    since: float = 0.0  #: of the state, since the epoch
    failures: int = 0  #: starts one after the other that did not last
    last: str = ""  #: last line of its log, after a failure


class Child:
    """Supervises one component. Its thread starts the process and lives as long as that: the kernel ends a child whose
    parent's thread is gone."""

    def __init__(self, name: str, home: Home, host: str) -> None:
        self.name, self._home, self._host = name, home, host
        self.state = ChildState(name)
        self._policy = RestartPolicy.of_environment()
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)
        self._thread.start()

    def _supervise(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            code = self._once()
            if self._stop.is_set():
                break
            if code == 0:
                self._set("EXITED")
                self._stop.wait()
                break
            lasted, record = time.monotonic() - began, read_record(self._home, self.name)
            served = record is not None and self._process is not None and record.pid == self._process.pid
            self.state.failures = 1 if served and lasted >= self._policy.start_seconds else self.state.failures + 1
            self.state.last = last_line(self._home.logs / f"{self.name}.log")
            logger.warning("%s ended (%s) after %.0f s", self.name, code, lasted)
            self._set("BACKOFF")
            self._stop.wait(self._policy.pause(self.state.failures))
        self._set("STOPPED")

    def _once(self) -> int | None:
        """Run it once; its exit code, None when it could not be started."""
        try:
            config = load_config(self._home.run / "config.yaml")
            out = RotatingLog(self._home.logs / f"{self.name}.log")
            command = [sys.executable, "-P", "-m", supervisor.COMPONENT_MODULE, self.name, "--config",
                       str(self._home.run / "config.yaml"), "--with-parent", str(os.getpid())]
            with self._lock:
                if self._stop.is_set():
                    return None
                process = self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    cwd=self._home.root, env=self._environment(config))
        except (OSError, ConfigError, ValueError) as error:
            logger.error("%s can't be started: %s", self.name, error)
            return None
        self._set("STARTING", process.pid)
        timer = threading.Timer(self._policy.start_seconds, self._lasts, (process,))
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        with contextlib.closing(out), process.stdout:
            while data := process.stdout.read1(65536):  # type: ignore[attr-defined]
                out.write(data)
        code = process.wait()
        timer.cancel()
        return code

    def _lasts(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None and self._process is process and not self._stop.is_set():
            self._set("RUNNING", process.pid)

    def _set(self, state: str, pid: int | None = None) -> None:
        self.state.state, self.state.pid, self.state.since = state, pid, time.time()

    def _environment(self, config: Config) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        if not env.get("CUDA_VISIBLE_DEVICES", "all"):
            del env["CUDA_VISIBLE_DEVICES"]  # Ray hides the GPUs from who asks it for none; it does not deal ours out
        env |= supervisor.environment(config, self.name)
        env |= read_environment(self._home)
        return env | {"OPENCLAW_RL_HOME": str(self._home.root), HOST_VARIABLE: self._host,
                      # By this a component is known as one of ours: launch.leftovers.is_component.
                      "SUPERVISOR_PROCESS_NAME": self.name}

    def stop(self) -> None:
        """End it: SIGTERM, after a while SIGKILL."""
        with self._lock:
            self._stop.set()
            process = self._process
        if process is not None and process.poll() is None:
            self._set("STOPPING", process.pid)
            process.terminate()
            try:
                process.wait(self._policy.stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._thread.join(5)

    def restart(self) -> None:
        """Try again at once one that waits."""
        if self.state.state in ("BACKOFF", "EXITED"):
            self._stop.set()
            self._thread.join(5)
            self._stop.clear()
            if self._thread.is_alive():  # it is starting the process right now
                return
            self._thread = threading.Thread(target=self._supervise, name=self.name, daemon=True)
            self._thread.start()

    def report(self) -> dict[str, object]:
        return asdict(self.state)


class RotatingLog:
    """A file that becomes FILE.1 when it is full, and that FILE.2. When the disk is full what is written is lost: a
    component must not wait for its logger."""

    def __init__(self, path: Path, size: int = _LOG_BYTES, keep: int = _LOG_FILES) -> None:
        self._path, self._size, self._keep = path, size, keep
        path.parent.mkdir(parents=True, exist_ok=True)
        make_way(path)
        self._file = path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._file.tell() + len(data) > self._size and self._file.tell():
                self._rotate()
            self._file.write(data)

    def _rotate(self) -> None:
        for number in range(self._keep, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if older.exists():
                os.replace(older, self._path.with_name(f"{self._path.name}.{number}"))
        self._file.close()
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


def last_line(path: Path) -> str:
    """The last line of a log, cut to what fits into a table."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""
    return ""


def read_environment(home: Home) -> dict[str, str]:
    """Variables that were handed over for the components (`distributed.environment`)."""
    try:
        data = json.loads((home.run / "environment.json").read_text())
        return {str(key): str(value) for key, value in data.items()}
    except (OSError, ValueError, AttributeError):
        return {}
