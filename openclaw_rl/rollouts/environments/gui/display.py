"""An X display in a sandbox, with its window manager and one application."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.rollouts.environments.gui.actions import off_keyboard
from openclaw_rl.rollouts.environments.gui.scripts import DESK, WIDGETS, bundle
from openclaw_rl.rollouts.environments.plain_text import ending
from openclaw_rl.rollouts.sandboxes.interface import WORK, Finished, Process, Sandbox, SandboxError

#: Environment variables of everything in the sandbox.
ENVIRONMENT = {"DISPLAY": ":1", "DESK_WIDGETS": WIDGETS, "LC_ALL": "C.UTF-8", "HOME": WORK}
_MOST_PICTURE = 4 << 20  # bytes
_MOST_LOOK = _MOST_PICTURE + (4 << 20)
_START = 60.0  # seconds for each program of the display; a loaded machine is slow
_LOOK = 30.0
_NO_DISPLAY = 9  # exit code of the scripts


class NotOpened(Exception):
    """The application showed no window; the text says why."""


@dataclass(frozen=True, slots=True)
class Look:
    """The content of the screen: output of X's programs, by section, and the picture."""

    sections: dict[str, str]
    picture: bytes

    @property
    def ended(self) -> bool:
        """The application has ended."""
        return "ended" in self.sections


class _Program:
    """A long-running program. Its output is drained, so that it never blocks, and the end is kept."""

    def __init__(self, process: Process) -> None:
        self.output = b""
        self.ended = False
        self.changed = asyncio.Event()
        self._process = process
        self._task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        with contextlib.suppress(SandboxError):
            while data := await self._process.read():
                self.output = (self.output + data)[-2000:]
                self.changed.set()
        self.ended = True
        self.changed.set()

    async def kill(self) -> None:
        with contextlib.suppress(SandboxError):
            await self._process.kill()
        self.forget()

    def forget(self) -> None:
        self._task.cancel()

    @property
    def words(self) -> str:
        return " ".join(ending(self.output).split()) or "nothing"


