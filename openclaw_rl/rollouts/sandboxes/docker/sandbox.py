"""A container as a sandbox, and its processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.rollouts.sandboxes.base_sandbox import BaseSandbox
from openclaw_rl.rollouts.sandboxes.docker import stream
from openclaw_rl.rollouts.sandboxes.docker.calls import call
from openclaw_rl.rollouts.sandboxes.interface import WORK, SandboxError

logger = logging.getLogger(__name__)

#: Prints its PID, which is also that of its session: the engine starts a session for each process.
_WRAPPER = 'echo $$; exec "$@" 2>&1'
_STARTED = 30.0
#: Pauses in seconds before a container that can't be removed is tried again.
_RETRY_PAUSES = (0.5, 2.0)
#: First and longest pause in seconds between checks whether a process has ended whose output stays open.
_POLL, _POLL_MOST = 0.05, 2.0
_KILLED = ("for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do "
           '[ -r "$file" ] && while read -r key value; do [ "$key" = oom_kill ] && echo "$value"; done <"$file"; done')


class DockerProcess:
    """A process in a container; see Process."""

    def __init__(self, sandbox: DockerSandbox, identity: str, output: stream.Output,
                 writer: asyncio.StreamWriter) -> None:
        self.identity = identity
        self.pid = ""
        self.code: int | None = None
        self._sandbox = sandbox
        self._output = output
        self._writer = writer
        self._end = asyncio.Event()  # of its output
        self._known = False

    async def wait(self) -> int | None:
        pause, silent = _POLL, False
        while not self._known:
            if silent:  # it has closed its output, and may run on
                await asyncio.sleep(pause)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), pause)
            pause = min(pause * 1.5, _POLL_MOST) if silent == self._end.is_set() else _POLL
            silent = self._end.is_set()
            if self._sandbox.problem:
                return None
            running, code = await self._sandbox.state(self.identity)
            if not running:
                self.code, self._known = code, True
        return self.code

    async def write(self, data: bytes) -> None:
        if self._known or self._writer.is_closing():
            raise SandboxError(self._sandbox.problem or "the process has ended")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise SandboxError(f"the process doesn't read any more: {error}") from None

    def end_input(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            if self._writer.can_write_eof() and not self._writer.is_closing():
                self._writer.write_eof()

    async def read(self, most: int = 65536) -> bytes:
        data = await self._output.read(most)
        if not data:
            self._end.set()
        return data

    async def kill(self) -> None:
        if not self._sandbox.problem and self.pid:
            with contextlib.suppress(SandboxError):
                await self._sandbox.signal(f"-{self.pid}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.wait(), 5)
        self.close()

    def close(self) -> None:
        self._writer.close()


class DockerSandbox(BaseSandbox):
    """See Sandbox."""

    def __init__(self, client: Any, base_url: str, container: str) -> None:
        self.problem = ""
        self._client = client
        self._base_url = base_url
        self._container = container
        self._version: str = client.api_version
        self._watching = asyncio.ensure_future(self._watch())
        self._closing: asyncio.Task[None] | None = None

    async def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None,
                    folder: str = WORK) -> DockerProcess:
        self._check()
        if any("\0" in word for word in (*argv, folder)):
            raise SandboxError("an argument has a NUL in it")
        try:
            made = await call(
                self._client.exec_create, self._container, ["sh", "-c", _WRAPPER, "sh", *argv], stdin=True,
                environment=dict(environment or {}), workdir=folder)
            reader, writer = await stream.post(
                self._base_url, f"/v{self._version}/exec/{made['Id']}/start", {"Detach": False, "Tty": False},
                upgrade=True)
        except Exception as error:  # the SDK's, requests', and the stream's own
            raise SandboxError(self.problem or f"no process can be started: {str(error)[:300]}") from error
        process = DockerProcess(self, made["Id"], stream.Output(reader), writer)
        output = b""
        try:
            async with asyncio.timeout(_STARTED):
                while b"\n" not in output:
                    data = await process.read(1)
                    if not data:
                        break
                    output += data
        except TimeoutError:
            output = b"it doesn't answer"
        except BaseException:
            process.close()
            raise
        process.pid = output.decode("utf-8", "replace").strip()
        if not process.pid.isdigit():
            process.close()
            raise SandboxError(self.problem or f"no process can be started: {process.pid[:300]}")
        return process

    async def end_all(self) -> None:
        self._check()
        await self.signal("-1")

    async def pause(self) -> None:
        self._check()
        await self.signal("-1", "STOP")
        self._check()

    async def resume(self) -> None:
        self._check()
        await self.signal("-1", "CONT")

    async def signal(self, target: str, name: str = "KILL") -> None:
        """Signal a process, a group or all; if no process can be started for that any more, end the container."""
        try:
            process = await self.start(["sh", "-c", f"kill -{name} {target}"])
        except SandboxError:
            self._fail("its processes could not be signalled, so it was ended as a whole")
            with contextlib.suppress(Exception):  # gone already
                await call(self._client.kill, self._container)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 5)
        process.close()

    async def killed(self) -> int:
        if self.problem:
            return 0
        with contextlib.suppress(SandboxError, ValueError, IndexError):
            return int((await self.run(["sh", "-c", _KILLED], seconds=5)).output.split()[0])
        return 0

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._closing)

    async def state(self, identity: str) -> tuple[bool, int | None]:
        """Whether a process runs, and its exit code if not."""
        try:
            seen = await call(self._client.exec_inspect, identity)
        except Exception:  # the container is gone, or the engine
            return False, None
        return bool(seen["Running"]), seen["ExitCode"]

    def _check(self) -> None:
        if self.problem:
            raise SandboxError(self.problem)

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem

    async def _watch(self) -> None:
        """Wait for the container's end."""
        try:
            code = await stream.ended(self._base_url, self._version, self._container)
            self._fail(f"its container was ended from outside (exit code {code})")
        except (OSError, stream.EngineError) as error:
            self._fail(f"the container engine does not answer any more: {error}")

    async def _close(self) -> None:
        self._fail("it was closed")
        self._watching.cancel()
        for pause in (*_RETRY_PAUSES, None):
            try:
                await call(self._client.remove_container, self._container, force=True, v=True)
            except Exception as error:  # the SDK's and requests' own
                if getattr(error, "status_code", 0) == 404:
                    return
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
                logger.warning("the container %s can't be removed; the next start retries it: %s", self._container,
                               str(error)[:300])
            return
