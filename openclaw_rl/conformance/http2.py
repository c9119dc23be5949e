"""A call without a gRPC library: what the server does by itself, when no library at the caller's end helps it.

Just enough of HTTP/2 (RFC 9113) to open one call with one message and watch it.
"""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


@dataclass
class Watched:
    """What became of a call.

    Attributes:
        messages: frames of data that came.
        ended: seconds until the server ended it; None when it had not by then.
    """

    messages: int = 0
    ended: float | None = None


async def watch(address: str, path: str, payload: bytes, deadline: str, seconds: float, encoding: str = "") -> Watched:
    """Open a call and watch it for so many seconds, or until the server ends it; nothing is sent but what HTTP/2 asks
    for.

    Args:
        path: "/openclaw_rl.v1.ComponentService/WatchStats".
        payload: the request.
        deadline: the header grpc-timeout, such as "500m".
        encoding: in which the payload is compressed, such as "gzip".

    Raises:
        OSError: no connection, or it broke.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    result = Watched()
    try:
        headers = b"".join(literal(name, value) for name, value in (
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", address),
            ("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", deadline),
            *((("grpc-encoding", encoding),) if encoding else ())))
        body = struct.pack(">BI", bool(encoding), len(payload)) + payload
        writer.write(PREFACE + frame(_SETTINGS, 0, 0, b"") + frame(_HEADERS, _END_HEADERS, 1, headers)
                     + frame(_DATA, _END_STREAM, 1, body))
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    head = await reader.readexactly(9)
                    size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                    stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                    content = await reader.readexactly(size)
                    if kind == _SETTINGS and not flags & _ACK:
                        writer.write(frame(_SETTINGS, _ACK, 0, b""))
                    elif kind == _PING and not flags & _ACK:
                        writer.write(frame(_PING, _ACK, 0, content))
                    elif kind == _GOAWAY:
                        raise ConnectionResetError("the server ended the connection (GOAWAY)")
                    result.messages += kind == _DATA and stream == 1 and size > 0
                    if stream == 1 and (kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM)):
                        result.ended = time.monotonic() - began
                        return result
        except TimeoutError:
            return result
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server closed the connection") from None
    finally:
        writer.close()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name: str, value: str) -> bytes:
    """A header, neither compressed nor indexed (RFC 7541, 6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    """RFC 7541, 5.2; lengths with a prefix of 7 bits."""
    raw = text.encode()
    size, prefix = len(raw), b""
    if size < 127:
        prefix = bytes((size,))
    else:
        prefix, size = b"\x7f", size - 127
        while size >= 128:
            prefix, size = prefix + bytes((size % 128 + 128,)), size // 128
        prefix += bytes((size,))
    return prefix + raw
