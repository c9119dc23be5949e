"""Environment type `terminal`: one persistent bash in a sandbox."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.arguments import checked, function
from openclaw_rl.rollouts.environments.interface import (
    BadAction,
    BadTask,
    Context,
    Observation,
    Opening,
    Outcome,
    StepResult,
    tools_schema,
)
from openclaw_rl.rollouts.environments.terminal import check as checks
from openclaw_rl.rollouts.environments.terminal.shell import Ran, Shell
from openclaw_rl.rollouts.environments.terminal.text import plain
from openclaw_rl.rollouts.sandboxes.factory import spec
from openclaw_rl.rollouts.sandboxes.interface import WORK, Backend, Finished, Sandbox, SandboxError, Spec, Unusable
from openclaw_rl.rollouts.sandboxes.running import others_paused
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.runtime.rejection import Rejection

#: Bytes of a command's output that are shown.
MOST_OUTPUT = 16_384
_LINES = 40  #: of a view
_SETUP_SECONDS = 30.0
_CHECK_SECONDS = 10.0
_FILES_MOST = 4 * 2**20

TOOLS = (
    function("run", "Run a command in a bash shell. Folder, variables and background jobs stay for the next command. "
             "Commands get no input.", ["command"],
             command={"type": "string", "minLength": 1, "maxLength": 65_536, "description": "The command."},
             timeout={"type": "number", "minimum": 0.1, "maximum": 3600,
                      "description": "Seconds after which it is interrupted."}),
    function("submit", "Say that the goal is reached.",
             answer={"type": "string", "maxLength": 65_536, "description": "The answer, where the goal asks for one."}),
)
OBSERVATION = {"type": "object", "required": ["text"], "properties": {
    "text": {"type": "string", "description": "What was written, and how the command ended."},
    "output": {"type": "string", "description": "stdout and stderr, without escape sequences; other control "
                                                "characters and bytes that are not UTF-8 as their codes."},
    "exit_code": {"type": ["integer", "null"], "description": "null when the command was ended."},
    "timed_out": {"type": "boolean"},
    "truncated": {"type": "boolean", "description": "The middle of the output is left out; a mark says how much."},
    "folder": {"type": "string", "description": "Where the shell is now."}}}
INSTRUCTIONS = (f"Reach the goal with commands in a shell. You are in {WORK}, which is yours; there is no network. "
                "Call submit when the goal is reached; where it asks for something, give it as the answer.")


class TerminalType:
    """See EnvironmentType."""

    action_schema = tools_schema(TOOLS)
    observation_schema = OBSERVATION

    def __init__(self, config: EnvironmentConfig, context: Context) -> None:
        self._backend = context.backend
        self._spec = spec(config)

    @property
    def sandbox(self) -> str:
        return f"{self._backend.name}, {self._spec.image or 'the programs of this machine'}"

    async def validate(self) -> Rejection[Unusable] | None:
        return await self._backend.validate(self._spec)

    def check_task(self, task: Task) -> None:
        setup = _known(task.setup, "setup", {"files", "run"})
        files = setup.get("files") or {}
        if not isinstance(files, Mapping) or not all(isinstance(name, str) and isinstance(text, str)
                                                     for name, text in files.items()):
            raise BadTask(f"`setup.files`: {files!r:.80} is not allowed: path: text")
        for name in files:
            if not name or name.endswith("/") or "\0" in name:
                raise BadTask(f"`setup.files`: {name!r} is not the path of a file; a relative one is in {WORK}")
        if sum(len(text) for text in files.values()) > _FILES_MOST:
            raise BadTask(f"`setup.files`: more than {_FILES_MOST:,} characters in all are not allowed")
        run = setup.get("run")
        if run is not None and (not isinstance(run, str) or not run.strip() or "\0" in run):
            raise BadTask(f"`setup.run`: {run!r:.80} is not allowed: a text that is not empty")
        checks.validate(_known(task.check, "check", {"run", "answer", "number", "parts", "processes"}))
        for number, action in enumerate(task.solution, 1):
            try:
                checked(TOOLS, action)
            except BadAction as error:
                raise BadTask(f"`solution`, action {number}: {error}") from None

    async def make(self) -> TerminalEnvironment:
        return TerminalEnvironment(self._backend, self._spec, await self._backend.make(self._spec))

    async def close(self) -> None:
        """Nothing to release."""


class TerminalEnvironment:
    """See Environment."""

    def __init__(self, backend: Backend, sandbox_spec: Spec, sandbox: Sandbox) -> None:
        self._backend = backend
        self._spec = sandbox_spec
        self._sandbox = sandbox
        self._shell = Shell(sandbox)
        self._fresh = True
        self._killed = 0  #: processes killed by the memory limit, as last counted
        self._task: Task | None = None
        self._answer: str | None = None
        self._running = ""  #: the command
        self._lines: deque[str] = deque(maxlen=_LINES)

    @property
    def problem(self) -> str:
        return self._sandbox.problem

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        if not self._fresh:
            # A new sandbox is faster than finding all that the last episode may have left.
            await self._sandbox.close()
            self._sandbox = await self._backend.make(self._spec)
            self._shell = Shell(self._sandbox)
            self._killed = 0
        self._fresh = False
        self._task, self._answer, self._running = task, None, ""
        self._lines.clear()
        if task is not None:
            await self._set_up(task, seed)
        return Opening(_observation(f"A bash shell in {WORK}.", folder=WORK), task.goal if task is not None else "",
                       INSTRUCTIONS, TOOLS)

    async def step(self, action: Action, seconds: float) -> StepResult:
        arguments = checked(TOOLS, action)
        if action.name == "submit":
            self._answer = arguments["answer"]
            self._lines.append(f"[submitted{f': {self._answer}' if self._answer is not None else ''}]")
            return StepResult(_observation("Submitted."), done=True)
        command, limit = arguments["command"], min(arguments["timeout"] or seconds, seconds)
        if "\0" in command:
            raise BadAction("`command` of `run` has a NUL in it, which no shell can read")
        self._fresh = False
        self._running = command
        try:
            ran = await self._shell.run(command, limit, MOST_OUTPUT)
        finally:
            self._running = ""
        before = self._killed
        if ran.code != 0:  # the query is slow with docker
            self._killed = max(await self._sandbox.killed(), before)
        result = _result(ran, limit, self._killed - before)
        self._lines.extend([*f"$ {plain(command.encode())}".splitlines(), *result.observation.text.splitlines()])
        return result

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(0.0, "there is no task")
        parts = checks.parts_of(self._task.check)
        return checks.combine(parts, [await self._holds(part, self._task.check) for part in parts])

    async def _holds(self, part: Mapping[str, Any], check: Mapping[str, Any]) -> tuple[bool, str]:
        if wrong := checks.wrong_answer(part, self._answer):
            return False, wrong
        if not part.get("run"):
            return True, ""
        # Processes left by the policy could write into the check's memory.
        async with contextlib.nullcontext() if check.get("processes") else others_paused(self._sandbox):
            await self._readable(part["run"], "check.run")
            finished = await self._bash(part["run"], _CHECK_SECONDS, {"ANSWER": (self._answer or "")[:65_536]})
        told = _told(finished, _CHECK_SECONDS)
        return (True, told) if finished.code == 0 else (False, f"the check says no: {told}")

    async def view(self) -> Observation:
        lines = list(self._lines)
        if self._running:
            lines += [*f"$ {plain(self._running.encode())}".splitlines(), *self._shell.recent.splitlines()]
        return _observation("\n".join(lines[-_LINES:]))

    async def close(self) -> None:
        await self._sandbox.close()

    async def _set_up(self, task: Task, seed: int | None) -> None:
        try:
            for path, text in (task.setup.get("files") or {}).items():
                await self._sandbox.write(path, text.encode())
        except SandboxError as error:
            if self._sandbox.problem:
                raise
            raise BadTask(f"`setup.files`: {error}") from None
        if task.setup.get("run"):
            await self._readable(task.setup["run"], "setup.run")
            finished = await self._bash(task.setup["run"], _SETUP_SECONDS,
                                        {"SEED": str(seed)} if seed is not None else {})
            if finished.code != 0:
                raise BadTask(f"`setup.run` doesn't work: {_told(finished, _SETUP_SECONDS)}")
        for part in checks.parts_of(task.check):
            if part.get("run"):
                await self._readable(part["run"], "check.run")

    async def _readable(self, script: str, key: str) -> None:
        finished = await self._sandbox.run(["bash", "--noprofile", "--norc", "-n", "-c", script],
                                           seconds=_CHECK_SECONDS)
        if finished.code != 0 or finished.output:
            raise BadTask(f"`{key}` can't be read by bash: {_told(finished, _CHECK_SECONDS)}")

    async def _bash(self, script: str, seconds: float, variables: Mapping[str, str]) -> Finished:
        """Run a task's script in a process without the aliases, functions or paths of the policy's shell."""
        return await self._sandbox.run(["bash", "--noprofile", "--norc", "-c", script], environment=variables,
                                       seconds=seconds, most=4096)


def make(config: EnvironmentConfig, context: Context) -> TerminalType:
    """Make the type."""
    return TerminalType(config, context)


def _result(ran: Ran, limit: float, killed: int) -> StepResult:
    output = ran.output.text()
    notes = []
    if ran.timed_out:
        notes.append(f"[interrupted: it was not done in {limit:g} s]")
    if ran.flooded:
        notes.append("[interrupted: it wrote too much]")
    if killed > 0:
        notes.append(f"[{killed} {'process' if killed == 1 else 'processes'} ended: out of memory]")
    if ran.restarted:
        notes.append(f"[{ran.restarted}]")
    if ran.code is not None:
        notes.append(f"[exit code: {ran.code}]" if ran.folder == WORK else f"[exit code: {ran.code}, in {ran.folder}]")
    body = output.rstrip("\n")
    text = "\n".join([*([body] if body else []), *notes])
    error = "" if not (ran.timed_out or ran.flooded) else notes[0].strip("[]")
    return StepResult(_observation(text, output=output, exit_code=ran.code, timed_out=ran.timed_out,
                                   truncated=ran.output.left_out > 0, folder=plain(ran.folder.encode())), error=error)


def _observation(text: str, **data: Any) -> Observation:
    return Observation({"text": text, **data})


def _told(finished: Finished, seconds: float) -> str:
    output = plain(finished.output).strip()[-500:]
    if finished.timed_out:
        return f"it was not done in {seconds:g} s{f': {output}' if output else ''}"
    if finished.code is None:
        return "it wrote too much"
    if finished.code != 0:
        return f"exit code {finished.code}{f': {output}' if output else ''}"
    return output


def _known(section: Any, name: str, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(section, Mapping):
        raise BadTask(f"`{name}`: {section!r:.80} is not allowed: an object")
    for key in section:
        if key not in keys:
            raise BadTask(f"`{name}.{key}` is no key of a terminal's task; allowed: {', '.join(sorted(keys))}")
    return section
