"""Run one of our own steps (`node`) on a host: here, or over ssh. A step gets JSON and gives JSON; what must not be
seen by others on the host goes the same way, never on a command line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import psutil

from openclaw_rl.config import DistributedConfig

#: What a host runs.
NODE_MODULE = "openclaw_rl.launch.distributed.node"
#: Seconds for a connection, and between signs of life of one.
_CONNECT, _ALIVE = 10, 5

Say = Callable[[str], None]


class HostError(Exception):
    """A step could not be done on a host; the text says why, without the host's name."""


class Host(Protocol):
    """One host."""

    name: str

    def call(self, step: str, /, timeout: float = 60, say: Say | None = None, **payload: Any) -> Any:
        """Do a step of `node` there.

        Args:
            timeout: seconds.
            say: takes lines about its progress.

        Raises:
            HostError: it could not be done.
        """

    def run(self, command: Sequence[str], timeout: float = 30) -> str:
        """Run a command there; what it prints. Raises HostError when it fails."""


class _ByCommand:
    """A host that is reached by a command line."""

    def __init__(self, name: str, python: str) -> None:
        self.name, self.python = name, python

    def _line(self, command: Sequence[str]) -> list[str]:
        raise NotImplementedError

    def _explain(self, code: int, errors: str) -> str:
        last = [line for line in errors.splitlines() if line.strip()][-3:]
        return " / ".join(last) or f"exit code {code}"

    def run(self, command: Sequence[str], timeout: float = 30) -> str:
        code, output, errors = _communicate(self._line(command), b"", timeout, None)
        if code:
            raise HostError(self._explain(code, errors))
        return output.decode(errors="replace")

    def call(self, step: str, /, timeout: float = 60, say: Say | None = None, **payload: Any) -> Any:
        command = [self.python, "-P", "-m", NODE_MODULE, step]
        code, output, errors = _communicate(self._line(command), json.dumps(payload).encode(), timeout, say)
        try:
            answer = json.loads(output.splitlines()[-1])
        except (IndexError, ValueError):
            raise HostError(self._explain(code, errors)) from None
        if "error" in answer:
            raise HostError(answer["error"])
        return answer["result"]


class Here(_ByCommand):
    """This machine."""

    def _line(self, command: Sequence[str]) -> list[str]:
        return list(command)


class Ssh(_ByCommand):
    """A host by ssh, which asks for nothing: keys and known hosts are the user's affair."""

    def __init__(self, name: str, python: str, settings: DistributedConfig) -> None:
        super().__init__(name, python)
        self.options = ssh_options(settings)
        self.target = f"{settings.ssh_user}@{name}" if settings.ssh_user else name

    def _line(self, command: Sequence[str]) -> list[str]:
        # The login shell may be any; what is quoted here means the same in all of them.
        return ["ssh", *self.options, self.target, shlex.join(command)]

    def _explain(self, code: int, errors: str) -> str:
        by_hand = shlex.join(["ssh", *(o for o in self.options if o != "BatchMode=yes"), self.target]).replace(
            " -o -o", " -o")
        if "Host key verification failed" in errors:
            return f"ssh does not know its host key, or another one than now; look at it by hand: {by_hand}"
        if "Permission denied" in errors and code == 255:
            return (f"ssh lets nobody in without a question: put a public key into its authorized_keys, and name the "
                    f"private one in distributed.ssh_key (by hand: {by_hand})")
        if code == 255:
            return f"can't be reached by ssh: {super()._explain(code, errors)}"
        return super()._explain(code, errors)


def ssh_options(settings: DistributedConfig) -> list[str]:
    """Options of every ssh command."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT}", "-o", f"ServerAliveInterval={_ALIVE}",
               "-o", "ServerAliveCountMax=3", "-p", str(settings.ssh_port)]
    if settings.ssh_key is not None:
        options += ["-i", str(settings.ssh_key.expanduser()), "-o", "IdentitiesOnly=yes"]
    return options


def is_here(address: str) -> bool:
    """The IP address is one of this machine's own."""
    return any(entry.address.partition("%")[0] == address
               for entries in psutil.net_if_addrs().values() for entry in entries)


def python_of(settings: DistributedConfig) -> str:
    """The Python that the hosts run."""
    return settings.python or sys.executable


def reach(hosts: Iterable[str], settings: DistributedConfig) -> dict[str, Host]:
    """Each host, by its IP address."""
    python = python_of(settings)
    return {host: Here(host, python) if is_here(host) else Ssh(host, python, settings) for host in hosts}


def on_all(hosts: Mapping[str, Host], do: Callable[[Host], Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Do something on all hosts at once.

    Returns:
        The results, and the errors, by host.
    """
    results: dict[str, Any] = {}
    errors: dict[str, str] = {}

    def one(host: Host) -> None:
        try:
            results[host.name] = do(host)
        except HostError as error:
            errors[host.name] = str(error)

    with ThreadPoolExecutor(max(1, len(hosts))) as pool:
        list(pool.map(one, hosts.values()))
    return results, errors


def _communicate(command: list[str], data: bytes, timeout: float, say: Say | None) -> tuple[int, bytes, str]:
    """Run a command to its end; (exit code, stdout, stderr), stderr's lines being said as they come."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=_environment())
    except OSError as error:
        return 127, b"", f"{command[0]}: {error.strerror}"
    lines: list[str] = []

    def listen() -> None:
        assert process.stderr is not None
        for raw in process.stderr:
            lines.append(raw.decode(errors="replace").rstrip())
            if say is not None:
                say(lines[-1])

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert process.stdin is not None and process.stdout is not None
    stdin, process.stdin = process.stdin, None
    try:
        try:
            stdin.write(data)
            stdin.close()
        except BrokenPipeError:
            pass
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            output = process.stdout.read()
            code = process.wait()
        finally:
            expired = not timer.is_alive()
            timer.cancel()
    except BaseException:  # Ctrl-C: the step ends with us
        process.kill()
        process.wait()
        raise
    listener.join(5)
    if expired:
        return 124, b"", f"no answer in {timeout:.0f} s"
    return code, output, "\n".join(lines)


def _environment() -> dict[str, str]:
    """Ours, without what would turn a step here into something else than one over ssh."""
    return {key: value for key, value in os.environ.items() if key != "OPENCLAW_RL_HOME" and not key.startswith("RAY_")}
