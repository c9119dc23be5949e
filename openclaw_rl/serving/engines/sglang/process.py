"""SGLang servers as processes of ours: started on a free port, watched, and ended, also those of an earlier run."""

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

#: Names the policy server's folder in the environment of its SGLang processes: by it leftovers are known.
OWNER = "OPENCLAW_RL_SGLANG_OWNER"
#: Gives a server its `api-key`; on its command line every user of the machine could read it.
KEY = "OPENCLAW_RL_SGLANG_KEY"
_MODULE = "openclaw_rl.serving.engines.sglang.serve"
_STOP_SECONDS = 5.0
_LOG_BYTES = 20 * 2**20


class ServerProcess:
    """One server. It has a process group of its own, and the kernel ends it when this process ends.

    It obeys only who has `key`: other users of the machine reach its port too, and a weight update unpickles.

    Args:
        command: SGLang's arguments, without host and port.
        environment: besides the inherited variables.
        owner: the policy server's folder.
        log_file: takes what it prints; what is there is kept as `.1` once it is long.
        module: what is run.
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
        """Of the server while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self) -> None:
        """Start it; that it answers is for the caller to find out. To be called on the main thread: the kernel takes
        the end of the thread that started a process for the parent's end."""
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_BYTES:
            self.log_file.rename(self.log_file.with_name(self.log_file.name + ".1"))
        self.log_file.touch(mode=0o600)  # SGLang writes all its settings down, the key among them
        with self.log_file.open("ab") as output:
            self._log_start = output.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self._module, str(os.getpid()), *self.command, "--host", "127.0.0.1",
                "--port", str(port), stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, env={**os.environ, **self._environment, OWNER: str(self._owner), KEY: self.key})

    async def ended(self) -> str:
        """Wait for its end; how it ended."""
        assert self._process
        code = await self._process.wait()
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"

    async def stop(self) -> None:
        """End it and what it started. It keeps nothing that a kill would lose."""
        if self._process is not None:
            await end_group(self._process, _STOP_SECONDS, leader_only=True)

    def complaint(self) -> str:
        """The line of its log that most likely says why it failed."""
        with suppress(OSError):
            with self.log_file.open("rb") as opened:
                opened.seek(max(self._log_start, self.log_file.stat().st_size - 20_000))
                lines = opened.read().decode("utf-8", "replace").splitlines()
            errors = [line for line in lines if "Error" in line or "error:" in line]
            return (errors or [line for line in lines if line.strip()] or [""])[-1].strip()[:300]
        return ""


def free_port() -> int:
    """A port that is free on loopback now. Somebody may take it before the server does; it is then started again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_leftovers(owner: Path, seconds: float = 10.0) -> list[int]:
    """End SGLang processes of a policy server with this folder that runs no more. Blocks.

    Returns:
        The pids of those that were ended.
    """
    ended = kill_marked(OWNER, str(owner), seconds)
    if ended:
        logger.warning("Ended %d SGLang processes that an earlier run had left behind", len(ended))
    return sorted(ended)


async def until_it_answers(process: ServerProcess, seconds: float, ask: Callable[[], Awaitable[None]]) -> None:
    """Wait until `ask()` (which raises while it doesn't) succeeds.

    Raises:
        EngineError: the process ended, or `seconds` have passed.
    """
    from openclaw_rl.serving.engines.sglang.client import (  # brings httpx, which the launcher does without
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
                                  f"{process.log_file} ends with: {process.complaint()}")
            await asyncio.wait({ended}, timeout=0.3)
            if ended.done():
                raise EngineError(f"SGLang can't start: {ended.result()}; its log {process.log_file} says: "
                                  f"{process.complaint()}")
    finally:
        ended.cancel()
