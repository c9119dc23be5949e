"""The long-running calls of the Docker API: a process's pipes, and waiting for a container's end.

The SDK returns a process's pipes as a blocking socket, which may have lost data that came with the answer's header; so
these two run on the event loop, over the engine's unix socket or plain TCP.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

_HEADER = 8  #: header of each frame: its stream, three zeros, its size


class EngineError(Exception):
    """The engine rejected a call."""


async def connect(base_url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the engine.

    Raises:
        OSError: it does not answer.
    """
    url = urlsplit(base_url)
    if url.scheme in ("unix", "http+unix"):
        return await asyncio.open_unix_connection(url.path or url.netloc, limit=65536)
    return await asyncio.open_connection(url.hostname, url.port or 2375, limit=65536)


async def post(base_url: str, path: str, body: Mapping[str, Any] | None, *, upgrade: bool) \
        -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Make a call whose answer is a stream; the reader continues after the header.

    Raises:
        OSError, EngineError.
    """
    reader, writer = await connect(base_url)
    try:
        data = json.dumps(body).encode() if body is not None else b""
        lines = [f"POST {path} HTTP/1.1", "Host: engine", "Content-Type: application/json",
                 f"Content-Length: {len(data)}", *(["Connection: Upgrade", "Upgrade: tcp"] if upgrade else [])]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await writer.drain()
        header = await reader.readuntil(b"\r\n\r\n")
        status = int(header.split(None, 2)[1])
        if status not in (101, 200):
            raise EngineError(f"{status}: {(await reader.read(2000)).decode('utf-8', 'replace').strip()}")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        writer.close()
        raise EngineError(f"the answer can't be understood: {error}") from error
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def ended(base_url: str, version: str, container: str) -> int | None:
    """Wait for a container's end; returns its exit code, None if the engine does not say.

    Raises:
        OSError, EngineError.
    """
    reader, writer = await post(base_url, f"/v{version}/containers/{container}/wait", None, upgrade=False)
    answer = b""
    try:
        while b"}" not in answer:
            piece = await reader.read(4096)
            if not piece:
                break
            answer += piece
    finally:
        writer.close()
    found = re.search(rb'"StatusCode":\s*(\d+)', answer)
    return int(found[1]) if found else None


class Output:
    """stdout and stderr of a process, demultiplexed from the engine's frames."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._left = 0  #: bytes left in the present frame

    async def read(self, most: int) -> bytes:
        """Read the next output; empty at the end."""
        try:
            while self._left == 0:
                self._left = int.from_bytes((await self._reader.readexactly(_HEADER))[4:], "big")
            data = await self._reader.read(min(most, self._left))
        except (asyncio.IncompleteReadError, OSError):
            return b""
        self._left -= len(data)
        return data
