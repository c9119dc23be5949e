"""Persistent bash: folder, variables and background jobs stay between commands."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
from dataclasses import dataclass

from openclaw_rl.rollouts.environments.terminal.text import Clip, plain
from openclaw_rl.rollouts.sandboxes.interface import WORK, Process, Sandbox, SandboxError

#: Interactive, so that an interrupt ends the command and not the shell.
_ARGV = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
_SETTINGS = "PS1= PS2= PROMPT_COMMAND=; set +o history; set +H; unset HISTFILE; exec 198>&1"
_START = 15.0  #: seconds for a shell to answer
_INTERRUPT = 10.0  #: seconds for an interrupted command to end, on a machine that others load fully
_LAST_WORDS = 0.1  #: seconds to read the last output of an ended shell
#: Bytes that a command may write before it is killed.
FLOOD = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a command."""

    output: Clip
    code: int | None  #: None: it was killed, or unknown
    folder: str  #: the shell's present folder
    timed_out: bool = False
    flooded: bool = False  #: it was killed for writing too much
    restarted: str = ""  #: why the shell was replaced; empty if it was not


class Shell:
    """Runs commands one after the other. The shell reports the end of a command in a line with a secret number, so that
    no output can forge it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._process: Process | None = None
        self._pid = ""
        self._clip = Clip(2)

    @property
    def recent(self) -> str:
        """Recent output of the running or last command."""
        return plain(self._clip.last)

    async def run(self, command: str, seconds: float, most: int) -> Ran:
        """Run a command; it reads nothing from stdin.

        Args:
            command: bash text of any number of lines.
            seconds: limit after which it is interrupted; if that does not end it, the shell is killed and replaced.
            most: bytes of output kept, half from the beginning, half from the end.

        Raises:
            SandboxError: the sandbox was lost.
        """
        if self._process is None:
            await self._begin()
        assert self._process is not None
        self._clip = clip = Clip(most)
        token = secrets.token_hex(16)
        timed_out = flooded = False
        try:
            await self._process.write(f"eval {shlex.quote(command)} </dev/null; {_report(token)}".encode())
            end = await self._until(token, clip, seconds)
        except SandboxError:
            if self._sandbox.problem:
                raise
            end = None
        except TimeoutError:
            timed_out, end = True, await self._interrupt(token, clip)
        except _Flood:
            flooded, end = True, await self._interrupt(token, clip)
        except BaseException:
            await asyncio.shield(self._end())
            raise
        if end is not None:
            return Ran(clip, None if timed_out or flooded else int(end[1]), end[2].decode("utf-8", "replace"),
                       timed_out, flooded)
        code = self._process.code
        if self._process.code is None and not (timed_out or flooded):
            with contextlib.suppress(TimeoutError):
                code = await asyncio.wait_for(self._process.wait(), 1)
        ended_itself = code is not None and not (timed_out or flooded)
        await self._end()
        if self._sandbox.problem:
            raise SandboxError(self._sandbox.problem)
        why = (f"the shell ended with exit code {code}" if ended_itself
               else "the command did not let itself be interrupted")
        return Ran(clip, code if ended_itself else None, WORK, timed_out, flooded,
                   f"{why}; a new shell was started in {WORK}, without variables and background jobs of the old one")

    async def _begin(self) -> None:
        process = await self._sandbox.start(_ARGV)
        self._process = process
        token = secrets.token_hex(16)
        try:
            await process.write(f"{_SETTINGS}\n{_report(token, '$$')}".encode())
            end = await self._until(token, Clip(4096), _START)
        except (TimeoutError, _Flood):
            end = None
        except BaseException:
            await asyncio.shield(self._end())
            raise
        if end is None:
            output = plain(await process.read(2000)) if process.code is not None else ""
            await self._end()
            raise SandboxError(self._sandbox.problem or f"bash does not start in the sandbox: {output[-300:]}")
        self._pid = end[1].decode()

    async def _until(self, token: str, clip: Clip, seconds: float) -> re.Match[bytes] | None:
        """Collect output until the shell reports; returns the report, None if the shell has ended.

        Raises:
            TimeoutError, _Flood: there was no report.
        """
        assert self._process is not None
        collecting = asyncio.ensure_future(_collect(self._process, token.encode(), clip))
        # Background jobs may hold the output open after the shell has ended.
        ending = asyncio.ensure_future(self._process.wait())
        try:
            done, _ = await asyncio.wait({collecting, ending}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise TimeoutError
            if not collecting.done():
                await asyncio.wait({collecting}, timeout=_LAST_WORDS)
            return collecting.result() if collecting.done() else None
        finally:
            for task in (collecting, ending):
                task.cancel()
            await asyncio.gather(collecting, ending, return_exceptions=True)

    async def _interrupt(self, token: str, clip: Clip) -> re.Match[bytes] | None:
        """Interrupt the command as Ctrl-C does, and wait for the shell."""
        assert self._process is not None
        with contextlib.suppress(SandboxError):
            # A negative PID: the shell's group, where the command is; jobs in the background ignore the signal.
            await self._sandbox.run(["sh", "-c", f"kill -2 -{self._pid}"], seconds=_START)
            await self._process.write(_report(token).encode())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERRUPT):
                    while True:  # its earlier output may be long
                        with contextlib.suppress(_Flood):
                            return await self._until(token, clip, _INTERRUPT)
        return None

    async def _end(self) -> None:
        """End the shell and everything that it started."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(SandboxError):
                await process.kill()
                await self._sandbox.end_all()
            process.close()


class _Flood(Exception):
    """A command wrote too much."""


async def _collect(process: Process, token: bytes, clip: Clip) -> re.Match[bytes] | None:
    """Read until the shell reports or its output ends.

    Raises:
        _Flood: there was too much output.
    """
    report = re.compile(rb"\n\x1e%s (\d+) (.*) %s\n" % (token, token), re.DOTALL)
    window = b""
    while data := await process.read():
        clip.add(data)
        window = (window + data)[-(len(data) + 8192):]  # a report is at most as long as a path
        found = report.search(window)
        if found is not None:
            # With `set -x` the shell also prints the reporting command.
            shown = window.find(b"+ printf", max(found.start() - 300, 0), found.start())
            begin = shown if shown >= 0 and token in window[shown:found.start()] else found.start()
            clip.cut(len(window) - begin)
            return found
        if clip.seen > FLOOD:
            raise _Flood
    return None


def _report(token: str, code: str = "$?") -> str:
    # The status is an argument, so it is read before printf changes it. 198 is stdout, even after `exec >file`.
    return f"printf '\\n\\036%s %s %s %s\\n' {token} {code} \"$PWD\" {token} >&198\n"
