"""The rig without a test: `python -m tests.hosts.rig`, see there."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.hosts.box import BoxError
from tests.hosts.capture import Capture
from tests.hosts.rig import Host, Rig, why_not

_CLIENT = """#!/bin/sh
exec {python} - "$@" <<'END'
import json, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect({socket!r})
s.sendall((json.dumps(sys.argv[1:]) + "\\n").encode())
answer = s.makefile().read()
print(answer.partition("\\n")[2].rstrip())
sys.exit(int(answer.partition("\\n")[0]))
END
"""
_HOST = """#!/bin/sh
exec nsenter -t "$(cat {pid})" --net --mount --uts --pid --wdns={home} -- env -i TERM="$TERM" {env} "$@"
"""


def _script(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


class Desk:
    """Does what the script `rig` asks for."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self._capture: Capture | None = None

    def _host(self, name: str) -> Host:
        return next(host for host in self.rig.hosts if name in (host.name, host.address))

    def do(self, what: str, *args: str) -> str:
        """One command; its answer."""
        match what, args:
            case "partition", names:
                self.rig.partition(*map(self._host, names))
            case "heal", ():
                self.rig.heal()
            case "kill", (name,):
                self.rig.kill(self._host(name))
            case "start", (name,):
                self.rig.start(self._host(name))
            case "limit", (name, rate):
                self.rig.limit(self._host(name), rate)
            case "delay", (name, milliseconds):
                self.rig.delay(self._host(name), float(milliseconds))
            case "capture", (file,):
                self._capture = self.rig.capture(Path(file))
            case "capture", () if self._capture:
                self._capture.stop()
            case "ps", ():
                return json.dumps(self.rig.processes(), indent=2)
            case _:
                raise ValueError(f"unknown: {shlex.join([what, *args])}")
        return "done"


def _serve(desk: Desk, listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            request: list[Any] = json.loads(connection.makefile().readline())
            try:
                answer = f"0\n{desk.do(*request)}"
            except (BoxError, ValueError, TypeError, StopIteration, OSError) as error:
                answer = f"1\n{type(error).__name__}: {error}"
            connection.sendall(answer.encode())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.rig")
    parser.add_argument("--folder", type=Path, help="for all files; default a new one in /var/tmp")
    parser.add_argument("--models", type=Path, help="folder of prepared models, each host's ~/.openclaw-rl/models")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    folder: Path = args.folder or Path(tempfile.mkdtemp(prefix="rig-", dir="/var/tmp"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Rig(folder, args.models) as rig, socket.socket(socket.AF_UNIX) as listener:
        path = folder / "rig.sock"
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen()
        for host in rig.hosts:
            env = " ".join(shlex.quote(f"{key}={value}") for key, value in host.env.items())
            _script(folder / host.name, _HOST.format(pid=folder / f"{host.name}.pid", home=Path.home(), env=env)
                    .replace("/bin/sh\nexec", "/bin/sh\n[ $# -gt 0 ] || set -- sh -i\nexec"))
        _script(folder / "rig", _CLIENT.format(python=sys.executable, socket=str(path)))
        print(f"{folder}: host1 to host4 CMD..., rig COMMAND; pid {os.getpid()}; Ctrl-C ends it", flush=True)
        try:
            _serve(Desk(rig), listener)
        except KeyboardInterrupt:
            pass
