"""A process in a bubblewrap sandbox, connected by FIFOs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from openclaw_rl.rollouts.sandboxes.bubblewrap import init
from openclaw_rl.rollouts.sandboxes.interface import SandboxError


class _Sandbox(Protocol):
    """The part of a sandbox that its processes need."""

    problem: str

    def tell(self, line: bytes) -> None:
        """Send a line to the first process."""


class _Input(asyncio.streams.FlowControlMixin):
    """Protocol of a process's stdin: blocks writers while it does not read."""

    lost = False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        super().connection_lost(error)


class BubblewrapProcess:
    """A process in a sandbox; see Process."""

    def __init__(self, sandbox: _Sandbox, identity: str) -> None:
        self.identity = identity
        self.pid = 0  #: inside
        self.started = asyncio.Event()
        self._sandbox = sandbox
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.output = asyncio.StreamReader(limit=65536)
        self.output_transport: asyncio.ReadTransport | None = None
        self.input: asyncio.StreamWriter | None = None
        self.input_protocol = _Input()

    @contextlib.asynccontextmanager
    async def fifos(self, folder: Path, name: str, user: int | None) -> AsyncIterator[None]:
        """Make and open the FIFOs of its stdin and output; their names are gone afterwards.

        Args:
            user: owner, None for this process's.

        Raises:
            OSError: they can't be made or opened.
        """
        loop = asyncio.get_running_loop()
        paths = [folder / f"{name}.i", folder / f"{name}.o"]
        held = -1
        try:
            for path in paths:
                os.mkfifo(path, 0o600)
                if user is not None:
                    os.chown(path, user, user)
            # Holding the other end lets this end be opened at once; released when the process has opened its own.
            held = os.open(paths[0], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            writer = os.fdopen(os.open(paths[0], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), "wb", 0)
            transport, protocol = await loop.connect_write_pipe(lambda: self.input_protocol, writer)
            self.input = asyncio.StreamWriter(transport, protocol, None, loop)
            reader = os.fdopen(os.open(paths[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0)
            self.output_transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(self.output), reader)
            yield
        finally:
            if held >= 0:
                os.close(held)
            for path in paths:
                with contextlib.suppress(OSError):
                    path.unlink()

    @property
    def code(self) -> int | None:
        """Exit code, 128 + N after signal N; None while it runs, or if the sandbox ended with it."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int | None:
        """Wait for its end; returns its `code`."""
        return await asyncio.shield(self._ended)

    async def write(self, data: bytes) -> None:
        if self._ended.done() or self.input is None or self.input.is_closing():
            raise SandboxError(self._sandbox.problem or "the process has ended")
        try:
            self.input.write(data)
            await self.input.drain()
        except (OSError, RuntimeError) as error:
            raise SandboxError(f"the process doesn't read any more: {error}") from None

    def end_input(self) -> None:
        """Close its stdin."""
        if self.input is not None:
            self.input.close()

    async def read(self, most: int = 65536) -> bytes:
        return await self.output.read(most)

    async def kill(self) -> None:
        if self.pid and not self._sandbox.problem:
            self._sandbox.tell(init.end(self.pid))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), 5)
        self.close()

    def close(self) -> None:
        """Close its pipes."""
        if self.input is not None and not self.input_protocol.lost:
            self.input.transport.abort()
        if self.output_transport is not None:
            self.output_transport.close()

    def end(self, code: int | None) -> None:
        """Note that it has ended."""
        if not self._ended.done():
            self._ended.set_result(code)
        self.started.set()
