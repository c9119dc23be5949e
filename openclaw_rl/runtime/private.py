"""Keep other users of the machine out of a folder."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path

#: Files that are looked at when a folder is tightened; a home that served for months has some thousands.
_MOST_FILES = 200_000


class NotPrivate(PermissionError):
    """Other users can read the folder, and that can't be changed; `strerror` says why and what to do."""

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(folder))


def close(folder: Path, known: Collection[str]) -> None:
    """Let nobody but us enter a home: it keeps every conversation.

    Args:
        known: names by one of which a folder that others can enter is known as a home, so that it may be closed.

    Raises:
        NotPrivate: others can enter it, and that can't be changed.
    """
    there = folder.stat()
    if there.st_uid == 0 != os.geteuid() and not there.st_mode & 0o002:
        return  # a volume, as Kubernetes mounts it for us; root sees all anyway, and what we put into it is closed
    if there.st_uid != os.geteuid():
        raise NotPrivate(folder, f"it belongs to {_user(there.st_uid)} and you are {_user(os.geteuid())}, so "
                         "another user could read every conversation; set OPENCLAW_RL_HOME to a folder of yours, such "
                         "as one in it")
    if not there.st_mode & 0o077:
        return
    mode = f"mode {there.st_mode & 0o7777:04o}"
    names = {entry.name for entry in folder.iterdir()}
    shared = folder in (Path("/"), Path("~").expanduser()) or there.st_mode & stat.S_ISVTX
    if shared or (names and names.isdisjoint(known)):
        raise NotPrivate(folder, f"other users can enter it ({mode}) and it has other files; set OPENCLAW_RL_HOME "
                         "to a folder of its own, such as one in it")
    try:
        folder.chmod(0o700)
    except OSError as error:
        raise NotPrivate(folder, f"other users can enter it ({mode}), and that can't be changed: {error.strerror}; set "
                         "OPENCLAW_RL_HOME to a folder on another file system") from None
    if folder.stat().st_mode & 0o077:
        raise NotPrivate(folder, "its file system lets other users enter it whatever its mode; set OPENCLAW_RL_HOME to "
                         "a folder on another one")


def tighten(folder: Path) -> int:
    """Take the rights of others from all that is in a folder. What belongs to somebody else, or is on another file
    system, is left alone.

    Returns:
        Number of files and folders that were open.
    """
    device = folder.stat().st_dev
    opened, seen, folders = 0, 0, [folder]
    while folders and seen < _MOST_FILES:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                seen += 1
                there = entry.stat(follow_symlinks=False)
                if entry.is_symlink() or there.st_uid != os.geteuid() or there.st_dev != device:
                    continue
                if there.st_mode & 0o077:
                    with contextlib.suppress(OSError):
                        os.chmod(entry.path, there.st_mode & 0o7700)
                        opened += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
    return opened


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"
