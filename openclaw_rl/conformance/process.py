"""The process of a server that the kit starts, kills and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import time
from pathlib import Path

from openclaw_rl.conformance.frame import Failed
from openclaw_rl.runtime.process import end_group

#: Mesh of a server that the kit starts, unless the variable OPENCLAW_RL_MESH names another one.
MESH = "mesh-of-the-kit"
#: Seconds for a server to listen; a Python one loads for a while on a small machine.
START_SECONDS = 60.0
#: Seconds for it to end when it is told to.
STOP_SECONDS = 20.0


class ServerProcess:
    """A server, by its command line.

    Args:
        command: one line, taken apart as a shell does it, but run without one. {address}, {port}, {data} and {listen}
            in it stand for what the other arguments say.
        address: HOST:PORT where it will listen.
        data: folder for its files; it stays the same when it is started again.
        listen: HOST:PORT of the kit in the place of its neighbours; "" without.
    """

    def __init__(self, command: str, address: str, data: Path, listen: str = "") -> None:
        self.address, self.data = address, data
        values = {"{address}": address, "{port}": address.rpartition(":")[2], "{data}": str(data), "{listen}": listen}
        self.arguments = [_filled(part, values) for part in shlex.split(command)]
        self.log = data / "conformance-server.log"
        self.exit_code: int | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until its port takes connections.

        Raises:
            Failed: it ends at once or does not listen.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self.arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={"OPENCLAW_RL_MESH": MESH, **os.environ, "OPENCLAW_RL_CONFORMANCE_DATA": str(self.data)})
        except OSError as error:
            raise Failed(f"{self.arguments[0]} can't be started: {error.strerror}") from None
        end = time.monotonic() + START_SECONDS
        host, _, port = self.address.rpartition(":")
        while time.monotonic() < end:
            if self._process.returncode is not None:
                raise Failed(f"{shlex.join(self.arguments)} ended with code {self._process.returncode}: {self.tail()}")
            try:
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
        await self.kill()
        raise Failed(f"{shlex.join(self.arguments)} did not listen on {self.address} within {START_SECONDS:g} s: "
                     f"{self.tail()}")

    async def kill(self) -> None:
        """End it at once (SIGKILL), with all that it has started."""
        await self._end(signal.SIGKILL, STOP_SECONDS)

    async def stop(self) -> int | None:
        """End it gracefully (SIGTERM), or by SIGKILL when it does not; gives its exit code."""
        await self._end(signal.SIGTERM, STOP_SECONDS)
        return self.exit_code

    async def ended(self, seconds: float) -> int | None:
        """Wait until it has ended by itself; its exit code, None when it has not within so many seconds."""
        if self._process is None:
            return self.exit_code
        try:
            async with asyncio.timeout(seconds):
                self.exit_code = await self._process.wait()
        except TimeoutError:
            return None
        return self.exit_code

    def tail(self, lines: int = 5) -> str:
        """The last lines that it has printed."""
        try:
            return " | ".join(self.log.read_text(errors="replace").splitlines()[-lines:]) or "it printed nothing"
        except OSError:
            return "it printed nothing"

    async def _end(self, number: signal.Signals, seconds: float) -> None:
        process = self._process
        if process is None:
            return
        await end_group(process, seconds, number)
        self.exit_code, self._process = process.returncode, None


def _filled(part: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        part = part.replace(name, value)
    return part
