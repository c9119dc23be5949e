"""A bubblewrap sandbox: its start, its control channel and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.base_sandbox import BaseSandbox
from openclaw_rl.rollouts.sandboxes.bubblewrap import init
from openclaw_rl.rollouts.sandboxes.bubblewrap.cgroups import Group
from openclaw_rl.rollouts.sandboxes.bubblewrap.process import BubblewrapProcess
from openclaw_rl.rollouts.sandboxes.interface import WORK, SandboxError

#: Time limits in seconds for the start of a sandbox and of a process in it; generous, for a loaded machine.
_UP, _STARTED = 60.0, 30.0
#: Bytes of a line to the first process; a shell reads byte by byte.
_LONGEST_LINE = 256 * 1024
_STDERR = 2000

#: Running closings: an event loop keeps no task alive.
_closings: set[asyncio.Task[None]] = set()


class _Events(asyncio.Protocol):
    """Reads the messages of the first process."""

    def __init__(self, sandbox: BubblewrapSandbox) -> None:
        self._sandbox = sandbox
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._sandbox.handle(line.decode("ascii", "replace"))
        if len(self._rest) > 4096:
            self._sandbox.fail("something in the sandbox wrote to its control channel")

    def connection_lost(self, error: Exception | None) -> None:
        self._sandbox.fail("its first process ended")


class BubblewrapSandbox(BaseSandbox):
    """See Sandbox. Made by `boot`, in the thread of the event loop: the sandbox ends with that thread."""

    def __init__(self, process: subprocess.Popen[bytes], *, folder: Path, user: int | None,
                 group: Group | None) -> None:
        self.problem = ""
        self._process = process
        self._folder = folder
        self._user = user
        self._group = group
        self._ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._cleared = asyncio.Event()
        self._held = asyncio.Event()
        self._processes: dict[str, BubblewrapProcess] = {}
        self._control: asyncio.WriteTransport | None = None
        self._events: asyncio.ReadTransport | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def boot(cls, launch: Sequence[str], arguments: Sequence[str], script: str, *, folder: Path,
                   user: int | None, group: Group | None, filter_program: bytes) -> BubblewrapSandbox:
        """Start a sandbox.

        Args:
            launch: command before bwrap, which is added: it joins `group` and becomes `user`.
            arguments: of bwrap, without the command.
            script: run by the first process's shell.
            folder: FIFOs are made here; deleted with the sandbox.
            user: owner of the FIFOs.
            group: control group; removed with the sandbox.
            filter_program: of system calls (see seccomp.py); empty: none.

        Raises:
            SandboxError: it does not come up; the text has bwrap's output.
            OSError: no process can be started.
            CancelledError: likewise, after what there was of it is gone.
        """
        # Passed by pipes, so that no process list inside reveals anything about the host.
        described = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
        descriptors = [_pipe_with(described)]
        command = [*launch, "bwrap", "--args", str(descriptors[0])]
        if filter_program:
            descriptors.append(_pipe_with(filter_program))
            command += ["--seccomp", str(descriptors[1])]
        try:
            # Not asyncio's, which uses a thread for each. vfork: 1 to 2 ms.
            process = subprocess.Popen([*command, init.SHELL, "-c", script, "sandbox"],  # noqa: ASYNC220
                                       process_group=0, umask=0o022, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, pass_fds=descriptors,
                                       env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")}, bufsize=0, cwd="/")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self = cls(process, folder=folder, user=user, group=group)
        loop = asyncio.get_running_loop()
        assert process.stdin is not None and process.stdout is not None
        try:
            self._watch_end()
            self._control, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
            self._events, _ = await loop.connect_read_pipe(lambda: _Events(self), process.stdout)
            async with asyncio.timeout(_UP):
                await self._ready.wait()
        except TimeoutError:
            self.fail(f"it was not up after {_UP:g} s")
        except BaseException:
            await self.close()
            raise
        if self.problem:
            problem = self._stderr() or self.problem
            await self.close()
            raise SandboxError(problem)
        return self

    # See Sandbox

    async def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None,
                    folder: str = WORK) -> BubblewrapProcess:
        self._check()
        # The process sees the name of its pipes; nobody else may guess it, since all of the sandbox can open them.
        identity, name = secrets.token_hex(8), secrets.token_hex(16)
        try:
            line = init.begin(identity, name, argv, environment or {}, folder)
        except ValueError as error:
            raise SandboxError(str(error)) from None
        if len(line) > _LONGEST_LINE:
            raise SandboxError(f"the arguments have {len(line)} bytes; {_LONGEST_LINE} are allowed: "
                               "write a file, or give them on stdin")
        process = BubblewrapProcess(self, identity)
        self._processes[identity] = process
        try:
            async with process.fifos(self._folder, name, self._user):
                self.tell(line)
                async with asyncio.timeout(_STARTED):
                    await process.started.wait()
        except BaseException as error:
            process.end(None)  # stays known, for later messages about it
            process.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"no process was started in {_STARTED:g} s; the sandbox may be full of others") \
                    from None
            if isinstance(error, OSError):
                raise SandboxError(f"no process can be started: {error}") from error
            raise
        if not process.pid:
            process.close()
            raise SandboxError(self.problem or "no process can be started: the sandbox has as many as it may")
        return process

    async def end_all(self) -> None:
        self._check()
        self._cleared.clear()
        self.tell(init.END_ALL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._cleared.wait(), _STARTED)
        self._check()

    async def pause(self) -> None:
        self._check()
        self._held.clear()
        self.tell(init.PAUSE)
        try:
            await asyncio.wait_for(self._held.wait(), _STARTED)
        except TimeoutError:
            self.fail(f"its processes were not stopped in {_STARTED:g} s")
        self._check()

    async def resume(self) -> None:
        self._check()
        self.tell(init.RESUME)

    async def killed(self) -> int:
        return self._group.killed() if self._group is not None else 0

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
            _closings.add(self._closing)
            self._closing.add_done_callback(_closings.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._closing)

    # Control channel

    def tell(self, line: bytes) -> None:
        """Send a line to the first process."""
        if self._control is not None and not self._control.is_closing():
            self._control.write(line)

    def handle(self, line: str) -> None:
        """Handle a message of the first process."""
        word, *rest = line.split() or [""]
        if word == "ready" and not rest and not self._ready.is_set():
            self._ready.set()
            return
        if word == "cleared" and not rest and not self._cleared.is_set():
            self._end_processes(128 + signal.SIGKILL)
            self._cleared.set()
            return
        if word == "held" and not rest and not self._held.is_set():
            self._held.set()
            return
        process = self._processes.get(rest[0]) if len(rest) == 2 and rest[1].isdigit() else None
        if word == "started" and process is not None and not process.pid:
            process.pid = int(rest[1])
            process.started.set()
        elif word == "ended" and process is not None:
            del self._processes[process.identity]
            process.end(int(rest[1]))
        else:
            self.fail("something in the sandbox wrote to its control channel")

    def fail(self, problem: str) -> None:
        """Mark it as unusable and end everything in it. The first problem is kept."""
        if self.problem:
            return
        self.problem = problem
        self._kill()
        self._end_processes(None)
        self._ready.set()
        self._cleared.set()
        self._held.set()

    def _kill(self) -> None:
        """End bwrap's process group: its child ends with it only after its own first steps."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end_processes(self, code: int | None) -> None:
        for process in self._processes.values():
            process.end(code)
        self._processes.clear()

    def _check(self) -> None:
        if self.problem:
            raise SandboxError(self.problem)

    def _watch_end(self) -> None:
        """Watch for the end of the outer process.

        Raises:
            OSError: there are too many open files; it was ended.
        """
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except OSError:
            self._kill()
            self._process.wait()
            self._gone.set()
            raise

        def ended() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            self._kill()  # the rest of its group, which keeps its number until then
            code = self._process.poll()
            self.fail(f"it was ended from outside (exit code {code})" if self._ready.is_set()
                      else f"bwrap ended with exit code {code}")
            self._gone.set()

        loop.add_reader(descriptor, ended)

    def _stderr(self) -> str:
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        try:
            return (self._process.stderr.read(_STDERR) or b"").decode("utf-8", "replace").strip()
        except OSError:
            return ""

    async def _close(self) -> None:
        self.fail("it was closed")
        await self._gone.wait()
        for end in (self._control or self._process.stdin, self._events or self._process.stdout, self._process.stderr):
            if end is not None:
                end.close()
        await asyncio.to_thread(remove_folder, self._folder)
        if self._group is not None:
            pause = 0.005
            while not self._group.remove() and pause < 2:  # its last processes are still exiting
                await asyncio.sleep(pause)
                pause *= 1.5


def remove_folder(folder: Path) -> None:
    """Delete a folder that may not be listable, with its content."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _pipe_with(data: bytes) -> int:
    """Make a pipe that holds the data, and return its reading end.

    Raises:
        OSError: it doesn't fit.
    """
    end, begin = os.pipe()
    try:
        os.set_blocking(begin, False)
        if os.write(begin, data) != len(data):
            raise OSError("the sandbox's description is longer than a pipe holds: fewer or shorter variables")
    except OSError:
        os.close(end)
        raise
    finally:
        os.close(begin)
    return end
