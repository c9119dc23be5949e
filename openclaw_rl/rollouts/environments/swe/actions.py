"""Actions in a repository."""

from __future__ import annotations

import posixpath
from typing import Any

from openclaw_rl.rollouts.environments.arguments import checked, function, short
from openclaw_rl.rollouts.environments.interface import BadAction
from openclaw_rl.rollouts.sandboxes.interface import WORK
from openclaw_rl.rollouts.tasks.task import Action

#: Path of the repository.
REPO = f"{WORK}/repo"
MOST_FILE = 1 << 20  # bytes of a file that is read or edited
MOST_CONTENT = 200_000  # characters
MOST_LINES = 500

INSTRUCTIONS = f"""You work on a git repository in {REPO} through functions. Paths are relative to it. Look at what \
is there, change it so that the goal is reached, and run its tests to see whether it is. Then call submit: it is \
judged by tests, some of which you have not seen."""

_PATH = {"type": "string", "minLength": 1, "maxLength": 500, "description": "in the repository"}

TOOLS = (
    function("read", "Reads a file, with line numbers, or lists a folder.", ("path",), path=_PATH,
             start={"type": "integer", "minimum": 1, "default": 1, "description": "first line"},
             lines={"type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": 200}),
    function("edit", "Replaces a text in a file, which must be in it exactly once, by another.", ("path", "old", "new"),
             path=_PATH, old={"type": "string", "minLength": 1, "maxLength": MOST_CONTENT,
                              "description": "as it is in the file, without line numbers"},
             new={"type": "string", "maxLength": MOST_CONTENT}),
    function("write", "Writes a file, new or in place of what it was.", ("path", "content"), path=_PATH,
             content={"type": "string", "maxLength": MOST_CONTENT}),
    function("run", "Runs a shell command in the repository, and tells what it wrote and its exit code.", ("command",),
             command={"type": "string", "minLength": 1, "maxLength": 20_000}),
    function("submit", "Says that the goal is reached."),
)


def arguments(action: Action) -> dict[str, Any]:
    """Validate an action; returns its arguments with an absolute `path`.

    Raises:
        BadAction: there is no such action, or its arguments are not allowed.
    """
    found = checked(TOOLS, action)
    for key, value in found.items():
        if isinstance(value, str):
            _plain(f"`{key}` of `{action.name}`", value)
    if "path" in found:
        found["path"] = inside(found["path"], f"`path` of `{action.name}`")
    if action.name == "edit" and found["old"] == found["new"]:
        raise BadAction("`new` of `edit` is the same as `old`: nothing would change")
    return found


def inside(path: str, field: str) -> str:
    """Make a path in the repository absolute.

    Raises:
        BadAction: it leads out of the repository.
    """
    full = posixpath.normpath(posixpath.join(REPO, path))
    if full != REPO and not full.startswith(REPO + "/"):
        raise BadAction(f"{field}: {short(path)} is not allowed: a path in the repository, such as src/main.py")
    return full


def _plain(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadAction(f"{field}: {short(text)} has half a surrogate pair in it, which is no character") from None
    if "\0" in text:
        raise BadAction(f"{field}: {short(text)} has a NUL in it, which no text may have")
