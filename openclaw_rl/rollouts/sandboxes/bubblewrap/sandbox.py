"""One bubblewrap sandbox, and the processes in it."""

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

from openclaw_rl.rollouts.sandboxes.bubblewrap import init
from openclaw_rl.rollouts.sandboxes.bubblewrap.cgroups import Group
from openclaw_rl.rollouts.sandboxes.by_start import ByStart
from openclaw_rl.rollouts.sandboxes.interface import WORK, SandboxError

#: Seconds within which a sandbox must be up, and a process in it started; generous, for a machine that is loaded.
_UP, _STARTED = 60.0, 30.0
#: Bytes of one line that the first process reads; a shell reads byte by byte.
_LONGEST_LINE = 256 * 1024
_STDERR = 2000

#: Those on their way; a loop itself keeps no task alive.
_closings: set[asyncio.Task[None]] = set()


class _Input(asyncio.streams.FlowControlMixin):
    """Of a process's stdin: holds writers up while it doesn't read."""

    lost = False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        super().connection_lost(error)


class BubblewrapProcess:
    """A process in a sandbox; see base.Process."""

    def __init__(self, sandbox: BubblewrapSandbox, identity: str) -> None:
        self.identity = identity
        self.pid = 0  #: inside
        self.started = asyncio.Event()
        self._sandbox = sandbox
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.output = asyncio.StreamReader(limit=65536)
        self.output_transport: asyncio.ReadTransport | None = None
        self.input: asyncio.StreamWriter | None = None
        self.input_protocol = _Input()

    @property
    def code(self) -> int | None:
        """Its exit code, 128 + N after signal N; None while it runs, or when the sandbox went with it."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int | None:
        """Wait until it has ended: its exit code, None when the sandbox ended with it."""
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
        """No more comes on its stdin."""
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
        """Give back its pipes."""
        if self.input is not None and not self.input_protocol.lost:
            self.input.transport.abort()
        if self.output_transport is not None:
            self.output_transport.close()

    def end(self, code: int | None) -> None:
        """Remember that it has ended."""
        if not self._ended.done():
            self._ended.set_result(code)
        self.started.set()


class _Events(asyncio.Protocol):
    """Lines that the first process tells."""

    def __init__(self, sandbox: BubblewrapSandbox) -> None:
        self._sandbox = sandbox
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._sandbox.told(line.decode("ascii", "replace"))
        if len(self._rest) > 4096:
            self._sandbox.fail("something in the sandbox wrote to its control channel")

    def connection_lost(self, error: Exception | None) -> None:
        self._sandbox.fail("its first process ended")


class BubblewrapSandbox(ByStart):
    """See base.Sandbox. Made by `boot`, by the thread that runs the event loop: the sandbox ends with that thread."""

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
        """Start one.

        Args:
            launch: what leads to bwrap, which is added: it joins `group` and becomes `user`.
            arguments: of bwrap, without the command.
            script: what the first process's shell runs.
            folder: FIFOs are made here; deleted with the sandbox.
            user: to whom FIFOs are given.
            group: control group; removed with the sandbox.
            filter_program: of system calls (see seccomp.py); empty: none.

        Raises:
            SandboxError: it doesn't come up; the text has what bwrap said.
            OSError: no process can be started.
            CancelledError: as these, when what there was of it is gone.
        """
        # By pipes, so that no list of processes inside tells what the host is like.
        described = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
        descriptors = [_pipe_with(described)]
        command = [*launch, "bwrap", "--args", str(descriptors[0])]
        if filter_program:
            descriptors.append(_pipe_with(filter_program))
            command += ["--seccomp", str(descriptors[1])]
        try:
            # Not asyncio's, which takes a thread for each. vfork: 1 to 2 ms.
            process = subprocess.Popen([*command, init.SHELL, "-c", script, "sandbox"],  # noqa: ASYNC220
                                       process_group=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, pass_fds=descriptors,
                                       env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")}, bufsize=0, cwd="/")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self = cls(process, folder=folder, user=user, group=group)
        loop = asyncio.get_running_loop()
        assert process.stdin is not None and process.stdout is not None
        try:
            self._watch()
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
            said = self._stderr()
            problem = said or self.problem
            await self.close()
            raise SandboxError(problem)
        return self

    # ---------------------------------------------------------------- what base.Sandbox says
    async def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None,
                    folder: str = WORK) -> BubblewrapProcess:
        self._check()
        # The name of a pipe is seen by who has it; and nobody may guess it, for it's open to all of the sandbox.
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
        loop = asyncio.get_running_loop()
        paths = [self._folder / f"{name}.i", self._folder / f"{name}.o"]
        held = -1
        try:
            for path in paths:
                os.mkfifo(path, 0o600)
                if self._user is not None:
                    os.chown(path, self._user, self._user)
            # Holding the other end lets this end be opened at once; given up when the process has opened its own.
            held = os.open(paths[0], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            writer = os.fdopen(os.open(paths[0], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), "wb", 0)
            transport, protocol = await loop.connect_write_pipe(lambda: process.input_protocol, writer)
            process.input = asyncio.StreamWriter(transport, protocol, None, loop)
            reader = os.fdopen(os.open(paths[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0)
            process.output_transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(process.output), reader)
            self.tell(line)
            async with asyncio.timeout(_STARTED):
                await process.started.wait()
        except BaseException as error:
            process.end(None)  # stays known, for what is told of it later
            process.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(f"no process was started in {_STARTED:g} s; the sandbox may be full of others") \
                    from None
            if isinstance(error, OSError):
                raise SandboxError(f"no process can be started: {error}") from error
            raise
        finally:
            if held >= 0:
                os.close(held)
            for path in paths:
                with contextlib.suppress(OSError):
                    path.unlink()
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

    # ---------------------------------------------------------------- for its processes, and the first of them
    def tell(self, line: bytes) -> None:
        """Give the first process a line."""
        if self._control is not None and not self._control.is_closing():
            self._control.write(line)

    def told(self, line: str) -> None:
        """The first process has said something."""
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
        """It is of no use any more: everything in it ends. The first problem is kept."""
        if self.problem:
            return
        self.problem = problem
        self._kill()
        self._end_processes(None)
        self._ready.set()
        self._cleared.set()
        self._held.set()

    def _kill(self) -> None:
        """End bwrap: what was made of it until now, for its child ends with it only after its own first steps."""
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

    def _watch(self) -> None:
        """Notice when the outer process ends.

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
            self._kill()  # what is left of its group, which keeps its number until then
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
            while not self._group.remove() and pause < 2:  # its last processes are on their way out
                await asyncio.sleep(pause)
                pause *= 1.5


def remove_folder(folder: Path) -> None:
    """Delete one that may not be listed, and what is in it."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _pipe_with(data: bytes) -> int:
    """The reading end of a pipe that holds this; what doesn't fit into a pipe is an error.

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
