"""Loading of task files: those of the package and those of a folder of the user's.

What can't be read or used becomes a task with a `problem`, so that it is visible where tasks are listed; the others
stay usable. The frame of a task is validated here, its `setup`, `check` and actions by its environment type.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.rollouts.tasks import dataset
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.rollouts.tasks.text import BadText, Entry, parse

#: Bytes of a file.
MOST_BYTES = 1 << 20
#: Limits of a folder, including those in it.
MOST_FILES = 2000
MOST_TASKS = 20_000
MOST_DEEP = 16
MOST_GOAL = 20_000
MOST_STEPS = 1000

_HERE = Path(__file__).parent
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ID_ALLOWED = "1 to 128 letters, digits, `-`, `_` and `.`"
_KEYS = ("id", "goal", "split", "tags", "max_steps", "setup", "check", "solution")
_SPLITS = ("train", "held_out", "auto")
#: One of so many tasks is held out by `split: auto`.
_HELD_OUT_OF = 5


class _Bad(Exception):
    """Names key, value and what is allowed."""


def load(type_name: str, folder: Path | None = None, *, bundled: bool = True) -> list[Task]:
    """Load the tasks of an environment type, by file and in the order of the files.

    Args:
        type_name: such as "terminal".
        folder: of further tasks: files *.yaml and *.yml, also in folders below, each with one task or a list; files
            *.jsonl and *.parquet with a task in each row, see dataset.py.
        bundled: include those of the package.

    Returns:
        Tasks with unique ids. An unusable task, and an unreadable file, is a task with a `problem`, which names file,
        id, key, value and what is allowed. A task whose id is taken gets another one.
    """
    tasks: list[Task] = []
    if bundled and re.fullmatch(r"\w+", type_name) and (_HERE / type_name).is_dir():
        tasks += _folder(type_name, _HERE / type_name)
    if folder is not None:
        tasks += _folder(type_name, folder.expanduser())
    return _with_unique_ids(tasks)


def _folder(type_name: str, folder: Path) -> Iterator[Task]:
    tasks = 0
    for file, problem in _files(folder):
        name = _file_id(folder, file)
        try:
            if problem:
                raise _Bad(problem)
            for task in _read(type_name, file):
                tasks += 1
                if tasks > MOST_TASKS:
                    raise _Bad(f"there are more than {MOST_TASKS} tasks in {folder}; the others are left out")
                yield task
        except _Bad as error:
            yield Task(id=name, type_name=type_name, goal="", source=str(file), problem=f"{file}: {error}")
            if tasks > MOST_TASKS:
                return


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Iterate over the task files of a folder, by name, each with a problem or an empty text."""
    if not folder.is_dir():
        yield folder, "no such folder; it is what `tasks` of the environment names" if not os.path.lexists(folder) \
            else "no folder; `tasks` of the environment names a folder of *.yaml files"
        return
    seen: set[tuple[int, int]] = set()
    files = 0
    waiting = [(folder, 0)]
    while waiting:
        here, deep = waiting.pop()
        try:
            info = here.stat()
            if (info.st_dev, info.st_ino) in seen:
                continue  # a link to a visited folder
            seen.add((info.st_dev, info.st_ino))
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            yield here, f"can't be read: {error.strerror}"
            continue
        below: list[tuple[Path, int]] = []
        for entry in entries:
            path = Path(entry.path)
            if not entry.name.startswith(".") and _is_folder(path):
                if deep == MOST_DEEP:
                    yield path, f"more than {MOST_DEEP} folders in one another; what is in it is left out"
                else:
                    below.append((path, deep + 1))
            elif entry.name.lower().endswith((".yaml", ".yml", *dataset.SUFFIXES)):
                files += 1
                if files > MOST_FILES:
                    yield path, f"there are more than {MOST_FILES} files in {folder}; this one and others are left out"
                    return
                yield path, _file_problem(path)
        waiting += reversed(below)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _file_problem(path: Path) -> str:
    try:
        info = path.stat()
    except OSError as error:
        return f"can't be read: {error.strerror}"
    if not stat.S_ISREG(info.st_mode):
        return "no plain file"
    most = dataset.MOST_BYTES if path.suffix.lower() in dataset.SUFFIXES else MOST_BYTES
    if info.st_size > most:
        return f"{info.st_size:,} bytes are too many: at most {most:,} in one task file"
    return ""


def _read(type_name: str, file: Path) -> Iterator[Task]:
    if file.suffix.lower() in dataset.SUFFIXES:
        yield from _read_rows(type_name, file)
        return
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise _Bad(f"too large: at most {MOST_BYTES:,} bytes in one task file")
        content = parse(data)
    except OSError as error:
        raise _Bad(f"can't be read: {error.strerror}") from None
    except BadText as error:
        raise _Bad(str(error)) from None
    if content is None:
        return
    entries = content if isinstance(content, list) else [content]
    for number, entry in enumerate(entries, 1):
        where = f"{file}, task {number}"
        if not isinstance(entry, dict):
            yield Task(id=f"{_plain(file.stem)}.{number}", type_name=type_name, goal="", source=str(file),
                       problem=f"{where}: {_short(entry)} is no task: a mapping with the keys {_listed(_KEYS)}")
            continue
        yield _task(type_name, entry, number, file)


