"""MCP over the stdin and stdout of a process, in a sandbox or not: one JSON-RPC message per line.

The transport of the `mcp` package starts the process itself and keeps whatever it writes; this one takes any process
and bounds its output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from openclaw_rl.rollouts.sandboxes import host_processes
from openclaw_rl.rollouts.sandboxes.interface import Process, SandboxError
from openclaw_rl.runtime.json import parse_json

#: Bytes of one message.
MOST_LINE = 8 << 20
#: Consecutive lines that are no messages, after which the server is given up.
MOST_GARBAGE = 1000
_LEFT_OF_STDERR = 2000
#: Seconds to read what a killed process has written, and for its end.
_DRAIN_SECONDS = 2.0

logger = logging.getLogger(__name__)


class PlainProcess:
    """A process of this machine, outside of sandboxes; see Process, but stderr is separate."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self._process = process
        self._mark = mark
        self._stderr = b""
        self._reading = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], label: str) -> PlainProcess:
        """
        Args:
            label: of the mesh, by which it is found if this process ends first.

        Raises:
            SandboxError: it can't be started.
        """
        pipe, mark = asyncio.subprocess.PIPE, host_processes.mark(label)
        try:
            return cls(await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env={**environment, host_processes.VARIABLE: mark},
                start_new_session=True), mark)
        except (OSError, ValueError) as error:
            raise SandboxError(f"the MCP server {argv[0]} can't be started: {error}") from None

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise SandboxError(f"the process doesn't read any more: {error}") from None

    async def read(self, most: int = 65536) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(most)

    async def kill(self) -> None:
        if self._process.returncode is None:
            # It leads a session of its own, so the group is it and its children.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        # What it left behind when it ended by itself, or moved to another session.
        await asyncio.to_thread(host_processes.end, self._mark, _DRAIN_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reading, _DRAIN_SECONDS)
        # Don't wait for the end of its pipes, which a process that it started elsewhere may hold.
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _DRAIN_SECONDS)

    async def stderr_tail(self) -> str:
        """The end of what it wrote to stderr."""
        return self._stderr.decode("utf-8", "replace")

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._stderr = (self._stderr + data)[-_LEFT_OF_STDERR:]


@contextlib.asynccontextmanager
async def over(process: Process | PlainProcess, ended: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """A transport for `mcp.Client`.

    Args:
        process: the caller's to end.
        ended: called when it sends nothing more, or nothing that is a message.
    """
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    incoming, read_stream = anyio.create_memory_object_stream[Any](0)
    write_stream, outgoing = anyio.create_memory_object_stream[Any](0)

    async def reader() -> None:
        garbage = 0
        try:
            async for line in _lines(process):
                try:
                    message = jsonrpc_message_adapter.validate_json(_readable(line), by_name=False)
                except ValueError:
                    garbage += 1
                    if garbage > MOST_GARBAGE:
                        logger.warning("an MCP server wrote more than %d lines that are no messages", MOST_GARBAGE)
                        return
                    continue
                garbage = 0
                await incoming.send(SessionMessage(message))
        finally:
            incoming.close()
            ended()

    async def writer() -> None:
        async with outgoing:
            async for message in outgoing:
                data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await process.write(data.encode() + b"\n")
                except SandboxError:
                    await incoming.aclose()  # nothing will be answered any more
                    return

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        group.start_soon(writer)
        try:
            yield read_stream, write_stream
        finally:
            group.cancel_scope.cancel()
            for stream in (read_stream, write_stream, incoming, outgoing):
                stream.close()


def _readable(line: bytes) -> bytes:
    """The line with lone surrogates replaced."""
    if not re.search(rb"\\u[dD][89a-fA-F]", line):
        return line
    return json.dumps(parse_json(line), ensure_ascii=False).encode("utf-8", "replace")


async def _lines(process: Process | PlainProcess) -> AsyncIterator[bytes]:
    rest = bytearray()
    while True:
        try:
            data = await process.read()
        except SandboxError:
            return
        if not data:
            return
        rest += data
        if b"\n" in data:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                if line.strip():
                    yield line
        if len(rest) > MOST_LINE:
            logger.warning("an MCP server wrote a line of more than %d bytes", MOST_LINE)
            return
