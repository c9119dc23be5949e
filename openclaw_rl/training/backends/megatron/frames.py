"""Protocol between the trainer's process and the ranks: frames of JSON and raw bytes. Nothing is pickled.

A frame is MAGIC, the JSON's length (4 bytes, big-endian), the raw part's length (8 bytes), the JSON object and the raw
part.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

from typing_extensions import Buffer

from openclaw_rl.runtime.json import parse_json

MAGIC = b"ORL1"
_HEAD = struct.Struct(">4sIQ")
#: Bytes that a frame may have: a batch as JSON, and one tensor.
MAX_JSON, MAX_RAW = 256 << 20, 64 << 30

#: Variables by which the ranks learn where the trainer's process listens, and how they prove that they belong to it.
FOLDER_VARIABLE, TOKEN_VARIABLE = "OPENCLAW_RL_GROUP_FOLDER", "OPENCLAW_RL_GROUP_TOKEN"
#: Files in that folder: the socket, torchrun's rendezvous, the process group's store.
SOCKET_FILE, RENDEZVOUS_FILE, STORE_FILE = "control", "rendezvous", "store"


class Closed(Exception):
    """The other end has closed the connection."""


class BadFrame(Exception):
    """The received bytes are not a frame."""


class Channel:
    """One end of a connection. Where one thread sends and another receives, both wait for ever."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: dict[str, Any], raw: Buffer = b"", seconds: float | None = None) -> None:
        """Send a frame; blocks while the other end is behind.

        Args:
            data: the JSON object.
            raw: what follows it.
            seconds: for the whole of it; None waits for ever.

        Raises:
            Closed: the other end has gone.
            TimeoutError: it did not take it in time.
        """
        text = json.dumps(data).encode()
        view = memoryview(raw).cast("B")
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(_HEAD.pack(MAGIC, len(text), view.nbytes) + text)
            if view.nbytes:
                self._socket.sendall(view)
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], bytearray]:
        """Receive the next frame.

        Args:
            seconds: for the whole of it; None waits for ever.

        Raises:
            Closed: the other end has gone.
            BadFrame: it is none.
            TimeoutError: it did not come in time.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        magic, length, raw = _HEAD.unpack(self._read(_HEAD.size, deadline))
        if magic != MAGIC or length > MAX_JSON or raw > MAX_RAW:
            raise BadFrame(f"a frame can't begin with {bytes(magic)!r} and lengths {length} and {raw}")
        try:
            data = parse_json(self._read(length, deadline))
        except ValueError as error:
            raise BadFrame(f"not JSON: {error}") from None
        if not isinstance(data, dict):
            raise BadFrame(f"an object is needed, not a {type(data).__name__}")
        return data, self._read(raw, deadline)

    def _read(self, count: int, deadline: float | None) -> bytearray:
        content = bytearray(count)
        view, at = memoryview(content), 0
        while at < count:
            try:
                self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))
                read = self._socket.recv_into(view[at:])
            except TimeoutError:
                raise
            except OSError as error:
                raise Closed(str(error)) from None
            if not read:
                raise Closed("it ended" if not at else "it ended within a frame")
            at += read
        return content

    def close(self) -> None:
        """Close the connection."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # also for a thread that waits in `receive`
        except OSError:
            pass
        self._socket.close()
