"""The tools that break: the proxy cuts and refuses, a clock jumps, tracebacks are told apart."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.chaos.logs import unexpected
from tools.chaos.proxy import Proxies

CLOCK = Path(__file__).parents[2] / "tools/chaos/clock"


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                client.sendall(data)
        except OSError:
            pass
        client.close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.close()


@pytest.fixture
def proxies(echo: str) -> Iterator[Proxies]:
    proxies = Proxies({"a": lambda: echo})
    yield proxies
    proxies.close()


def said(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionResetError
        got += piece
    return got


def connected(proxies: Proxies) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxies["a"].port), timeout=10)
    connection.settimeout(10)
    return connection


def test_what_goes_in_comes_out_until_it_is_cut(proxies: Proxies) -> None:
    connection = connected(proxies)
    assert said(connection, b"hello") == b"hello"
    proxies["a"].cut()
    with pytest.raises(OSError):
        for _ in range(100):
            said(connection, b"again")
            time.sleep(0.01)
    assert said(connected(proxies), b"hello") == b"hello"


def test_every_so_many_bytes_are_cut_as_often_as_asked(proxies: Proxies) -> None:
    proxies["a"].cut_every(1000, 2)
    cut = 0
    for _ in range(4):
        connection = connected(proxies)
        try:
            assert said(connection, bytes(1500)) == bytes(1500)
        except OSError:
            cut += 1
    assert cut == 2 and proxies["a"].cuts_left == 0


def test_a_refusal_ends_by_itself_or_by_healing(proxies: Proxies) -> None:
    proxies["a"].refuse(60)
    with pytest.raises(OSError):
        said(connected(proxies), b"hello")
    proxies.heal()
    assert said(connected(proxies), b"hello") == b"hello"


def test_a_slow_line_takes_its_time(proxies: Proxies) -> None:
    proxies["a"].slow(rate=10_000, seconds=30)
    began = time.monotonic()
    assert said(connected(proxies), bytes(2_000)) == bytes(2_000)
    assert time.monotonic() - began >= 0.3, "0.2 s each way"


def test_a_component_sees_the_clock_jump_and_nobody_else_does(tmp_path: Path) -> None:
    program = tmp_path / "openclaw_rl/launch"
    program.mkdir(parents=True)
    (program / "component.py").write_text(
        "import datetime, logging, time\n"
        "record = logging.Formatter('%(asctime)s').format(logging.makeLogRecord({}))\n"
        "print(int(time.time()), time.time_ns() // 10**9, int(datetime.datetime.now().timestamp()),\n"
        "      int(time.mktime(time.localtime())), record[:4], int(time.monotonic()))\n")
    env = {**os.environ, "PYTHONPATH": f"{CLOCK}{os.pathsep}{tmp_path}", "OPENCLAW_RL_CHAOS_CLOCK": str(tmp_path)}

    def times(name: str) -> list[int]:
        done = subprocess.run([sys.executable, "-m", "openclaw_rl.launch.component", name], env=env, text=True,
                              capture_output=True, check=True, cwd=tmp_path)
        return [int(word) for word in done.stdout.split()]

    year = 365 * 86400
    (tmp_path / "trainer").write_text(str(-5 * year))
    shifted, real = times("trainer"), times("prm_judge")
    now, monotonic = int(time.time()), int(time.monotonic())
    assert all(abs(moment - (now - 5 * year)) < 30 for moment in shifted[:4])
    assert all(abs(moment - now) < 30 for moment in real[:4])
    assert real[4] - shifted[4] in (4, 5, 6)
    assert abs(shifted[5] - monotonic) < 30


def test_tracebacks_that_no_fault_explains_are_found(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(
        "2026-01-01 00:00:00,000 ERROR   a: the disk\nTraceback (most recent call last):\n  File \"x\", line 1\n"
        "OSError: [Errno 28] No space left on device\n"
        "2026-01-01 00:00:01,000 ERROR   b: oh\nTraceback (most recent call last):\n  File \"x\", line 2\n"
        "KeyError: 'turn_1'\n2026-01-01 00:00:02,000 INFO    c: goes on\n")
    found = unexpected(tmp_path)
    assert len(found) == 1 and "KeyError" in found[0] and "b: oh" in found[0] and "goes on" not in found[0]
