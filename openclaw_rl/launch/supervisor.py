"""supervisord (PyPI `supervisor`) as the supervisor of the four processes.

It starts them, restarts one that crashes with increasing back-off, writes their logs, and ends exactly those that it
started. We write its configuration and talk to it over XML-RPC on a unix socket in the mesh's folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.config import Config
from openclaw_rl.launch.jaeger import COMPONENT_VARIABLES, CONFIG_FILE, Jaeger
from openclaw_rl.runtime.home import COMPONENTS, Home, write_atomically
from openclaw_rl.runtime.supervision import RestartPolicy

logger = logging.getLogger(__name__)

#: What a component's process runs.
COMPONENT_MODULE = "openclaw_rl.launch.component"
#: Longest socket path that works everywhere: the kernel's 108 bytes less the suffix that supervisord adds while it
#: makes the socket.
_SOCKET_LIMIT = 92
#: Practically for ever, but supervisord needs a number. Its pauses grow by a second each: they are 85 s long after an
#: hour and 7 min after a day.
_START_RETRIES = 1_000_000
#: Bytes at the end of the supervisor's log in which the failed starts of a component are counted.
_LOG_TAIL = 256 * 2**10


class SupervisorError(Exception):
    """The supervisor can't do what was asked; the text says why."""


@dataclass(frozen=True)
class Process:
    """A component's process, as the supervisor reports it."""

    name: str
    state: str  #: supervisord's word: STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL, UNKNOWN
    pid: int | None
    description: str  #: for a person, such as "Exited too quickly (process log may have details)"
    uptime: float  #: seconds since it was started


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


