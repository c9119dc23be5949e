"""Files that other users could read."""

from __future__ import annotations

import stat
from pathlib import Path


def open_to_others(root: Path) -> list[str]:
    """What other users have any right to below a folder, and itself; not sockets, which end while this looks."""
    found = []
    for path in (root, *root.rglob("*")):
        try:
            there = path.lstat()
        except FileNotFoundError:
            continue
        if there.st_mode & 0o077 and not stat.S_ISLNK(there.st_mode) and not stat.S_ISSOCK(there.st_mode):
            found.append(f"{path.relative_to(root)} {stat.filemode(there.st_mode)}")
    return found
