"""Lock against a second process of the same component in the same home."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from openclaw_rl.runtime.home import Home, make_way

#: Seconds that a process which was just killed may still hold the lock.
_PATIENCE = 2.0


class AlreadyRuns(OSError):
    """Another process runs this component in this home; the text names it."""


@contextmanager
def only_process(home: Home, name: str) -> Iterator[None]:
    """Hold the lock of a component's folder, which is made. The kernel releases it when the process ends.

    Raises:
        AlreadyRuns: another one holds it.
        OSError: the folder can't be written.
    """
    folder = home.component(name)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "process.lock"
    make_way(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    pid = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                    raise AlreadyRuns(f"{name} of {home.root} runs already, as pid {pid}: two of them would train and "
                                      "answer against each other. Stop that one, or give this one a home of its own "
                                      "(OPENCLAW_RL_HOME)") from None
                time.sleep(0.05)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            pass  # a full disk: the lock holds, only its owner can't be named
        yield
    finally:
        os.close(fd)


def machine_lock(name: str) -> socket.socket | None:
    """Take a lock of the whole machine, of whatever user; None when somebody else holds it. It is held until the socket
    is closed or the process ends. Always free on systems other than Linux.

    It is the name of a socket that nobody connects to, so nothing has to be removed, and it reaches as far as ports do:
    to the containers that share this network.
    """
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        try:
            lock.bind(f"\0openclaw-rl {name}")
        except OSError as error:
            lock.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return None
    return lock
