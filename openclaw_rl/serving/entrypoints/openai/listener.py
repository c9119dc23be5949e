"""Accepts connections, with limits per address and in total and a time limit for TLS handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable

from openclaw_rl.serving.entrypoints.openai.connection import ClientTimeouts, Connection

logger = logging.getLogger(__name__)

_TLS_RECORD = b"\x16"  # the first byte of a handshake
_RESERVED = 256  # files that the process needs for other things
_HTTPS_NEEDED = (b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
                   b"content-length: %d\r\n\r\n%s")
_TOO_MANY = (b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nconnection: close\r\n"
             b"retry-after: 1\r\ncontent-length: 123\r\n\r\n"
             b'{"error":{"message":"Too many connections are open.","type":"rate_limit_error",'
             b'"param":null,"code":"too_many_connections"}}')
_PLAIN_BODY = (b'{"error":{"message":"This port speaks HTTPS: use https:// in the address.",'
               b'"type":"invalid_request_error","param":null,"code":"https_needed"}}')


def client_address(host: str) -> str:
    """The address that limits count by: the /64 network of an IPv6 client."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


class Listener:
    """Accepts on a listening socket until it is closed. It has the part of asyncio.Server's interface that uvicorn
    uses.

    Args:
        make: makes a connection's protocol.
        tls: returns the context for the next connection; None for plain HTTP.
        per_address: open connections of one address, at most; see `client_address`.
        refused: called for each connection that is refused, with a reason for the metrics.
        unlimited: whether an address may have any number of them.
    """

    def __init__(self, listening: socket.socket, make: Callable[[], Connection],
                 tls: Callable[[], ssl.SSLContext] | None, per_address: int, timeouts: ClientTimeouts,
                 refused: Callable[[str], None], unlimited: Callable[[str], bool]) -> None:
        listening.setblocking(False)
        self._socket, self._make, self._tls = listening, make, tls
        self._per_address, self._timeouts, self._refused, self._unlimited = per_address, timeouts, refused, unlimited
        self._most = _room_for_connections()
        self._open: Counter[str] = Counter()
        self._arriving: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept(), name="http accept")

    def close(self) -> None:
        """Accept no more; established connections stay, those still in their handshake are dropped."""
        self._accepting.cancel()
        for task in self._arriving:
            task.cancel()
        self._socket.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._arriving, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, peer = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.error("can't accept connections: %s", error.strerror)
                    self._refused("no_files")
                    await asyncio.sleep(0.5)  # until some have closed
                elif self._socket.fileno() < 0:
                    return
                continue
            address = client_address(peer[0])
            many = self._open[address] >= self._per_address and not self._unlimited(address)
            if many or self._open.total() >= self._most:
                self._refused("connections")
                if self._tls is None:
                    with contextlib.suppress(OSError):
                        client.send(_TOO_MANY)
                client.close()
            else:
                self._open[address] += 1
                task = asyncio.create_task(self._arrive(client, self._releaser(address)))
                self._arriving.add(task)
                task.add_done_callback(self._arriving.discard)
            await asyncio.sleep(0)  # let others run during a burst of connections

    async def _arrive(self, client: socket.socket, release: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def make() -> Connection:
            connection = self._make()
            connection.on_lost = release
            return connection

        try:
            _keep_alive(client, self._timeouts)
            if self._tls is None:
                await loop.connect_accepted_socket(make, client)
                return
            async with asyncio.timeout(self._timeouts.handshake):
                first = await _peek(client)
            if first == _TLS_RECORD:
                await loop.connect_accepted_socket(make, client, ssl=self._tls(),
                                                   ssl_handshake_timeout=self._timeouts.handshake,
                                                   ssl_shutdown_timeout=self._timeouts.linger)
                return
            if first:
                await self._tell_https(client)
        except (OSError, TimeoutError):  # also ssl.SSLError
            self._refused("handshake")
        except BaseException:
            release()
            client.close()
            raise
        release()
        client.close()

    async def _tell_https(self, client: socket.socket) -> None:
        self._refused("https_needed")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeouts.linger):
            await loop.sock_sendall(client, _HTTPS_NEEDED % (len(_PLAIN_BODY), _PLAIN_BODY))
            client.shutdown(socket.SHUT_WR)
            for _ in range(64):
                if not await loop.sock_recv(client, 2**16):
                    break

    def _releaser(self, address: str) -> Callable[[], None]:
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._open[address] -= 1
                if not self._open[address]:
                    del self._open[address]

        return release


async def _peek(client: socket.socket) -> bytes:
    """Return the first byte without consuming it; empty when the client has closed."""
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    while True:
        with contextlib.suppress(BlockingIOError):
            return client.recv(1, socket.MSG_PEEK)
        readable = asyncio.Event()
        loop.add_reader(client.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(client.fileno())


def _keep_alive(client: socket.socket, timeouts: ClientTimeouts) -> None:
    """Detect a peer that vanished, also while it waits for a response."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3),
                        ("TCP_USER_TIMEOUT", int(timeouts.write * 1000))):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _room_for_connections() -> int:
    """Raise the limit of open files as far as possible; returns the connections that fit into it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(64, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)) - _RESERVED)
