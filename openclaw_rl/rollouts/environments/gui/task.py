"""Setup and check of tasks of type `gui`; see README.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.rollouts.environments.arguments import short
from openclaw_rl.rollouts.environments.gui.actions import MOST_HEIGHT, MOST_WIDTH, deed
from openclaw_rl.rollouts.environments.gui.scripts import APP_NAMES
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask
from openclaw_rl.rollouts.environments.sections import known_keys, shell_text
from openclaw_rl.rollouts.tasks.task import Task

#: Default size of the screen in pixels.
SIZE = (1024, 768)
_LEAST = (320, 240)


@dataclass(frozen=True, slots=True)
class Setup:
    """Setup of a task."""

    size: tuple[int, int] = SIZE
    files: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    argv: tuple[str, ...] = ()  #: of the application; empty: none
    shipped: bool = False  #: argv[0] names one that ships with the package
    wait: float = 30.0  #: seconds for its first window


@dataclass(frozen=True, slots=True)
class Check:
    """Check of a task: all of it must hold."""

    files: tuple[tuple[str, str, str], ...] = ()  #: path, "equals" or "contains", text
    run: str = ""


def read_setup(task: Task) -> Setup:
    """
    Raises:
        BadTask: names the key, the value and what is allowed.
    """
    known_keys("setup", task.setup, ("size", "files", "run", "app", "args", "wait"))
    app, args = task.setup.get("app"), task.setup.get("args", [])
    if not isinstance(args, list) or not all(_plain(arg) for arg in args):
        raise BadTask(f"`setup.args`: {short(args)} is not allowed: a list of texts")
    if isinstance(app, str):
        if app not in APP_NAMES:
            raise BadTask(f"`setup.app`: {short(app)} is not allowed: one of {', '.join(APP_NAMES)}, or the list of a "
                          "program and its arguments")
        argv, shipped = (app, *args), True
    elif app is None or (isinstance(app, list) and app and all(_plain(arg) for arg in app)):
        argv, shipped = (*(app or ()), *(args if app else ())), False
    else:
        raise BadTask(f"`setup.app`: {short(app)} is not allowed: one of {', '.join(APP_NAMES)}, or the list of a "
                      "program and its arguments")
    files = task.setup.get("files", {})
    if not isinstance(files, Mapping) or not all(_plain(key) and isinstance(text, str) for key, text in files.items()):
        raise BadTask("`setup.files` is not allowed: a mapping of paths to texts")
    wait = task.setup.get("wait", 30.0)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 1 <= wait <= 120:
        raise BadTask(f"`setup.wait`: {short(wait)} is not allowed: seconds from 1 to 120")
    return Setup(_size(task.setup.get("size")), files, shell_text("setup.run", task.setup.get("run")), argv, shipped,
                 float(wait))


def read_check(task: Task) -> Check:
    """
    Raises:
        BadTask: names the key, the value and what is allowed.
    """
    known_keys("check", task.check, ("run", "file"))
    files = task.check.get("file") or []
    found = []
    for entry in files if isinstance(files, list) else [files]:
        if not isinstance(entry, Mapping) or not _plain(entry.get("path")) or len(entry) != 2 \
                or not any(isinstance(entry.get(key), str) for key in ("equals", "contains")):
            raise BadTask(f"`check.file`: {short(entry)} is not allowed: path, and equals or contains, texts; "
                          "or a list of such")
        comparison = "equals" if "equals" in entry else "contains"
        found.append((entry["path"], comparison, entry[comparison]))
    check = Check(tuple(found), shell_text("check.run", task.check.get("run")))
    if not check.files and not check.run:
        raise BadTask("`check` is empty: `run`, `file`, or both")
    return check


def check_task(task: Task) -> None:
    """Check setup, check and solution of a task.

    Raises:
        BadTask: names what can't be used.
    """
    setup = read_setup(task)
    read_check(task)
    for number, action in enumerate(task.solution, 1):
        try:
            deed(action, *setup.size)
        except BadAction as error:
            raise BadTask(f"`solution`, action {number}: {error}") from None


def _size(value: Any) -> tuple[int, int]:
    if value is None:
        return SIZE
    match = re.fullmatch(r"(\d{3,4})x(\d{3,4})", value) if isinstance(value, str) else None
    if match is None or not (_LEAST[0] <= int(match[1]) <= MOST_WIDTH and _LEAST[1] <= int(match[2]) <= MOST_HEIGHT):
        raise BadTask(f"`setup.size`: {short(value)} is not allowed: WIDTHxHEIGHT in pixels, from "
                      f"{_LEAST[0]}x{_LEAST[1]} to {MOST_WIDTH}x{MOST_HEIGHT}")
    return int(match[1]), int(match[2])


def _plain(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 4096 and "\0" not in value
