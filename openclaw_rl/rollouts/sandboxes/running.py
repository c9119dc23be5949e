"""Running a process to its end, whatever the back end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from openclaw_rl.rollouts.sandboxes.interface import Finished, Process, Sandbox, SandboxError

#: Bytes that a process may write beyond what is kept before it is killed.
EXCESS = 16 * 2**20
#: Seconds of silence after which the output of an ended process counts as complete, if something left in the background
#: holds its stdout open.
_SILENT = 0.05
#: Longest wait for that silence, in seconds.
_DRAIN = 1.0


@contextlib.asynccontextmanager
async def others_paused(sandbox: Sandbox) -> AsyncIterator[None]:
    """Pause all running processes, except those started within: none of the policy's can change a file that is being
    examined, or the memory of a process that examines it.

    Raises:
        SandboxError: the sandbox was lost.
    """
    await sandbox.pause()
    try:
        yield
    finally:
        with contextlib.suppress(SandboxError):
            await sandbox.resume()


async def run(process: Process, *, stdin: bytes, seconds: float, most: int) -> Finished:
    """Feed a process that was just started, and collect its output; see Sandbox.run.

    Raises:
        SandboxError: the sandbox was lost meanwhile.
    """
    kept = bytearray()
    excess = 0
    last = asyncio.get_running_loop().time()
    flooded = asyncio.Event()

    async def feed() -> None:
        with contextlib.suppress(SandboxError):
            for at in range(0, len(stdin), 65536):
                await process.write(stdin[at:at + 65536])
        process.end_input()

    async def collect() -> None:
        nonlocal excess, last
        while chunk := await process.read(65536):
            last = asyncio.get_running_loop().time()
            room = max(most - len(kept), 0)
            kept.extend(chunk[:room])
            excess += len(chunk) - min(room, len(chunk))
            if excess > EXCESS:
                flooded.set()
                return

    feeder = asyncio.ensure_future(feed())
    collector = asyncio.ensure_future(collect())
    waiter = asyncio.ensure_future(process.wait())
    flood = asyncio.ensure_future(flooded.wait())
    timed_out = False
    try:
        done, _ = await asyncio.wait({waiter, flood}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        timed_out = not done
        if waiter not in done:
            await process.kill()
        deadline = asyncio.get_running_loop().time() + _DRAIN
        while not collector.done() and not flooded.is_set():
            await asyncio.wait({collector}, timeout=_SILENT)
            now = asyncio.get_running_loop().time()
            if now - last >= _SILENT or now >= deadline:
                break
        ended_itself = waiter.done() and not timed_out and not flooded.is_set()
        code = waiter.result() if ended_itself else None
    except asyncio.CancelledError:
        await process.kill()
        raise
    finally:
        for task in (feeder, collector, waiter, flood):
            task.cancel()
        await asyncio.gather(feeder, collector, waiter, flood, return_exceptions=True)
        process.close()
    if ended_itself and code is None:
        raise SandboxError("the sandbox ended while a process ran in it")
    return Finished(code, bytes(kept), truncated=excess > 0, timed_out=timed_out)
