"""Quarantined files: what could not be used is moved aside, listed, and deleted when a session is forgotten."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

logger = logging.getLogger(__name__)

#: What stands before the time in a quarantined file's name, after `NAME.`.
Label = Literal["corrupt", "damaged", "foreign"]
#: Where quarantined files and folders are, in a component's folder or in one beside it such as `telemetry`.
PATTERNS = ("*.corrupt-*", "*.damaged-*", "*.foreign-*", "versions/corrupt-*", "set-aside/*")
#: Files that belong to an SQLite file, and go where it goes.
_COMPANIONS = ("-wal", "-shm")


def move_aside(path: Path, *, label: Label, keep: int | None = None) -> Path:
    """Move a file or folder, and what belongs to it, to `NAME.LABEL-TIME` beside it.

    Args:
        keep: quarantined ones of this name that stay, this one among them; older ones are deleted. None keeps all.

    Raises:
        OSError: it can't be moved.
    """
    if keep is not None:
        delete_oldest(path.parent.glob(f"{path.name}.{label}-*"), keep - 1)
    aside = path.with_name(f"{path.name}.{label}-{time.strftime('%Y%m%dT%H%M%S')}")
    for suffix in ("", *_COMPANIONS):
        if os.path.lexists(f"{path}{suffix}"):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def delete_oldest(paths: Iterable[Path], keep: int, key: Callable[[Path], Any] | None = None) -> None:
    """Delete all quarantined files or folders but the newest `keep`; `key`: what they are ordered by, else the name."""
    there = sorted((path for path in paths if not path.name.endswith(_COMPANIONS)), key=key)
    for old in there[:max(0, len(there) - keep)]:
        logger.warning("%s is deleted: there are newer ones", old)
        _delete(old)


def quarantined(folder: Path) -> list[Path]:
    """The quarantined files and folders of a component's folder, by name; companions count with their file."""
    found = {path for pattern in PATTERNS for path in folder.glob(pattern)}
    return sorted(path for path in found if not path.name.endswith(_COMPANIONS))


def delete_quarantined(folder: Path) -> int:
    """Delete what is quarantined in a folder; the number of files and folders.

    Raises:
        OSError: one can't be deleted.
    """
    found = quarantined(folder)
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            _delete(path)
    for pattern in PATTERNS:  # of files that are gone already
        for suffix in _COMPANIONS:
            for path in folder.glob(f"{pattern}{suffix}"):
                path.unlink(missing_ok=True)
    return len(found)


def size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(_sizes(path))


def _sizes(path: Path) -> Iterator[int]:
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(OSError):
            if file.is_file() and not file.is_symlink():
                yield file.stat().st_size


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    for suffix in ("", *_COMPANIONS):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
