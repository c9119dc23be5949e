"""Clients that mean harm: each gets a clear answer or a closed connection, and whoever is beside it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.serving.entrypoints.certificates import make_certificate
from tests.serving.entrypoints.hostile_server import CONNECTIONS
from tests.support.waiting import until
from tools.campaign.checker import Table
from tools.campaign.pressure import HTTP_DRIPS, http_bombs, slow_clients

Address = tuple[str, int]
ASK = b'{"messages": [{"role": "user", "content": "Hi"}]}'
LONG = json.dumps({"messages": [{"role": "user", "content": "x" * 300}], "stream": True,
                   "max_tokens": 150_000}).encode()
GONE = 'openclaw_requests_total{api="chat.completions",status="499"}'
FEEDBACK = b"POST /v1/feedback HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SECONDS = 20.0  # for what takes one; the machine may be busy


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    return b"\r\n".join((b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Type: application/json",
                         b"Content-Length: %d" % len(body), *headers, b"", body))


class Server:
    """The process under attack."""

    def __init__(self, process: subprocess.Popen[str], addresses: list[str], certificate: Path) -> None:
        self.plain, self.tls = [(str(urlsplit(url).hostname), int(urlsplit(url).port or 0)) for url in addresses]
        self.process, self.memory = process, psutil.Process(process.pid)
        self.trust = ssl.create_default_context(cafile=str(certificate))

    def rss(self) -> int:
        return int(self.memory.memory_info().rss)

    def metric(self, name: str) -> float:
        _, body = self.ask("GET", "/metrics")
        found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", body.decode(), re.M)
        return float(found[1]) if found else 0.0

    def ask(self, method: str = "POST", path: str = "/v1/chat/completions", body: bytes | None = ASK,
            tls: bool = False) -> tuple[int, bytes]:
        """A well-behaved client's request, from an address of its own."""
        host, port = self.tls if tls else self.plain
        source = ("127.0.0.2", 0)
        connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, source_address=source,
                                                 context=self.trust) if tls else http.client.HTTPConnection(
            host, port, timeout=SECONDS, source_address=source)
        with contextlib.closing(connection):
            connection.request(method, path, body if method == "POST" else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = Path(tmp_path_factory.mktemp("entrypoint"))
    certificate, _ = make_certificate(folder)
    root = Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-m", "tests.serving.entrypoints.hostile_server", str(folder)],
                               stdout=subprocess.PIPE, text=True, cwd=root,
                               env={**os.environ, "PYTHONPATH": str(root)})
    try:
        assert process.stdout is not None
        server = Server(process, json.loads(process.stdout.readline()), certificate)
        server.ask()
        yield server
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def beside(server: Server) -> Iterator[None]:
    """A client that wants nothing special, and gets it, whatever the other one does; memory stays bounded."""
    before, stop, seen, failures = server.rss(), threading.Event(), [], []

    def run() -> None:
        while True:
            began = time.monotonic()
            try:
                status, body = server.ask(tls=len(seen) % 2 == 1)
                assert (status, b"Hello!" in body) == (200, True)
                seen.append(time.monotonic() - began)
            except Exception as error:
                failures.append(repr(error))
            if stop.wait(0.02):
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures and seen and max(seen) < 5, (failures, seen)
    assert server.process.poll() is None
    assert server.rss() - before < 48 * 2**20


def connect(address: Address) -> socket.socket:
    return socket.create_connection(address, timeout=SECONDS)


