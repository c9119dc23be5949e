"""A listener that nobody has any business at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Canary:
    """Counts its visitors.

    Attributes:
        address: HOST:PORT.
        visits: the first bytes of each.
    """

    def __init__(self) -> None:
        self.address = ""
        self.visits: list[bytes] = []

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits.append(b"")
        number = len(self.visits) - 1
        try:
            self.visits[number] = await reader.read(1000)
        except ConnectionError:
            pass
        writer.close()


@asynccontextmanager
async def canary() -> AsyncIterator[Canary]:
    """One on a free port of loopback."""
    made = Canary()
    server = await asyncio.start_server(made._visited, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    made.address = f"{host}:{port}"
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def redirecting(status: int, location: str) -> AsyncIterator[str]:
    """HOST:PORT of a server that answers all requests by a redirect."""
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n"
                         "Connection: close\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