def _read_rows(type_name: str, file: Path) -> Iterator[Task]:
    try:
        for number, row in dataset.rows(file):
            try:
                if isinstance(row, str):
                    raise _Bad(row)
                made = Entry(dataset.entry(type_name, row, number, _plain(file.stem)))
            except (_Bad, BadText) as error:
                yield Task(id=f"{_plain(file.stem)}.{number}", type_name=type_name, goal="", source=str(file),
                           problem=f"{file}, line {number}: {error}")
                continue
            made.line = number
            yield _task(type_name, made, number, file)
    except OSError as error:
        raise _Bad(f"can't be read: {error.strerror}") from None
    except BadText as error:
        raise _Bad(str(error)) from None


def _task(type_name: str, entry: dict[str, Any], number: int, file: Path) -> Task:
    try:
        name = _checked(entry, "id", lambda v: isinstance(v, str) and bool(_ID.fullmatch(v)), _ID_ALLOWED, needed=True)
    except _Bad as error:
        return Task(id=f"{_plain(file.stem)}.{number}", type_name=type_name, goal="", source=str(file),
                    problem=f"{_where(entry, file)}, task {number}: {error}")
    try:
        return _framed(type_name, name, entry, file)
    except _Bad as error:
        goal = entry.get("goal")
        return Task(id=name, type_name=type_name, goal=goal[:MOST_GOAL] if isinstance(goal, str) else "",
                    source=_where(entry, file), problem=f"{_where(entry, file)}, task {name}: {error}")


def _framed(type_name: str, name: str, entry: dict[str, Any], file: Path) -> Task:
    for key in entry:
        if key not in _KEYS:
            raise _Bad(f"`{key[:100]}` is no key of a task; there are {_listed(_KEYS)}")
    goal = _checked(entry, "goal", lambda v: isinstance(v, str) and 0 < len(v.strip()) <= MOST_GOAL and "\0" not in v,
                    f"a text of 1 to {MOST_GOAL:,} characters: what is to be done, in words", needed=True)
    return Task(
        id=name, type_name=type_name, goal=goal.strip(), source=_where(entry, file), split=_split(entry, name),
        tags=tuple(_checked(entry, "tags", _are_tags, "a list of at most 20 words of at most 64 characters") or ()),
        max_steps=_checked(entry, "max_steps", lambda v: type(v) is int and 1 <= v <= MOST_STEPS,
                           f"a whole number from 1 to {MOST_STEPS}"),
        setup=_checked(entry, "setup", _is_mapping, "a mapping") or {},
        check=_checked(entry, "check", _is_mapping, "a mapping") or {},
        solution=tuple(_actions(entry)))


def _split(entry: dict[str, Any], name: str) -> Literal["train", "held_out"]:
    wanted = _checked(entry, "split", lambda v: v in _SPLITS, _listed(_SPLITS)) or "train"
    if wanted == "auto":  # by its id alone, so that it stays where it is when others come or go
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return "train" if int.from_bytes(digest) % _HELD_OUT_OF else "held_out"
    return "held_out" if wanted == "held_out" else "train"


def _where(entry: dict[str, Any], file: Path) -> str:
    return f"{file}, line {entry.line}" if isinstance(entry, Entry) else str(file)


def _actions(entry: dict[str, Any]) -> Iterator[Action]:
    allowed = "a list of actions such as {name: submit, arguments: {}}"
    for number, action in enumerate(_checked(entry, "solution", lambda v: isinstance(v, list), allowed) or (), 1):
        if not isinstance(action, dict) or not isinstance(action.get("name"), str) \
                or not isinstance(action.get("arguments", {}), dict) or not action.keys() <= {"name", "arguments"}:
            raise _Bad(f"`solution`, action {number}: {_short(action)} is not allowed: {allowed}")
        yield Action(action["name"], action.get("arguments", {}))


def _checked(entry: Mapping[str, Any], key: str, good: Callable[[Any], bool], allowed: str, *,
             needed: bool = False) -> Any:
    value = entry.get(key)
    if value is None:
        if needed:
            raise _Bad(f"`{key}` is missing: {allowed}")
        return None
    if not good(value):
        raise _Bad(f"`{key}`: {_short(value)} is not allowed: {allowed}")
    return value


def _are_tags(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 20 \
        and all(isinstance(tag, str) and 0 < len(tag) <= 64 for tag in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _with_unique_ids(tasks: list[Task]) -> list[Task]:
    """Make ids unique: of several tasks with the same id, only the first keeps it."""
    first: dict[str, Task] = {}
    for task in tasks:
        name = task.id
        if name in first:
            there = first[name]
            count = 2
            while f"{name[:120]}-{count}" in first:
                count += 1
            problem = task.problem or f"{task.source}, task {name}: `id`: {name!r} is taken by a task in " \
                                      f"{there.source}; give each its own"
            name = f"{name[:120]}-{count}"
            task = Task(id=name, type_name=task.type_name, goal=task.goal, split=task.split, tags=task.tags,
                        source=task.source, problem=problem)
        first[name] = task
    return list(first.values())


def _file_id(folder: Path, file: Path) -> str:
    inside = file.relative_to(folder) if file != folder else Path(file.name)
    return _plain(str(inside))


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:100] or "file"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words[:-1]) + f" or `{words[-1]}`" if len(words) > 1 else words[0]
