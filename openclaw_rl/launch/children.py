"""Child processes that are kept running: restarted with increasing back-off, their end explained."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from openclaw_rl.config import ConfigError
from openclaw_rl.launch.rotating_log import RotatingLog, last_line
from openclaw_rl.runtime import notify
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.notify import NotifySocket
from openclaw_rl.runtime.supervision import RestartPolicy

logger = logging.getLogger(__name__)

#: Seconds for the last lines of a process that has ended; what it started may hold its output open for longer.
_LAST_LINES = 1.0


@dataclass(frozen=True)
class Program:
    """What a child runs.

    Attributes:
        name: of its log, and for people.
        command: asked before each start. Raises OSError or ConfigError when there can be none now.
        environment: likewise; all variables.
        notifies: tells when it is ready (runtime.notify); otherwise it is as soon as it runs.
    """

    name: str
    command: Callable[[], list[str]]
    environment: Callable[[], dict[str, str]]
    notifies: bool = True


@dataclass
class ChildState:
    """State of a child."""

    name: str
    state: str = "STOPPED"  #: STARTING, RUNNING (it is ready), BACKOFF, EXITED (it was asked to end), STOPPING, STOPPED
    pid: int | None = None
    since: float = 0.0  #: of the state, since the epoch
    failures: int = 0  #: ends in a row before it was ready, or soon after
    reason: str = ""  #: of the last end, or of the one to come
    told: bool = False  #: the reason is the process's own word
    progress: str = ""  #: what a start is busy with, in its own words

    def json(self) -> dict[str, object]:
        return asdict(self)


class Child:
    """Supervises one process. Its thread starts the process and lives as long as that, since the kernel ends a child
    that is tied to its parent with its parent's thread.

    Args:
        program: what runs.
        home: of the mesh; the process's folder.
        sockets: folder for the socket that the process notifies; only we can enter it.
        exited: called on the child's thread each time that the process has ended as it was asked to.
    """

    def __init__(self, program: Program, home: Home, sockets: Path, exited: Callable[[], None] = lambda: None) -> None:
        self.program, self.name = program, program.name
        self._exited = exited
        self.state = ChildState(program.name, "STARTING")
        self._home, self._sockets = home, sockets
        self._policy = RestartPolicy.of_environment()
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._notified: NotifySocket | None = None
        self._ready_at: float | None = None
        self._asked = False  # it has said that it was asked to end
        self._lock = threading.Lock()
        self._thread = self._start()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._supervise, name=self.name, daemon=True)
        thread.start()
        return thread

    def _supervise(self) -> None:
        while not self._stop.is_set():
            code = self._once()
            if self._stop.is_set():
                break
            if code == 0 and self._asked:
                self._set("EXITED")
                self._exited()
                self._stop.wait()
                break
            lasted = self._ready_at is not None and time.monotonic() - self._ready_at >= self._policy.start_seconds
            if code is not None:
                self._explain(code)  # before it is counted: whoever sees the failure sees its reason
            # However long it took to fail: a start on a slow machine takes minutes.
            self.state.failures = 1 if lasted else self.state.failures + 1
            pause = self._policy.pause(self.state.failures)
            logger.warning("%s ended%s: %s; it is started again in %.0f s", self.name,
                           "" if self._ready_at is not None else " before it was ready", self.state.reason, pause)
            self._set("BACKOFF")
            self._stop.wait(pause)
        if self._notified is not None:
            self._notified.close()
            self._notified = None
        self._set("STOPPED")

    def _explain(self, code: int) -> None:
        """Set the reason, unless the process has told it."""
        state = self.state
        if state.told:
            return
        last = last_line(self._home.logs / f"{self.name}.log")
        if code < 0:
            number = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
            state.reason = f"killed by {number}" + (
                " (by somebody, or by the kernel when memory ran out)" if number == "SIGKILL" else f": {last}")
        else:
            state.reason = last or f"exit code {code}"

    def _once(self) -> int | None:
        """Run it once; its exit code, None when it could not be started."""
        self._ready_at, self._asked = None, False
        try:
            if self._notified is None:
                self._notified = NotifySocket(self._sockets / f"{self.name}.notify", self._told)
            command, environment = self.program.command(), self.program.environment()
            with self._lock:
                if self._stop.is_set():
                    return None
                process = self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    cwd=self._home.root, env=environment | {notify.SOCKET_VARIABLE: str(self._notified.path)},
                    process_group=0, umask=0o077)
                self.state.told, self.state.progress = False, ""
                self._set("STARTING", process.pid)
        except (OSError, ConfigError, ValueError) as error:
            self.state.reason, self.state.told = f"it can't be started: {error}", True
            return None
        logger.info("%s started as pid %d", self.name, process.pid)
        if not self.program.notifies:
            self._is_ready(process)
        pump = threading.Thread(target=self._pump, args=(process,), name=f"{self.name} log", daemon=True)
        pump.start()
        code = process.wait()
        self._notified.flush()
        pump.join(_LAST_LINES)
        return code

    def _pump(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.closing(RotatingLog(self._home.logs / f"{self.name}.log")) as log, process.stdout:
            while data := process.stdout.read1(65536):  # type: ignore[attr-defined]
                log.write(data)

    def _told(self, message: dict[str, str]) -> None:
        """Take a message of the process."""
        with self._lock:  # the process may be quicker than we are with its start
            self._take(message)

    def _take(self, message: dict[str, str]) -> None:
        if reason := notify.failure(message):
            self.state.reason, self.state.told = reason, True
        elif text := message.get(notify.STATUS):
            self.state.progress = text
        if notify.STOPPING in message:
            self._asked = True
        if notify.READY in message and (process := self._process) is not None:
            self._is_ready(process)

    def _is_ready(self, process: subprocess.Popen[bytes]) -> None:
        if self._ready_at is None and not self._stop.is_set():
            self._ready_at = time.monotonic()
            self.state.progress = ""
            self._set("RUNNING", process.pid)

    def _set(self, state: str, pid: int | None = None) -> None:
        self.state.state, self.state.pid, self.state.since = state, pid, time.time()

    def stop(self) -> None:
        """End it: SIGTERM, after a while SIGKILL for all of its group. Blocks."""
        with self._lock:
            self._stop.set()
            process = self._process
        if process is not None and process.poll() is None:
            self._set("STOPPING", process.pid)
            process.terminate()
            try:
                process.wait(self._policy.stop_seconds)
            except subprocess.TimeoutExpired:
                logger.warning("%s has not ended after %.0f s and is killed", self.name, self._policy.stop_seconds)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._thread.join(5)

    def restart(self) -> None:
        """Try again at once one that waits, or that was asked to end."""
        if self.state.state in ("BACKOFF", "EXITED"):
            self._stop.set()
            self._thread.join(5)
            self._stop.clear()
            if self._thread.is_alive():  # it is starting the process right now
                return
            self.state = ChildState(self.name, "STARTING")
            self._thread = self._start()

    def report(self) -> dict[str, object]:
        """The state as JSON."""
        return self.state.json()
