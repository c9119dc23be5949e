"""Clients that hold on to connections, and small bodies that are large when they are unpacked."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from openclaw_rl.conformance.http2 import PREFACE, frame, watch
from tools.campaign.checker import Table

#: What a slow client says first, and then again and again: nothing, half a head, half a body.
HTTP_DRIPS = ((b"", b""), (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"a"),
              (b"POST /v1/feedback HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
               b"Content-Length: 100000\r\n\r\n", b" "),
              (b"POST /v1/feedback HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"))
#: The same of HTTP/2: nothing, half a preface, a head without an end.
GRPC_DRIPS = ((b"", b""), (PREFACE[:10], b""),
              (PREFACE + frame(4, 0, 0, b"") + (8000).to_bytes(3, "big") + b"\x01\0\0\0\0\x01", b"\x82"))
#: Seconds by which the documented limits have ended them: 15 for a head and 30 for a body of HTTP
#: (serving/entrypoints/openai/README.md), 20 for a handshake of gRPC and 60 for one who answers no PING
#: (rpc/auth/SECURITY.md), and as much again for a loaded machine.
HTTP_ENDS, GRPC_ENDS = 60.0, 120.0
#: Seconds between two drops, and that a normal client may wait.
_DRIP, _PATIENCE = 0.25, 30.0
#: MiB that memory may grow after the first third of the bombs.
GROWTH = 48
#: Bytes of a bomb once it is unpacked: more than any message or body may have, and yet one packet.
_UNPACKED = 48 << 20


#: Bytes that the server's process takes.
Memory = Callable[[], int]


@dataclass
class Slow:
    """Slow clients: how long each was endured, in seconds, and how many still are."""

    lasted: list[float] = field(default_factory=list)
    left: int = 0


async def slow_clients(host: str, port: int, drips: tuple[tuple[bytes, bytes], ...], count: int, seconds: float
                       ) -> Slow:
    """Hold so many connections for as long as the server lets them, but no longer than so many seconds."""
    slow = Slow()

    async def hold(first: bytes, drip: bytes) -> None:
        began = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError:
            slow.lasted.append(0.0)
            return
        try:
            writer.write(first)
            while time.monotonic() - began < seconds:
                writer.write(drip)
                try:
                    async with asyncio.timeout(_DRIP):
                        await writer.drain()
                        if not await reader.read(1 << 16):
                            break
                except TimeoutError:
                    pass
            else:
                slow.left += 1
                return
        except OSError:
            pass
        finally:
            writer.close()
        slow.lasted.append(time.monotonic() - began)

    await asyncio.gather(*(hold(*drips[i % len(drips)]) for i in range(count)))
    return slow


@asynccontextmanager
async def normal_client(url: str, table: Table) -> AsyncIterator[None]:
    """One that asks meanwhile, from an address of its own: it is answered each time."""
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    ended = asyncio.Event()

    async def ask() -> None:
        async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=_PATIENCE) as client:
            while not ended.is_set():
                table.count("normal requests beside")
                try:
                    answer = await client.post(f"{url}/v1/chat/completions", json={
                        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
                    if answer.status_code != 200:
                        table.count("normal requests beside", "wrong", example=answer.text[:200])
                except httpx.HTTPError as error:
                    table.count("normal requests beside", "lost", example=repr(error))
                await asyncio.sleep(0.2)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        ended.set()
        await asking


async def slowloris(url: str, grpc: dict[str, str], table: Table, count: int = 200) -> None:
    """Slow clients at the HTTP port and at each gRPC port, so many in all, with a normal client beside."""
    address = httpx.URL(url)
    each = max(1, count // (2 * len(grpc)))
    async with normal_client(url, table):
        http, *others = await asyncio.gather(
            slow_clients(address.host, address.port or 80, HTTP_DRIPS, count // 2, HTTP_ENDS),
            *(slow_clients(*_split(at), GRPC_DRIPS, each, GRPC_ENDS) for at in grpc.values()))
    for what, found in (("slow HTTP connections", [http]), ("slow gRPC connections", others)):
        table.count(what, number=sum(len(slow.lasted) + slow.left for slow in found))
        if left := sum(slow.left for slow in found):
            table.count(what, "wrong", left, "they were not ended")
        longest = max(max(slow.lasted, default=0.0) for slow in found)
        table.count(f"  {what}: seconds of the longest", number=round(longest))


async def http_bombs(url: str, table: Table, memory: Memory, count: int = 60) -> None:
    """Send so many bodies that are much larger once unpacked: each is refused, unopened."""
    packed = _packed()
    bodies = [*packed.items(), ("gzip, gzip", gzip.compress(packed["gzip"], 9)), ("br", packed["gzip"])]

    async def one(number: int) -> str:
        name, body = bodies[number % len(bodies)]
        answer = await client.post(f"{url}/v1/chat/completions", content=body, headers={
            "Content-Encoding": name, "Content-Type": "application/json"})
        return "" if answer.status_code == 415 else f"{name}: {answer.status_code} {answer.text[:200]}"

    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        await _repeat("HTTP bombs", one, table, memory, count)


async def grpc_bombs(address: str, table: Table, memory: Memory, count: int = 60) -> None:
    """Send so many messages to the judge at HOST:PORT that are much larger once unpacked: each ends its call."""
    packed = list(_packed().items())

    async def one(number: int) -> str:
        name, body = packed[number % len(packed)]
        try:
            found = await watch(address, "/openclaw_rl.v1.JudgeService/Judge", body, "30S", 60, name)
        except ConnectionRefusedError:
            return "nobody listens any more"
        except OSError:  # the call was ended with its connection
            return ""
        return f"{name}: not refused, {found}" if found.ended is None or found.messages else ""

    await _repeat("gRPC bombs", one, table, memory, count)


async def _repeat(what: str, one: Callable[[int], Awaitable[str]], table: Table, memory: Memory, count: int) -> None:
    """Do it so often; wrong is what it says, and memory that grows after the first third."""
    settled = 0
    for number in range(count):
        table.count(what)
        if wrong := await one(number):
            table.count(what, "wrong", example=wrong)
        if number == count // 3:
            settled = memory()
    grown = memory() - settled >> 20
    table.count(f"  {what}: MiB grown", number=max(0, grown))
    if grown > GROWTH:
        table.count(what, "wrong", example=f"memory grew by {grown} MiB")


def _packed() -> dict[str, bytes]:
    zeros = bytes(_UNPACKED)
    return {"gzip": gzip.compress(zeros, 9), "deflate": zlib.compress(zeros, 9)}


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
