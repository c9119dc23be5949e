"""Environment of type `gui`: a screen to look at, click and type on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from openclaw_rl.rollouts.environments.gui.actions import INSTRUCTIONS, deed, tools
from openclaw_rl.rollouts.environments.gui.display import ENVIRONMENT, Display, Look, NotOpened
from openclaw_rl.rollouts.environments.gui.scripts import DESK
from openclaw_rl.rollouts.environments.gui.task import SIZE, Check, Setup, read_check, read_setup
from openclaw_rl.rollouts.environments.gui.tree import in_words, windows
from openclaw_rl.rollouts.environments.interface import BadTask, Observation, Opening, Outcome, StepResult
from openclaw_rl.rollouts.environments.plain_text import ending
from openclaw_rl.rollouts.sandboxes.interface import Sandbox, SandboxError
from openclaw_rl.rollouts.sandboxes.running import others_paused
from openclaw_rl.rollouts.tasks.task import Action, Task

_CHECK = 60.0  # seconds
#: Python with its own library only: neither the folder nor variables can add anything.
_PYTHON = ("/usr/bin/python3", "-E", "-s", "-S", "-B")


class GuiEnvironment:
    """See Environment. The display is up before the first reset. Each further reset gets a new sandbox: that takes a
    fifth of a second, and nothing from before can remain."""

    def __init__(self, make: Callable[[], Awaitable[Sandbox]]) -> None:
        """
        Args:
            make: makes a sandbox.
        """
        self._make = make
        self._sandbox: Sandbox | None = None
        self._display: Display | None = None
        self._task: Task | None = None
        self._setup = Setup()
        self._used = False
        self._changing = asyncio.Lock()
        self._closed = False

    async def start(self, size: tuple[int, int] = SIZE) -> None:
        """Replace the sandbox by a new one with a display of this size.

        Raises:
            SandboxError: it does not come up.
        """
        async with self._changing:
            await self._end()
            self._sandbox = await self._make()
            self._display = Display(self._sandbox, size)
            try:
                await self._display.start()
            finally:
                if self._closed:
                    await self._end()

    @property
    def problem(self) -> str:
        if self._closed:
            return "it was closed"
        return self._display.problem if self._display is not None else "it has no display"

    def _there(self) -> tuple[Sandbox, Display]:
        if self.problem or self._sandbox is None or self._display is None:
            raise SandboxError(self.problem)
        return self._sandbox, self._display

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        setup = read_setup(task) if task is not None else Setup()
        if self._used or self._display is None or setup.size != self._display.size:
            await self.start(setup.size)
        sandbox, display = self._there()
        self._used, self._task, self._setup = True, task, setup
        await self._prepare(setup, sandbox, display)
        return Opening(self._seen(await display.look(), display), task.goal if task is not None else "",
                       INSTRUCTIONS, tools(*display.size))

    async def _prepare(self, setup: Setup, sandbox: Sandbox, display: Display) -> None:
        for path, text in setup.files.items():
            try:
                await sandbox.write(path, text.encode())
            except SandboxError as error:
                if sandbox.problem:
                    raise
                raise BadTask(f"`setup.files`: {path}: {error}") from None
        if setup.run:
            finished = await sandbox.run(["sh", "-c", setup.run], environment=ENVIRONMENT, seconds=_CHECK)
            if finished.code != 0:
                raise BadTask(f"`setup.run` ended with {finished.code}: {ending(finished.output)}")
        if not setup.argv:
            return
        argv = (*_PYTHON, f"{DESK}/apps/{setup.argv[0]}.py", *setup.argv[1:]) if setup.shipped else setup.argv
        try:
            await display.open(argv, setup.wait, publishes=setup.shipped)
        except NotOpened as error:
            raise BadTask(f"`setup.app`, {' '.join(setup.argv)}: {error}") from None

    async def step(self, action: Action, seconds: float) -> StepResult:
        _, display = self._there()
        what = deed(action, *display.size)
        error = await display.do(what.commands, what.typed, seconds) if what.commands or what.typed else ""
        notes = "The window manager had ended; it was started again." if await display.mend() else ""
        return StepResult(self._seen(await display.look(), display, f"{error} {notes}".strip()),
                          done=what.done, error=error)

    def _seen(self, look: Look, display: Display, notes: str = "") -> Observation:
        found, cut = windows(look.sections)
        application = "none" if not self._setup.argv else "ended" if look.ended else "running"
        text, shortened = in_words(display.size, application, found, notes)
        width, height = display.size
        return Observation({"text": text, "screen": {"width": width, "height": height}, "application": application,
                            "windows": found, "truncated": cut or shortened}, look.picture)

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(0.0, "there is no task")
        check = read_check(self._task)
        sandbox, _ = self._there()
        # A capture meanwhile would find everything that draws it stopped.
        async with self._changing, others_paused(sandbox):
            return await _judged(check, sandbox)

    async def view(self) -> Observation:
        async with self._changing:
            _, display = self._there()
            return self._seen(await display.look(settled=False), display)

    async def close(self) -> None:
        self._closed = True
        await self._end()

    async def _end(self) -> None:
        sandbox, display = self._sandbox, self._display
        self._sandbox = self._display = None
        if sandbox is not None:
            await sandbox.close()
        if display is not None:
            display.close()


async def _judged(check: Check, sandbox: Sandbox) -> Outcome:
    for path, comparison, expected in check.files:
        try:
            data = (await sandbox.read(path)).decode("utf-8", "replace")
        except SandboxError as error:
            if sandbox.problem:
                raise
            return Outcome(0.0, f"{path} can't be read: {error}")
        if comparison == "equals" and data.rstrip() != expected.rstrip():
            return Outcome(0.0, f"{path} is not what it should be")
        if comparison == "contains" and expected not in data:
            return Outcome(0.0, f"{path} does not contain what it should")
    if check.run:
        finished = await sandbox.run(["sh", "-c", check.run], environment=ENVIRONMENT, seconds=_CHECK)
        output = ending(finished.output)
        if finished.code in (126, 127):
            raise BadTask(f"`check.run` can't be run: {output}")
        if finished.code != 0:
            return Outcome(0.0, f"the check ended with {finished.code}: {output}" if not finished.timed_out
                           else f"the check was not done in {_CHECK:g} s")
    return Outcome(1.0, "done")