class Display:
    """Display :1 of a sandbox."""

    def __init__(self, sandbox: Sandbox, size: tuple[int, int]) -> None:
        self.size = size  #: width and height in pixels
        self._sandbox = sandbox
        self._problem = ""
        self._looks = 0
        self._x: _Program | None = None
        self._manager: _Program | None = None
        self._app: _Program | None = None

    @property
    def problem(self) -> str:
        """Why it became unusable; empty while it works."""
        if self._sandbox.problem or self._problem:
            return self._sandbox.problem or self._problem
        if self._x is not None and self._x.ended:
            return f"the display has ended; the last it said: {self._x.words}"
        return ""

    async def start(self) -> None:
        """Start X and the window manager.

        Raises:
            SandboxError: they do not come up.
        """
        await self._run(["sh", "-c", f"mkdir -p -m 1777 /tmp/.X11-unix; mkdir -p {DESK}/screen {WIDGETS} && "
                                     f"tar -xf - -C {DESK}"], stdin=bundle(), what="the display's folder")
        width, height = self.size
        self._x = _Program(await self._sandbox.start(
            ["Xvfb", ":1", "-screen", "0", f"{width}x{height}x24", "-nolisten", "tcp", "-ac", "-noreset",
             "-fbdir", f"{DESK}/screen", "-displayfd", "1"], environment=ENVIRONMENT))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START):
                while not re.search(rb"^1$", self._x.output, re.M) and not self._x.ended:
                    self._x.changed.clear()
                    await self._x.changed.wait()
        if not re.search(rb"^1$", self._x.output, re.M):
            self._problem = self.problem or f"the display was not up after {_START:g} s"
            raise SandboxError(self._problem)
        await self._manage()

    async def open(self, argv: Sequence[str], seconds: float, *, publishes: bool) -> None:
        """Start an application and wait for its first window.

        Args:
            seconds: for the window to come up.
            publishes: it publishes its widgets (see apps/widgets.py), and counts as started once it has.

        Raises:
            NotOpened: no window came up.
        """
        self._app = _Program(await self._sandbox.start(["sh", f"{DESK}/run.sh", *argv], environment=ENVIRONMENT))
        finished = await self._plain(
            ["sh", f"{DESK}/opened.sh", str(round(seconds * 10)), "yes" if publishes else "no"],
            seconds=seconds * 3 + 10)
        self._check(finished)
        if finished.code != 0:
            how = "ended at once" if finished.code == 2 else f"showed no window in {seconds:g} s"
            words = self._app.words
            await self._app.kill()
            raise NotOpened(f"the application {how}; the last it said: {words}")

    async def do(self, commands: str, typed: str, seconds: float) -> str:
        """Run xdotool.

        Args:
            commands: for its stdin; empty for none.
            typed: text to type; empty for none.

        Returns:
            An error message; empty on success.
        """
        names = [f"U{ord(char):04X}" for char in off_keyboard(typed)]
        argv = ["sh", f"{DESK}/type.sh", *names] if typed else ["xdotool", "-"]
        finished = await self._plain(argv, stdin=(typed or commands + "\n").encode(), seconds=seconds)
        if finished.timed_out:
            return f"it was not done in {seconds:g} s, and was ended"
        return "" if finished.code == 0 else "it failed: " + ending(finished.output, 300)

    async def mend(self) -> bool:
        """Restart the window manager if it has ended; returns whether it had."""
        if self.problem or self._manager is None or not self._manager.ended:
            return False
        self._manager.forget()
        await self._manage()
        return True

    async def look(self, *, settled: bool = True) -> Look:
        """Capture the screen.

        Args:
            settled: wait until the last action shows.

        Raises:
            SandboxError: the display is gone.
        """
        word = secrets.token_hex(8)
        if settled:
            self._looks += 1
        finished = await self._plain(["sh", f"{DESK}/look.sh", word, str(self._looks if settled else 0)],
                                 seconds=_LOOK, most=_MOST_LOOK)
        self._check(finished)
        sections: dict[str, str] = {}
        text, _, picture = finished.output.partition(f"@{word} png\n".encode())
        for part in text.split(f"@{word} ".encode())[1:]:
            name, _, content = part.decode("utf-8", "replace").partition("\n")
            sections[name] = content
        return Look(sections, picture if _is_png(picture, self.size) else b"")

    def close(self) -> None:
        """Stop reading from its programs, which ended with the sandbox."""
        for program in (self._app, self._manager, self._x):
            if program is not None:
                program.forget()

    async def _manage(self) -> None:
        self._manager = _Program(await self._sandbox.start(["jwm", "-f", f"{DESK}/jwmrc"], environment=ENVIRONMENT))
        await self._run(["sh", f"{DESK}/managed.sh"], what="the window manager")

    async def _plain(self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = _START,
                     most: int = 65536) -> Finished:
        return await self._sandbox.run(argv, stdin=stdin, environment=ENVIRONMENT, seconds=seconds, most=most)

    async def _run(self, argv: Sequence[str], *, what: str, stdin: bytes = b"") -> None:
        finished = await self._plain(argv, stdin=stdin)
        if finished.code != 0:
            self._problem = f"{what} failed: {ending(finished.output, 300) or f'exit code {finished.code}'}"
            raise SandboxError(self._problem)

    def _check(self, finished: Finished) -> None:
        if finished.code == _NO_DISPLAY or finished.timed_out:
            self._problem = self.problem or "the display doesn't answer any more"
        if self.problem:
            raise SandboxError(self.problem)


def _is_png(data: bytes, size: tuple[int, int]) -> bool:
    return len(data) < _MOST_PICTURE and data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 33 \
        and struct.unpack(">II", data[16:24]) == size
