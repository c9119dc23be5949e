"""What a component tells the supervisor that started it, ours or systemd (sd_notify(3)): ready, progress, failure."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

#: Variable with the path of the supervisor's socket.
SOCKET_VARIABLE = "NOTIFY_SOCKET"
#: Assignments: ready to work, asked to end, what the component is doing; and, of our own, why it can't run, as JSON.
READY, STOPPING, STATUS, FAILURE = "READY", "STOPPING", "STATUS", "X_OPENCLAW_RL_FAILURE"
_LARGEST = 16384
#: What the receiver's own thread is told, and the seconds that it has to get there.
_FLUSH, _PATIENCE = b"\0", 5.0


def ready() -> None:
    """The component can work."""
    _send(f"{READY}=1")


def stopping() -> None:
    """The component was asked to end."""
    _send(f"{STOPPING}=1")


def progress(text: str) -> None:
    """Tell what a start is busy with, such as "loading the model"."""
    _send(f"{STATUS}={_line(text)}")


def failed(reason: str) -> None:
    """Tell why the component is about to end. Call it as soon as that is known: what is open takes a while to close."""
    _send(f"{STATUS}=Failed: {_line(reason)}\n{FAILURE}={json.dumps(reason[:_LARGEST // 4])}")


def _line(text: str) -> str:
    return " ".join(text.split())[:500]


def _send(state: str) -> None:
    """Does nothing without a supervisor. Never waits for one that doesn't read."""
    path = os.environ.get(SOCKET_VARIABLE, "")
    if not path.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
    except OSError as error:
        logger.warning("the supervisor was not told %s: %s", state.partition("=")[0], error)


class NotifySocket:
    """The supervisor's end for one process.

    Args:
        path: of the socket, which is made; at most 107 bytes, in a folder that only we can enter.
        received: called on another thread with each message's assignments.

    Raises:
        OSError: the socket can't be made.
    """

    def __init__(self, path: Path, received: Callable[[dict[str, str]], None]) -> None:
        self.path, self._received = path, received
        self._flushed = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            path.unlink(missing_ok=True)
            self._socket.bind(str(path))
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._listen, name=f"notify {path.name}", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while message := self._socket.recv(_LARGEST):
            if message == _FLUSH:
                self._flushed.set()
                continue
            lines = message.decode(errors="replace").splitlines()
            try:
                self._received(dict(line.split("=", 1) for line in lines if "=" in line))
            except Exception:
                logger.exception("a message of the process behind %s", self.path.name)

    def flush(self) -> None:
        """Wait until all that was sent so far is received."""
        self._flushed.clear()
        if self._send(_FLUSH):
            self._flushed.wait(_PATIENCE)

    def close(self) -> None:
        """Receive what was sent so far, and remove the socket."""
        if self._send(b""):
            self._thread.join(_PATIENCE)
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _send(self, message: bytes) -> bool:
        """To our own thread, which has received what came before when it receives this."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(_PATIENCE)
                sender.sendto(message, str(self.path))
            return True
        except OSError:  # somebody has removed the socket
            return False


def failure(assignments: dict[str, str]) -> str:
    """The reason in a message of `failed`; empty in others."""
    try:
        return str(json.loads(assignments.get(FAILURE, '""')))
    except ValueError:
        return ""
