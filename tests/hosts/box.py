"""A box: a process with namespaces of its own (network, mounts, processes, host name) that can be killed whole.

Nothing of it has a name outside: no entry in /run/netns, no veth in the machine's own network, no mount outside. When
the box's process ends, and it ends with the one that made it, also by SIGKILL, the kernel takes all of it away.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from openclaw_rl.runtime.process import all_processes

#: Ends with the thread that started it, so start boxes from one that lives as long as they should.
_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


class BoxError(Exception):
    """A command of ours failed; the text has its output."""


def check(*command: str) -> str:
    """Run a command that has to succeed.

    Raises:
        BoxError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise BoxError(f"{shlex.join(command)}: exit {done.returncode}: {done.stdout}{done.stderr}".strip())
    return done.stdout


class Box:
    """One box.

    Args:
        name: its host name.
        folder: for its log.
        script: shell commands that its first process runs, last of them an `exec` of what stays. They come in the
            box's namespaces, its network still without links.
        env: variables of everything in it.
    """

    def __init__(self, name: str, folder: Path, script: str, env: Mapping[str, str]) -> None:
        self.name, self.folder, self.script, self.env = name, folder, script, dict(env)
        self._outer: subprocess.Popen[bytes] | None = None
        self.pid = 0  #: of its first process, as the machine sees it

    def boot(self) -> None:
        """Start it; returns when its namespaces are there.

        Raises:
            BoxError: it ended at once.
        """
        ready = self.folder / f"{self.name}.ready"
        ready.unlink(missing_ok=True)
        script = "\n".join([f"hostname {self.name}", "mount --make-rprivate /",
                            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 || true", f": > {ready}", self.script])
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._outer = subprocess.Popen(
                [*_WITH_PARENT, "unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc",
                 "--kill-child", "sh", "-ec", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True)
        deadline = time.monotonic() + 30
        while not ready.exists():
            if self._outer.poll() is not None or time.monotonic() > deadline:
                raise BoxError(f"{self.name} does not start: {self.log()}")
            time.sleep(0.01)
        self.pid = psutil.Process(self._outer.pid).children()[0].pid
        self.ip("link", "set", "lo", "up")

    def log(self) -> str:
        """The end of what its first process said."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")[-2000:]

    @property
    def alive(self) -> bool:
        return self._outer is not None and self._outer.poll() is None

    def kill(self) -> None:
        """SIGKILL to everything in it at once; returns when nothing is left."""
        if self._outer is None:
            return
        pids = [process.pid for process in self.processes()]
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # the kernel kills the rest of its process namespace
        self._outer.kill()
        self._outer.wait(30)
        deadline = time.monotonic() + 30
        while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
            time.sleep(0.01)

    def processes(self) -> list[psutil.Process]:
        """All that run in it, its first process included."""
        if not self.alive:
            return []
        return [process for process in all_processes() if _namespace(process.pid) == _namespace(self.pid)]

    def inside(self, command: Sequence[str], folder: str = "/") -> list[str]:
        """The command line that runs a command in it."""
        return ["nsenter", "-t", str(self.pid), "--net", "--mount", "--uts", "--pid", f"--wdns={folder}", "--",
                *command]

    def run(self, command: str | Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 120,
            input: str | None = None, check: bool = True, folder: str = "/") -> subprocess.CompletedProcess[str]:
        """Run a command in it, a string by the shell.

        Raises:
            BoxError: it failed, unless `check` is false.
        """
        command = ["sh", "-c", command] if isinstance(command, str) else list(command)
        done = subprocess.run(self.inside(command, folder), env={**self.env, **(env or {})}, capture_output=True,
                              text=True, timeout=timeout, check=False, input=input)
        if check and done.returncode:
            raise BoxError(f"{self.name}: {shlex.join(command)}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def popen(self, command: str | Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
              ) -> subprocess.Popen[Any]:
        """Start a command in it, which ends with the box."""
        command = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return subprocess.Popen([*_WITH_PARENT, *self.inside(command)], env={**self.env, **(env or {})}, **options)

    def beside(self) -> list[str]:
        """The begin of a command line that runs one of the machine's own commands in its network alone, until the one
        who started it ends."""
        return [*_WITH_PARENT, "nsenter", "-t", str(self.pid), "--net", "--"]

    def net(self, *command: str) -> str:
        """Run one of the machine's own commands in its network alone; it has to succeed."""
        return check("nsenter", "-t", str(self.pid), "--net", "--", *command)

    def ip(self, *args: str) -> str:
        """`ip` in its network; it has to succeed."""
        return self.net("ip", *args)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return str(pid)
