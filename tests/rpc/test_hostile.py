"""Clients that mean harm at a gRPC port; a well-behaved one beside them notices nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from openclaw_rl.rpc.auth.tls import Credentials
from openclaw_rl.rpc.channel import MAX_MESSAGE, connect, sync_connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.rpc.server import MAX_STREAMS
from openclaw_rl.v1 import component_pb2, component_pb2_grpc, judge_pb2, judge_pb2_grpc
from tests.rpc.auth.certs import make_certs, reissue
from tools.campaign.checker import Table
from tools.campaign.pressure import GRPC_DRIPS, GRPC_ENDS, grpc_bombs, slow_clients

#: Seconds within which the well-behaved client is answered, also on a loaded machine.
PATIENCE = 5.0
MB = 2**20


@dataclass
class Victim:
    address: str
    certs: Path
    process: psutil.Process

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def memory(self) -> int:
        return int(self.process.memory_info().rss)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def start(folder: Path, *args: str) -> Iterator[Victim]:
    certs = folder / "certs"
    if not certs.exists():
        make_certs(certs)
    log = folder / f"victim{''.join(args)}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen([sys.executable, "-m", "tests.rpc.victim", str(certs), str(folder / "home"), *args],
                                   stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, log.read_text()
        yield Victim(address, certs, psutil.Process(process.pid))
        assert process.poll() is None, log.read_text()[-2000:]  # it lives on
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def victim(folder: Path) -> Iterator[Victim]:
    yield from start(folder)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Victim]:
    yield from start(folder, "plain")


@asynccontextmanager
async def well_behaved(victim: Victim) -> AsyncIterator[None]:
    """One that calls all the time meanwhile, from a thread of its own, and one that has a stream open: each call is
    answered, in good time."""
    times: list[float] = []
    stop = threading.Event()

    def call() -> None:
        with sync_connect(victim.address, "prm_judge", Credentials(victim.certs, "operator")) as channel:
            stub = component_pb2_grpc.ComponentServiceStub(channel)
            while not stop.wait(0.02) or not times:
                begun = time.monotonic()
                stub.GetStatus(component_pb2.GetStatusRequest(), timeout=2 * PATIENCE)
                times.append(time.monotonic() - begun)

    async with connect(victim.address, "prm_judge", Credentials(victim.certs, "env_server")) as channel:
        stream = judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions()
        await stream.write(judge_pb2.JudgeTransitionsRequest())
        await stream.read()
        caller = asyncio.create_task(asyncio.to_thread(call))
        try:
            yield
        finally:  # also when the test fails: the loop's end waits for its threads
            stop.set()
        await caller
        await stream.write(judge_pb2.JudgeTransitionsRequest())
        assert await asyncio.wait_for(stream.read(), PATIENCE) is not grpc.aio.EOF
        await stream.done_writing()
    assert max(times) < PATIENCE


async def refused(address: str, credentials: Credentials | None, **options: Any) -> grpc.aio.AioRpcError:
    """The error of a call that must fail."""
    async with connect(address, "prm_judge", credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await judge_pb2_grpc.JudgeServiceStub(channel).Judge(
                options.pop("request", judge_pb2.JudgeRequest()), timeout=10, **options)
    return caught.value


def harmless(victim: Victim, before: int, allowed: int = 150 * MB) -> None:
    assert victim.memory() - before < allowed


async def test_without_a_certificate(victim: Victim) -> None:
    root = (victim.certs / "ca.crt").read_bytes()
    async with well_behaved(victim), grpc.aio.secure_channel(
            victim.address, grpc.ssl_channel_credentials(root)) as channel:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await judge_pb2_grpc.JudgeServiceStub(channel).Judge(judge_pb2.JudgeRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_of_another_ca(victim: Victim, tmp_path: Path) -> None:
    other = make_certs(tmp_path / "other", roles=("operator",))
    async with well_behaved(victim):
        error = from_rpc_error(await refused(victim.address, Credentials(other, "operator")))  # it doesn't trust us
        assert "not of this mesh's CA" in error.message
        (other / "mixed.crt").write_bytes((other / "ca.crt").read_bytes() + (victim.certs / "ca.crt").read_bytes())
        os.replace(other / "mixed.crt", other / "ca.crt")
        error = from_rpc_error(await refused(victim.address, Credentials(other, "operator")))  # we don't trust it
        assert error.code is grpc.StatusCode.UNAVAILABLE and "compare `openclaw-rl certs show`" in error.message


@pytest.mark.parametrize(("begins", "ends"), [(-40, -1), (1, 40)], ids=["expired", "not yet valid"])
async def test_out_of_date(victim: Victim, tmp_path: Path, begins: int, ends: int) -> None:
    copy = tmp_path / "certs"
    copy.mkdir()
    for name in ("ca.crt", "ca.key"):
        (copy / name).write_bytes((victim.certs / name).read_bytes())
    (copy / "ca.key").chmod(0o600)
    reissue(copy, "operator", begins, ends)
    async with well_behaved(victim):
        error = from_rpc_error(await refused(victim.address, Credentials(copy, "operator")))
        assert error.code is grpc.StatusCode.UNAVAILABLE and "compare `openclaw-rl certs show`" in error.message


async def test_with_the_wrong_role(victim: Victim) -> None:
    async with well_behaved(victim):
        error = from_rpc_error(await refused(victim.address, Credentials(victim.certs, "policy_server")))
        assert error.reason == "WRONG_ROLE"


async def test_plain_text_to_a_tls_port(victim: Victim) -> None:
    async with well_behaved(victim):
        error = from_rpc_error(await refused(victim.address, None))
        assert error.code is grpc.StatusCode.UNAVAILABLE and "If it uses TLS, this side has no certificate" in \
            error.message


async def test_tls_to_a_plain_port(victim: Victim, plain: Victim) -> None:
    error = from_rpc_error(await refused(plain.address, Credentials(victim.certs, "operator")))
    assert error.code is grpc.StatusCode.UNAVAILABLE and "it speaks plain text, and this side TLS" in error.message


async def test_messages_and_metadata_beyond_the_limits(victim: Victim) -> None:
    credentials = Credentials(victim.certs, "env_server")
    large = judge_pb2.JudgeRequest()
    large.transition.turn.turn_id = "x" * (MAX_MESSAGE + 1)
    before = victim.memory()
    async with well_behaved(victim):
        secrets, options = credentials.channel("prm_judge")
        async with grpc.aio.secure_channel(victim.address, secrets,
                                           [*options, ("grpc.max_send_message_length", -1)]) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await judge_pb2_grpc.JudgeServiceStub(channel).Judge(large, timeout=10)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for size in (40_000, 10 * MB):
            error = await refused(victim.address, credentials, metadata=[("x-filler", "x" * size)])
            assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    harmless(victim, before)


async def test_a_compression_bomb(victim: Victim) -> None:
    bomb = judge_pb2.JudgeRequest()
    bomb.transition.turn.turn_id = "\0" * (128 * MB)
    before = victim.memory()
    secrets, options = Credentials(victim.certs, "env_server").channel("prm_judge")
    async with well_behaved(victim), grpc.aio.secure_channel(
            victim.address, secrets, [*options, ("grpc.max_send_message_length", -1)],
            compression=grpc.Compression.Gzip) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await judge_pb2_grpc.JudgeServiceStub(channel).Judge(bomb, timeout=30)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    harmless(victim, before, 64 * MB)


async def test_bombs_time_and_again(plain: Victim) -> None:
    table = Table()
    await grpc_bombs(plain.address, table, plain.memory)
    assert not table.failed, table.text()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_slow_clients_by_the_hundred(plain: Victim) -> None:
    """Each is ended by the limit of the handshake, or of a PING that nobody answers; a stream beside them goes on."""
    async with connect(plain.address, "prm_judge") as channel:
        stream = judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions()
        await stream.write(judge_pb2.JudgeTransitionsRequest())
        await stream.read()
        slow = await slow_clients("127.0.0.1", plain.port, GRPC_DRIPS, 120, GRPC_ENDS)
        assert (slow.left, len(slow.lasted)) == (0, 120)
        await stream.write(judge_pb2.JudgeTransitionsRequest())
        assert await stream.read() is not grpc.aio.EOF
        stream.cancel()


async def test_very_many_tiny_streams(victim: Victim) -> None:
    """Thousands on one connection, cancelled as soon as they are opened; on another more than it may have, which stay
    open.
    """
    before = victim.memory()
    async with (well_behaved(victim),
                connect(victim.address, "prm_judge", Credentials(victim.certs, "env_server")) as hasty,
                connect(victim.address, "prm_judge", Credentials(victim.certs, "env_server")) as channel):
        stub = judge_pb2_grpc.JudgeServiceStub(hasty)
        for _ in range(10):
            calls = [stub.JudgeTransitions() for _ in range(500)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*(call.code() for call in calls))
        # A connection of its own: on the first, the server may still count some that were cancelled. It would refuse
        # new ones for them, which then queue again behind all others and wait for ever.
        stub = judge_pb2_grpc.JudgeServiceStub(channel)
        first = stub.JudgeTransitions()
        await first.initial_metadata()  # by now the client knows how many it may have
        held = [first, *(stub.JudgeTransitions() for _ in range(2 * MAX_STREAMS - 1))]
        await asyncio.gather(*(call.initial_metadata() for call in held[:MAX_STREAMS]))
        assert not held[-1].done()  # it waits at the client
        for call in held:
            call.cancel()
    harmless(victim, before)


async def test_connections_that_say_nothing_or_rubbish(victim: Victim) -> None:
    before = victim.memory()
    async with well_behaved(victim):
        silent = [await asyncio.open_connection("127.0.0.1", victim.port) for _ in range(200)]
        _, writer = await asyncio.open_connection("127.0.0.1", victim.port)
        with pytest.raises(OSError):
            for _ in range(100):
                writer.write(os.urandom(MB))
                await writer.drain()
        assert len(silent) == 200
        for _, other in silent:
            other.close()
    harmless(victim, before)