def configuration(config: Config, socket: Path, jaeger: Jaeger | None = None) -> str:
    """Text of supervisord.conf. Supervisor and components run in the home, and its paths are relative to that: an
    absolute one may have characters (%, ;, #) that mean something here. Keys reach the components by inheritance.
    """
    lines = [
        "; Written by `openclaw-rl local-start`; changes are lost.",
        "[unix_http_server]",
        f"file={_escaped(str(socket))}",
        "chmod=0700",
        "[supervisord]",
        "logfile=logs/supervisord.log",
        "logfile_maxbytes=10MB",
        "logfile_backups=1",
        "pidfile=run/supervisord.pid",
        "childlogdir=logs",
        "silent=true",
        *(["user=root"] if os.geteuid() == 0 else []),
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    policy = RestartPolicy.of_environment()
    for name in COMPONENTS:
        values = environment(config, name) | (COMPONENT_VARIABLES if jaeger else {})
        variables = ",".join(f'{key}="{value}"' for key, value in values.items())
        lines += [
            f"[program:{name}]",
            'command="%(ENV_OPENCLAW_RL_PYTHON)s" -P -m ' + f"{COMPONENT_MODULE} {name}"
            + " --config run/config.yaml",
            f"environment={variables}",
            "autostart=false",
            # One that ends with 0 was asked to (SIGTERM, Drain); any other end is a crash.
            "autorestart=unexpected",
            "exitcodes=0",
            f"startsecs={max(1, round(policy.start_seconds))}",
            f"startretries={_START_RETRIES}",
            f"stopwaitsecs={policy.stop_seconds:.0f}",
            "stopasgroup=false",
            "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile=logs/{name}.log",
            "stdout_logfile_maxbytes=20MB",
            "stdout_logfile_backups=3",
        ]
    if jaeger is not None:
        lines += jaeger.program()
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("%", "%%")


def socket_path(home: Home) -> Path:
    """Path of the supervisor's socket: in the run folder, or, when that path is too long for a unix socket or has what
    its configuration file reads as a comment, a short private folder that its digest names."""
    path = home.run / "supervisor.sock"
    if len(os.fsencode(path)) <= _SOCKET_LIMIT and not any(mark in str(path) for mark in (" ;", " #")):
        return path
    digest = hashlib.sha256(os.fsencode(home.root)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"openclaw-rl-{os.getuid()}-{digest}" / "supervisor.sock"


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
        try:
            return bool(self._call("getState")["statename"] == "RUNNING")
        except SupervisorError:
            return False

    def pid(self) -> int | None:
        """Its process id, or None when it doesn't answer."""
        try:
            return int(self._call("getPID"))
        except SupervisorError:
            return None

    def ensure(self, config: Config, timeout: float = 15, jaeger: Jaeger | None = None) -> bool:
        """Start it, without any component, unless it runs. `jaeger`: it keeps this one too.

        Returns:
            True when it was started, False when it ran already (with the configuration that it has).

        Raises:
            SupervisorError: it does not start.
            OSError: the files can't be written.
        """
        if self.running():
            return False
        self.home.create()
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        owner = self.socket.parent.stat().st_uid
        if owner != os.getuid():
            raise SupervisorError(f"{self.socket.parent} belongs to user {owner}; remove it or set TMPDIR")
        self.socket.unlink(missing_ok=True)
        write_atomically(self.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).encode())
        conf = self.home.run / "supervisord.conf"
        write_atomically(conf, configuration(config, self.socket, jaeger).encode())
        env = {**os.environ, "OPENCLAW_RL_HOME": str(self.home.root), "OPENCLAW_RL_PYTHON": sys.executable}
        if jaeger is not None:
            env |= {"OPENCLAW_RL_JAEGER": jaeger.binary, "OPENCLAW_RL_JAEGER_CONFIG": str(CONFIG_FILE)}
        out = self.home.logs / "supervisord.out"
        with out.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "supervisor.supervisord", "--nodaemon", "--configuration", str(conf)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=self.home.root,
                start_new_session=True)
        deadline = time.monotonic() + timeout
        while not self.running():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                last = out.read_text(errors="replace").strip().splitlines()[-3:]
                raise SupervisorError("supervisord does not start: " + " / ".join(last))
            time.sleep(0.05)
        return True

    def start(self, name: str) -> None:
        """Start a component, unless it is on its way up already; a pause between two tries ends. Returns at once.

        Raises:
            SupervisorError: it can't be started.
        """
        try:
            self._call("startProcess", name, False)
        except SupervisorError as error:
            if "ALREADY_STARTED" not in str(error):
                raise
            process = self.processes().get(name)
            if process is not None and process.state == "BACKOFF":
                self.stop(name)
                self._call("startProcess", name, False)

    def stop(self, name: str) -> None:
        """Stop a component and wait until it has ended.

        Raises:
            SupervisorError: it can't be stopped.
        """
        try:
            self._call("stopProcess", name, True)
        except SupervisorError as error:
            if "NOT_RUNNING" not in str(error):
                raise

    def processes(self) -> dict[str, Process]:
        """All components by name; empty when no supervisor answers."""
        try:
            infos = self._call("getAllProcessInfo")
        except SupervisorError:
            return {}
        return {info["name"]: Process(
            name=info["name"], state=info["statename"], pid=info["pid"] or None,
            description=info["spawnerr"] or info["description"],
            uptime=max(0, info["now"] - info["start"]) if info["start"] else 0) for info in infos}

    def failed_starts(self, name: str) -> int:
        """Count the starts of a component since it last stayed up, as far as the end of the log shows."""
        try:
            with (self.home.logs / "supervisord.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL))
                text = file.read().decode(errors="replace")
        except OSError:
            return 0
        for begin in ("supervisord started with pid", f"success: {name} entered RUNNING"):
            text = text.rpartition(begin)[2]
        return text.count(f"spawned: '{name}'")

    def shutdown(self, timeout: float = 2 * RestartPolicy.stop_seconds) -> bool:
        """Stop all components and the supervisor itself, and wait for their end.

        Returns:
            False when none was running.

        Raises:
            SupervisorError: it did not end in time.
        """
        pid = self.pid()
        if pid is None:
            return False
        with contextlib.suppress(SupervisorError):  # it may be on its way down already
            self._call("stopAllProcesses", False)  # all at once; `shutdown` alone goes one by one
            self._call("shutdown")
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            try:
                process.wait(timeout)
            except psutil.TimeoutExpired:
                raise SupervisorError(f"supervisord (pid {pid}) has not ended after {timeout:.0f} s") from None
        self.socket.unlink(missing_ok=True)
        if self.socket.parent != self.home.run:
            with contextlib.suppress(OSError):
                self.socket.parent.rmdir()
        return True

    def _call(self, method: str, *args: Any) -> Any:
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, serverurl=f"unix://{self.socket}")
        try:
            server = xmlrpc.client.ServerProxy("http://localhost", transport=transport)
            return getattr(server.supervisor, method)(*args)
        except xmlrpc.client.Fault as fault:
            raise SupervisorError(f"{method}: {fault.faultString}") from None
        except (OSError, xmlrpc.client.Error, EOFError) as error:
            raise SupervisorError(f"the supervisor at {self.socket} does not answer: {error}") from None
        except Exception as error:  # http.client's own errors when it ends while it answers
            raise SupervisorError(f"{method}: {error}") from None
        finally:
            transport.close()
