"""A server that ignores deadlines: the right one behind a proxy that lets it see none."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from openclaw_rl.conformance.runner import chosen, run
from tests.conformance.harness import checks, failed, in_process
from tests.conformance.wrong.judge import Judge


async def _proxy(target: str) -> asyncio.Server:
    """Forwards bytes, and renames the header of the deadline."""
    host, _, port = target.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data.replace(b"grpc-timeout", b"x-no-timeout"))
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_a_server_that_ignores_deadlines(tmp_path: Path) -> None:
    async with in_process(Judge, tmp_path) as kit:
        some = chosen(checks(), ["component.deadline"])
        assert not failed(await run(kit, some))
        await kit.close()
        proxy = await _proxy(kit.address)
        try:
            kit.address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            found = failed(await run(kit, some))
            await kit.close()
        finally:
            proxy.close()
    assert list(found) == ["component.deadline"]
    assert "a WatchStats with a deadline of 0.6 s went on for 3 s" in found["component.deadline"]
