"""SGLang server processes: started on a free port, supervised, and ended, including leftovers of an earlier run."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from openclaw_rl.runtime.process import end_group, kill_marked
from openclaw_rl.serving.engines.interface import EngineError

logger = logging.getLogger(__name__)

#: Variable with the policy server's folder in its SGLang processes; identifies leftovers.
OWNER = "OPENCLAW_RL_SGLANG_OWNER"
#: Variable with a server's `api-key`, which every user of the machine could read on its command line.
KEY = "OPENCLAW_RL_SGLANG_KEY"
_MODULE = "openclaw_rl.serving.engines.sglang.serve"
_STOP_SECONDS = 5.0
_LOG_BYTES = 20 * 2**20


class ServerProcess:
    """A server in its own process group. The kernel ends it when this process ends.

    Requests need `key`: other users of the machine can reach its port, and a weight update unpickles data.

    Args:
        command: SGLang's arguments, without host and port.
        environment: added to the inherited variables.
        owner: the policy server's folder.
        log_file: receives its output; rotated to `.1` when it is large.
        module: to run.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], owner: Path, log_file: Path,
                 module: str = _MODULE) -> None:
        self.command, self._environment, self._owner, self._module = list(command), environment, owner, module
        self.log_file = log_file
        self.address = ""
        self.key = secrets.token_urlsafe(32)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self) -> None:
        """Start the process, without waiting for it to respond.

        Call it on the main thread: to the kernel, the end of the starting thread is the end of the parent.
        """
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES:
            self.log_file.rename(self.log_file.with_name(self.log_file.name + ".1"))
        self.log_file.touch(mode=0o600)  # SGLang logs its settings, including the key
        with self.log_file.open("ab") as output:
            self._log_start = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self._module, str(os.getpid()), *self.command, "--host", "127.0.0.1",
                "--port", str(port), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, env={**os.environ, **self._environment, OWNER: str(self._owner), KEY: self.key})

    async def ended(self) -> str:
        """Wait for its end; returns how it ended."""
        assert self._process
        code = await self._process.wait()
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"

    async def stop(self) -> None:
        """End the process and its children. A kill loses nothing."""
        if self._process is not None:
            await end_group(self._process, _STOP_SECONDS, leader_only=True)

    def last_error(self) -> str:
        """The line of its log that most likely states the cause of a failure."""
        with suppress(OSError):
            with self.log_file.open("rb") as opened:
                opened.seek(max(self._log_start, self.log_file.stat().st_size - 20_000))
                lines = opened.read().decode("utf-8", "replace").splitlines()
            errors = [line for line in lines if "Error" in line or "error:" in line]
            return (errors or [line for line in lines if line.strip()] or [""])[-1].strip()[:300]
        return ""


def free_port() -> int:
    """Find a free loopback port. If somebody takes it first, the server is restarted on another one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_leftovers(owner: Path, seconds: float = 10.0) -> list[int]:
    """End leftover SGLang processes of a policy server with this folder. Blocks.

    Returns:
        Their pids.
    """
    ended = kill_marked(OWNER, str(owner), seconds)
    if ended:
        logger.warning("Ended %d SGLang processes left over from an earlier run", len(ended))
    return sorted(ended)


async def until_it_answers(process: ServerProcess, seconds: float, ask: Callable[[], Awaitable[None]]) -> None:
    """Wait until `ask()` succeeds.

    Raises:
        EngineError: the process ended, or `seconds` have passed.
    """
    from openclaw_rl.serving.engines.sglang.client import (  # imports httpx, which the launcher does not need
        CommandRefused,
        ConnectionLost,
    )

    ended = asyncio.ensure_future(process.ended())
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                await ask()
                return
            except (ConnectionLost, CommandRefused):
                pass
            if time.monotonic() > deadline:
                raise EngineError(f"SGLang does not answer after {seconds:.0f} s (sglang.start_timeout); its log "
                                  f"{process.log_file} ends with: {process.last_error()}")
            await asyncio.wait({ended}, timeout=0.3)
            if ended.done():
                raise EngineError(f"SGLang can't start: {ended.result()}; its log {process.log_file} says: "
                                  f"{process.last_error()}")
    finally:
        ended.cancel()
