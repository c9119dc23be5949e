"""Setup and check of tasks of type `swe`; see README.md."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.rollouts.environments.arguments import short
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask
from openclaw_rl.rollouts.environments.sections import known_keys, shell_text
from openclaw_rl.rollouts.environments.swe.actions import arguments
from openclaw_rl.rollouts.tasks.task import Task

_PATH = re.compile(r"(?!/)(?!\.git/)[^\0]{1,300}")


@dataclass(frozen=True, slots=True)
class Setup:
    """Setup of a repository."""

    files: Mapping[str, str]
    run: str = ""  #: shell text, before the first commit


@dataclass(frozen=True, slots=True)
class Check:
    """Check of a repository."""

    hidden: Mapping[str, str] = field(default_factory=dict)  #: files put over the repository for the check
    tests: str = ""  #: shell text; empty: the hidden tests are run by Python's unittest

    @property
    def modules(self) -> tuple[str, ...]:
        """The hidden files that are tests, in order."""
        return tuple(path for path in self.hidden if re.fullmatch(r"test.*\.py", posixpath.basename(path)))


def read_setup(task: Task) -> Setup:
    """
    Raises:
        BadTask: names the key, the value and what is allowed.
    """
    known_keys("setup", task.setup, ("files", "run"))
    setup = Setup(_files("setup.files", task.setup.get("files")), shell_text("setup.run", task.setup.get("run")))
    if not setup.files and not setup.run:
        raise BadTask("`setup` is empty: `files`, `run`, or both make the repository")
    return setup


def read_check(task: Task) -> Check:
    """
    Raises:
        BadTask: names the key, the value and what is allowed.
    """
    known_keys("check", task.check, ("tests", "hidden"))
    check = Check(_files("check.hidden", task.check.get("hidden")), shell_text("check.tests", task.check.get("tests")))
    if not check.tests and not check.modules:
        raise BadTask("`check` has no tests: `hidden` with files named test*.py, which Python's unittest runs, or "
                      "`tests`, shell text that ends with 0 when all is well")
    return check


def check_task(task: Task) -> None:
    """Check setup, check and solution of a task.

    Raises:
        BadTask: names what can't be used.
    """
    read_setup(task)
    read_check(task)
    for number, action in enumerate(task.solution, 1):
        try:
            arguments(action)
        except BadAction as error:
            raise BadTask(f"`solution`, action {number}: {error}") from None


def _files(key: str, value: Any) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadTask(f"`{key}`: {short(value)} is not allowed: a mapping of paths to texts")
    for path, text in value.items():
        if not isinstance(path, str) or not _PATH.fullmatch(path) or posixpath.normpath(path) != path \
                or path.startswith(".."):
            raise BadTask(f"`{key}`: {short(path)} is not allowed: a plain relative path of a file, not in .git")
        if not isinstance(text, str):
            raise BadTask(f"`{key}`, {path}: {short(text)} is not allowed: a text")
    return value
