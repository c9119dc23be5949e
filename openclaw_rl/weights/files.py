"""Files that survive a power loss."""

from __future__ import annotations

import os
from pathlib import Path

from openclaw_rl.runtime.home import write_atomically


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file atomically, and be back only when it is on the disk.

    Raises:
        OSError: it can't be written (full, read-only).
    """
    write_atomically(path, data)
    fsync(path)
    fsync(path.parent)
