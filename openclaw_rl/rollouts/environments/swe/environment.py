"""Environment of type `swe`: a git repository to read, edit and run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from openclaw_rl.rollouts.environments.interface import BadTask, Observation, Opening, Outcome, StepResult
from openclaw_rl.rollouts.environments.plain_text import ending, plain
from openclaw_rl.rollouts.environments.swe.actions import INSTRUCTIONS, MOST_FILE, REPO, TOOLS, arguments
from openclaw_rl.rollouts.environments.swe.check import judge, pack
from openclaw_rl.rollouts.environments.swe.task import read_check, read_setup
from openclaw_rl.rollouts.environments.swe.text import cut, edited, numbered, region
from openclaw_rl.rollouts.sandboxes.interface import Backend, Finished, Sandbox, SandboxError, Spec
from openclaw_rl.rollouts.tasks.task import Action, Task

_SECONDS = 60.0
_MOST_OUTPUT = 1 << 20
_MOST_LISTED = 100
_DATE = "2026-01-01T00:00:00Z"
#: Makes the first commit reproducible.
_ENVIRONMENT = {"GIT_AUTHOR_DATE": _DATE, "GIT_COMMITTER_DATE": _DATE}
_COMMIT = ("git init -q -b main . && git config user.name Developer && git config user.email developer@example.org && "
           "git add -A && git commit -q --allow-empty -m 'First version' && git ls-files")
_READ = ('[ -d "$1" ] && { ls -Ap -- "$1"; exit 4; }; [ -e "$1" ] || exit 3; [ -f "$1" ] || exit 5; '
         'head -c "$2" -- "$1"')
#: Written beside the file and then moved, so that a full disk destroys nothing; by its real path, so that a link stays
#: one.
_WRITE = """
path=$(realpath -m -- "$1") && mkdir -p -- "${path%/*}" || exit 1
[ ! -d "$path" ] || { echo 'it is a folder'; exit 1; }
new=$(mktemp "${path%/*}/.write.XXXXXX") || exit 1
if cat >"$new" && chmod 644 "$new" && { [ ! -e "$path" ] || chmod --reference="$path" "$new"; } && mv -f "$new" "$path"
then exit 0; fi
rm -f "$new"; exit 1
"""

OBSERVATION_SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "required": ["text", "exit_code", "truncated", "timed_out"],
    "properties": {
        "text": {"type": "string", "description": "a file's lines with their numbers, a command's output, or what was "
                                                  "done"},
        "exit_code": {"type": ["integer", "null"], "description": "of `run`; null when it was killed, and for others"},
        "truncated": {"type": "boolean", "description": "there is more than `text` has"},
        "timed_out": {"type": "boolean", "description": "`run` was killed for its time"},
    },
}


class _Unreadable(Exception):
    """A path that can't be read; the text says why, for the policy."""


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of a file, or the listing of a folder."""

    data: bytes
    folder: bool = False


class SweEnvironment:
    """See Environment. Each reset but the first gets a new sandbox."""

    def __init__(self, backend: Backend, spec: Spec, sandbox: Sandbox) -> None:
        self._backend = backend
        self._spec = spec
        self._sandbox = sandbox
        self._task: Task | None = None
        self._used = False
        self._closed = False
        self._last = Observation(_data("nothing has been done yet"))

    @property
    def problem(self) -> str:
        return "it was closed" if self._closed else self._sandbox.problem

    async def reset(self, task: Task | None, seed: int | None) -> Opening:
        setup = read_setup(task) if task is not None else None
        if self._used:
            await self._sandbox.close()
            self._sandbox = await self._backend.make(self._spec)
            if self._closed:
                await self._sandbox.close()
        self._used, self._task = True, task
        await self._prepare(["sh", "-c", f"mkdir -p {REPO} && tar -xf - -C {REPO}"], "setup.files", folder="/",
                            stdin=pack(setup.files if setup else {}))
        if setup and setup.run:
            await self._prepare(["bash", "-c", setup.run], "setup.run")
        listed = (await self._prepare(["sh", "-c", _COMMIT], "setup")).splitlines()
        text = f"The repository in {REPO} has these files:\n" + "\n".join(listed[:_MOST_LISTED]) if listed \
            else f"The repository in {REPO} is empty."
        more = len(listed) > _MOST_LISTED
        self._last = Observation(_data(text + f"\nand {len(listed) - _MOST_LISTED} more" * more, truncated=more))
        return Opening(self._last, task.goal if task is not None else "", INSTRUCTIONS, TOOLS)

    async def _prepare(self, argv: list[str], key: str, *, stdin: bytes = b"", folder: str = REPO) -> str:
        finished = await self._sandbox.run(argv, stdin=stdin, folder=folder, environment=_ENVIRONMENT, seconds=_SECONDS)
        text = plain(finished.output)
        if finished.code != 0:
            raise BadTask(f"`{key}` can't be done: " + (f"it took more than {_SECONDS:g} s" if finished.timed_out
                                                       else text.strip()[-500:] or f"exit code {finished.code}"))
        return text

    async def step(self, action: Action, seconds: float) -> StepResult:
        found = arguments(action)
        if self.problem:
            raise SandboxError(self.problem)
        if action.name == "submit":
            result = StepResult(Observation(_data("submitted")), done=True)
        elif action.name == "run":
            result = self._ran(await self._sandbox.run(["bash", "-c", found["command"]], folder=REPO, seconds=seconds,
                                                       most=_MOST_OUTPUT), seconds)
        elif action.name == "read":
            result = await self._read(found)
        elif action.name == "write":
            result = await self._write(found["path"], found["content"],
                                       f"{_short(found['path'])} has {len(found['content'].splitlines())} lines now.")
        else:
            result = await self._edit(found)
        self._last = result.observation
        return result

    def _ran(self, finished: Finished, seconds: float) -> StepResult:
        text, shortened = cut(plain(finished.output))
        end = f"[killed: it took more than {seconds:g} s]" if finished.timed_out else \
            "[killed: it wrote too much]" if finished.code is None else f"[exit code {finished.code}]"
        return StepResult(Observation({"text": text + ("\n" if text and not text.endswith("\n") else "") + end,
                                       "exit_code": finished.code, "truncated": shortened or finished.truncated,
                                       "timed_out": finished.timed_out}))

    async def _get(self, path: str) -> _Content:
        """Read a file, or list a folder.

        Raises:
            _Unreadable: it is neither, or too large.
        """
        finished = await self._sandbox.run(["sh", "-c", _READ, "read", path, str(MOST_FILE + 1)], folder="/",
                                       most=MOST_FILE + 1)
        name = _short(path)
        if finished.code == 4:
            return _Content(finished.output, folder=True)
        if finished.code != 0:
            raise _Unreadable({3: f"there is no {name}", 5: f"{name} is no plain file"}.get(
                finished.code or 0, f"{name} can't be read: {ending(finished.output, 200)}"))
        if len(finished.output) > MOST_FILE:
            raise _Unreadable(f"{name} has more than {MOST_FILE:,} bytes: use `run` to look at a part of it")
        return _Content(finished.output)

    async def _read(self, found: dict[str, Any]) -> StepResult:
        try:
            content = await self._get(found["path"])
        except _Unreadable as error:
            return _failed(str(error))
        if content.folder:
            text, shortened = cut(plain(content.data))
            return StepResult(Observation(_data(text or "(an empty folder)", truncated=shortened)))
        if b"\0" in content.data[:8192]:
            return _failed(f"{_short(found['path'])} is no text: {len(content.data):,} bytes with NULs")
        text, more = numbered(plain(content.data), found["start"], found["lines"])
        return StepResult(Observation(_data(text, truncated=more)))

    async def _edit(self, found: dict[str, Any]) -> StepResult:
        path = found["path"]
        try:
            content = await self._get(path)
        except _Unreadable as error:
            return _failed(str(error))
        if content.folder:
            return _failed(f"{_short(path)} is a folder")
        try:
            text = content.data.decode()
        except UnicodeDecodeError:
            return _failed(f"{_short(path)} is no text in UTF-8")
        new, problem = edited(text, found["old"], found["new"])
        if problem:
            return _failed(f"{problem} in {_short(path)}; nothing was changed")
        return await self._write(path, new, f"{_short(path)} is now:\n" + region(text, new))

    async def _write(self, path: str, content: str, told: str) -> StepResult:
        if path == REPO:
            return _failed("the repository itself is a folder")
        finished = await self._sandbox.run(["sh", "-c", _WRITE, "write", path], stdin=content.encode(), folder="/")
        if finished.code != 0:
            return _failed(f"{_short(path)} can't be written: {ending(finished.output, 300)}")
        return StepResult(Observation(_data(told)))

    async def evaluate(self) -> Outcome:
        if self._task is None:
            return Outcome(0.0, "there is no task")
        if self.problem:
            raise SandboxError(self.problem)
        return await judge(self._sandbox, read_check(self._task), self._backend, self._spec)

    async def view(self) -> Observation:
        return self._last

    async def close(self) -> None:
        self._closed = True
        await self._sandbox.close()


def _data(text: str, *, truncated: bool = False) -> dict[str, Any]:
    return {"text": text, "exit_code": None, "truncated": truncated, "timed_out": False}


def _failed(problem: str) -> StepResult:
    return StepResult(Observation(_data(f"error: {problem}")), error=problem)


def _short(path: str) -> str:
    return re.sub(f"^{REPO}/?", "", path) or "."
