"""The real command line without its start: each command is a fork of one process that has loaded what commands need.

A command has its own process, arguments, folder, variables and files, as when it is started; only the half second of
imports is paid once. Run as a script this is the server; `CLIENT` is the program that stands for `openclaw-rl`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

#: Loads nothing but what it needs, and takes 30 ms.
CLIENT = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as door:
    door.connect(sys.argv[1])
    call = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(door, [len(call).to_bytes(4, "big")], [0, 1, 2])
    door.sendall(call)
    sys.exit(int(door.recv(8) or 70))
"""


@functools.cache
def program() -> Path:
    """An executable that takes the arguments of `openclaw-rl`, for commands that don't start processes which stay. The
    server behind it is one for all tests of this process, and ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="quick-"))
    client, door, file = folder / "client.py", folder / "commands.sock", folder / "openclaw-rl"
    client.write_text(CLIENT)
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {client} {door} "$@"\n')
    file.chmod(0o755)
    server = subprocess.Popen([sys.executable, "-P", __file__, str(door)], text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    atexit.register(_end, server, folder)
    assert server.stdout is not None and server.stdout.readline() == "ready\n"
    return file


def _end(server: subprocess.Popen[str], folder: Path) -> None:
    server.terminate()
    server.wait(30)
    shutil.rmtree(folder, ignore_errors=True)


def _serve(path: str) -> None:
    import openclaw_rl.api.facade
    import openclaw_rl.cli.commands
    import openclaw_rl.client.facts
    import openclaw_rl.client.traces
    import openclaw_rl.launch.status
    import openclaw_rl.rpc.auth.ca  # noqa: F401

    assert threading.active_count() == 1, "a fork has one thread only"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:  # its end: the tests have ended
            caller, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _command(caller)
            caller.close()
            while _reap():
                pass


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _command(caller: socket.socket) -> None:
    """Be one command, and end."""
    code = 70
    try:
        size, files, _, _ = socket.recv_fds(caller, 4, 3)
        call = b""
        while len(call) < int.from_bytes(size, "big"):
            call += caller.recv(65536)
        arguments, folder, variables = json.loads(call)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["openclaw-rl", *arguments]
        from openclaw_rl.cli import main

        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            caller.sendall(str(code).encode())
        finally:
            os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
