"""An environment of kind `gui`: a screen that is seen, clicked at and typed on."""

from __future__ import annotations

import asyncio
import contextlib

from openclaw_rl.environment.kinds.base import BadTask, Observation, Opening, Outcome, StepResult
from openclaw_rl.environment.kinds.gui_actions import INSTRUCTIONS, deed, tools
from openclaw_rl.environment.kinds.gui_display import ENVIRONMENT, Display, Look, NotOpened
from openclaw_rl.environment.kinds.gui_scripts import DESK
from openclaw_rl.environment.kinds.gui_task import SIZE, Setup, read_check, read_setup
from openclaw_rl.environment.kinds.gui_tree import in_words, windows
from openclaw_rl.environment.sandboxes.base import Sandbox, SandboxError
from openclaw_rl.environment.tasks.task import Action, Task

_CHECK = 60.0  # seconds
#: Programs of Python's own library and no other: neither the folder nor variables can bring in something else.
_PYTHON = ("/usr/bin/python3", "-E", "-s", "-S", "-B")


class GuiEnvironment:
    """See kinds.base.Environment. The display is up before the first reset."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._display = Display(sandbox, SIZE)
        self._task: Task | None = None
        self._setup = Setup()
        self._clean = True
        self._cleaning = asyncio.Lock()  # which ends the programs that look at the screen, too
        self._closed = False

    @classmethod
    async def make(cls, sandbox: Sandbox) -> GuiEnvironment:
        """One with its display up.

        Raises:
            SandboxError: it doesn't come up; the sandbox is closed then.
        """
        made = cls(sandbox)
        try:
            await made._display.start()
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def problem(self) -> str:
        return "it was closed" if self._closed else self._display.problem

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        setup = read_setup(task) if task is not None else Setup()
        async with self._cleaning:
            if not self._clean or setup.size != self._display.size:
                await self._display.renew(setup.size)
            self._clean = False
            self._task, self._setup = task, setup
        await self._prepare(setup)
        return Opening(await self._seen(await self._display.look()), task.goal if task is not None else "",
                       INSTRUCTIONS, tools(*self._display.size))

    async def _prepare(self, setup: Setup) -> None:
        for path, text in setup.files.items():
            try:
                await self._sandbox.write(path, text.encode())
            except SandboxError as error:
                if self._sandbox.problem:
                    raise
                raise BadTask(f"`setup.files`: {path}: {error}") from None
        if setup.run:
            said = await self._sandbox.run(["sh", "-c", setup.run], environment=ENVIRONMENT, seconds=_CHECK)
            if said.code != 0:
                raise BadTask(f"`setup.run` ended with {said.code}: {said.output.decode('utf-8', 'replace')[-500:]}")
        if not setup.argv:
            return
        argv = (*_PYTHON, f"{DESK}/apps/{setup.argv[0]}.py", *setup.argv[1:]) if setup.shipped else setup.argv
        try:
            await self._display.open(argv, setup.wait, publishes=setup.shipped)
        except NotOpened as error:
            raise BadTask(f"`setup.app`, {' '.join(setup.argv)}: {error}") from None

    async def step(self, action: Action, seconds: float) -> StepResult:
        what = deed(action, *self._display.size)
        if self.problem:
            raise SandboxError(self.problem)
        error = ""
        if what.commands or what.typed:
            error = await self._display.do(what.commands, what.typed, seconds)
        mended = await self._display.mend()
        notes = "The window manager had ended; it was started again." if mended else ""
        return StepResult(await self._seen(await self._display.look(), notes=f"{error} {notes}".strip()),
                          done=what.done, error=error)

    async def _seen(self, look: Look, notes: str = "") -> Observation:
        found, cut = windows(look.sections)
        application = "none" if not self._setup.argv else "ended" if look.ended else "running"
        text, shortened = in_words(self._display.size, application, found, notes)
        width, height = self._display.size
        return Observation({"text": text, "screen": {"width": width, "height": height}, "application": application,
                            "windows": found, "truncated": cut or shortened}, look.picture)

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(0.0, "there is no task")
        check = read_check(self._task)
        for path, kind, expected in check.files:
            try:
                data = (await self._sandbox.read(path)).decode("utf-8", "replace")
            except SandboxError as error:
                if self._sandbox.problem:
                    raise
                return Outcome(0.0, f"{path} can't be read: {error}")
            if kind == "equals" and data.rstrip() != expected.rstrip():
                return Outcome(0.0, f"{path} is not what it should be")
            if kind == "contains" and expected not in data:
                return Outcome(0.0, f"{path} does not contain what it should")
        if check.run:
            said = await self._sandbox.run(["sh", "-c", check.run], environment=ENVIRONMENT, seconds=_CHECK)
            output = said.output.decode("utf-8", "replace")[-500:].strip()
            if said.code in (126, 127):
                raise BadTask(f"`check.run` can't be run: {output}")
            if said.code != 0:
                return Outcome(0.0, f"the check ended with {said.code}: {output}" if not said.timed_out
                               else f"the check was not done in {_CHECK:g} s")
        return Outcome(1.0, "done")

    async def view(self) -> Observation:
        async with self._cleaning:
            return await self._seen(await self._display.look(settled=False))

    async def close(self) -> None:
        self._closed = True
        with contextlib.suppress(SandboxError):
            await self._display.close()
        await self._sandbox.close()