def answer(client: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(2**16):
            parts.append(part)
    return b"".join(parts)


def say(address: Address, data: bytes) -> bytes:
    with connect(address) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
        return answer(client)


def statuses(data: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d\d\d) ", data)]


@pytest.mark.parametrize("start", [
    b"GET /", b"GET /healthz HTTP/1.1\r\n", FEEDBACK + b"Content-Length: 1000\r\n\r\n{", b"\r\n"],
                         ids=["target", "header", "body", "nothing"])
def test_slow_requests_end(server: Server, start: bytes) -> None:
    drip = b"\r\n" if start == b"\r\n" else b"x"
    with connect(server.plain) as client:
        client.sendall(start)
        client.settimeout(0.1)
        began, got = time.monotonic(), b""
        while time.monotonic() - began < SECONDS:
            try:
                client.sendall(drip)
                if not (part := client.recv(4096)):
                    break
                got += part
            except TimeoutError:
                pass
            except ConnectionError:
                break
        assert time.monotonic() - began < SECONDS and statuses(got) in ([408], [])
        assert b"HTTP" not in got or b"request_timeout" in got


def test_slow_clients_by_the_hundred(server: Server) -> None:
    count = CONNECTIONS - 10
    slow = asyncio.run(slow_clients(*server.plain, HTTP_DRIPS, count, 3 * SECONDS))
    assert (slow.left, len(slow.lasted)) == (0, count)
    assert min(slow.lasted) > 0.5  # by the time limit, not before


def test_bombs_time_and_again(server: Server) -> None:
    table = Table()
    asyncio.run(http_bombs("http://{}:{}".format(*server.plain), table, server.rss))
    assert not table.failed, table.text()


def test_an_endless_header_is_cut(server: Server) -> None:
    sent = 0
    with connect(server.plain) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-Big: ")
        with contextlib.suppress(ConnectionError):
            while sent < 100 * 2**20:
                sent += client.send(b"a" * 2**20)
        assert statuses(answer(client)) in ([431], [])
    assert sent < 50 * 2**20  # the buffers of both ends included
    assert server.metric('openclaw_connections_refused_total{reason="headers_too_large"}') >= 1


@pytest.mark.parametrize("data", [
    b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n" + b"a" * 70_000 + b": b\r\n\r\n"], ids=["many headers", "long path", "long name"])
def test_heads_that_are_too_large(server: Server, data: bytes) -> None:
    got = say(server.plain, data)
    assert statuses(got) in ([431], []) and (not got or b"headers_too_large" in got)


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b"zstd", b"gzip, gzip"])
def test_compressed_bodies_are_not_unpacked(server: Server, encoding: bytes) -> None:
    got = say(server.plain, post(b"\x1f\x8b" * 50, b"Content-Encoding: " + encoding, b"Connection: close"))
    assert statuses(got) == [415] and b"Content-Encoding" in got


@pytest.mark.parametrize("chunk", [b"8000\r\n" + b"x" * 0x8000 + b"\r\n", b"1\r\nx\r\n" * 4000,
                                   b"1;" + b"e" * 30_000 + b"\r\nx\r\n"], ids=["large", "tiny", "extensions"])
def test_a_body_without_end(server: Server, chunk: bytes) -> None:
    with connect(server.plain) as client:
        client.settimeout(SECONDS)
        began = time.monotonic()
        got = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(FEEDBACK + b"Transfer-Encoding: chunked\r\n\r\n")
            while time.monotonic() - began < SECONDS:
                client.sendall(chunk)
        with contextlib.suppress(ConnectionError):
            got = answer(client)
    assert time.monotonic() - began < SECONDS and set(statuses(got)) <= {413, 408, 400}


def test_tiny_requests_by_the_thousand(server: Server) -> None:
    def flood() -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            with contextlib.suppress(OSError), connect(server.plain) as client:
                client.sendall(b"GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer(client)

    threads = [threading.Thread(target=flood) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_pipelined_requests_are_answered_in_order_and_are_bounded(server: Server) -> None:
    nope = b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert statuses(say(server.plain, GET + nope + GET + post(ASK) + last)) == [200, 404, 200, 200, 200]
    with connect(server.plain) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(post(LONG))
            for _ in range(200):
                client.sendall(GET * 1000)
        data = answer(client)
    assert len(statuses(data)) <= 20
    until(lambda: server.metric("openclaw_policy_running") == 0)  # the stream was cancelled with its connection


def test_connections_that_say_nothing(server: Server) -> None:
    clients = [connect(server.plain) for _ in range(50)] + [connect(server.tls) for _ in range(50)]
    for client in clients[50:75]:
        client.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a handshake
    for client in clients:
        assert answer(client) == b""
        client.close()
    with connect(server.plain) as client:  # says all it has to say, and closes its end
        client.sendall(GET)
        client.shutdown(socket.SHUT_WR)
        assert statuses(answer(client)) in ([200], [])


def test_one_address_has_so_many_connections(server: Server) -> None:
    clients = [connect(server.plain) for _ in range(CONNECTIONS + 20)]
    try:
        until(lambda: server.metric('openclaw_connections_refused_total{reason="connections"}') >= 20)
    finally:
        for client in clients:
            client.close()
    until(lambda: statuses(say(server.plain, GET.replace(b"x", b"x\r\nConnection: close"))) == [200])


@pytest.mark.parametrize("reads", [0, 1])
def test_a_client_that_hardly_reads(server: Server, reads: int) -> None:
    before, end = server.metric(GONE), time.monotonic() + SECONDS
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.plain)
        client.sendall(post(LONG))
        while server.metric(GONE) == before:
            assert time.monotonic() < end
            with contextlib.suppress(ConnectionError):
                client.recv(reads)
    assert server.metric("openclaw_policy_cancelled") >= 1  # its turn is recorded as far as it came


def test_the_wrong_protocol(server: Server) -> None:
    got = say(server.tls, GET)
    assert statuses(got) == [400] and b"https://" in got
    trusting = ssl._create_unverified_context()
    with connect(server.plain) as client, pytest.raises((ssl.SSLError, ConnectionError)):
        trusting.wrap_socket(client)
    assert statuses(say(server.plain, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) in ([400], [])
    assert statuses(say(server.plain, b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n")) in ([400], [])


def test_an_offered_upgrade_is_passed_over(server: Server) -> None:
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")
    both = post(ASK, *upgrade) + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert statuses(say(server.plain, both)) == [200, 200]


def test_random_bytes(server: Server) -> None:
    dice = random.Random(7)
    words = [b"GET", b"POST", b" ", b"/v1/models", b"HTTP/1.1", b"\r\n", b"\n", b":", b"Host", b"\x00", b"%00", b"..",
             b"Content-Length: 5", b"Transfer-Encoding: chunked", b"\xff\xfe", "ü".encode(), b"*", b"//", b"?", b"#"]
    for i in range(300):
        data = dice.randbytes(dice.randrange(1, 200)) if i % 3 == 0 else b"".join(
            dice.choices(words, k=dice.randrange(1, 30)))
        with connect(server.plain) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)  # no need to wait for its time-out
            assert all(400 <= status < 500 or status == 200 for status in statuses(answer(client))), data


@pytest.mark.parametrize("header", [b"X-Session-Id: a\x00b", b"X-Session-Id: a\x01", b"X\x00Y: a", b"X Y: a",
                                    "X-Session-Id: ünï".encode(), b"X-Session-Id: \xff\xfe", b": a", b"X-Y"])
def test_strange_headers(server: Server, header: bytes) -> None:
    got = say(server.plain, post(ASK, header, b"Connection: close"))
    assert statuses(got) and statuses(got)[0] in (200, 400)


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("headers", [
    b"Content-Length: %d\r\nTransfer-Encoding: chunked" % (5 + len(SMUGGLED)),
    b"Transfer-Encoding: chunked\r\nContent-Length: 4", b"Content-Length: 5\r\nContent-Length: 50",
    b"Transfer-Encoding : chunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked, gzip",
    b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: -1", b"Content-Length: 0x5",
    b"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 5"])
def test_no_request_is_smuggled_in(server: Server, headers: bytes) -> None:
    data = FEEDBACK + headers + b"\r\n\r\n0\r\n\r\n" + SMUGGLED
    with connect(server.plain) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        got = answer(client)
    assert b"smuggled" not in got and len(statuses(got)) <= 1
