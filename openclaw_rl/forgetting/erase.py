"""What deleted rows leave on the disk: unused parts of the file, files set aside, lines of the component's log."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from openclaw_rl.delivery.store import Store

#: Files and folders beside a component's own that hold what could not be read, and so can't be searched.
_ASIDE = ("*.corrupt-*", "*.damaged-*")


def erase(store: Store) -> int:
    """Rewrite the store's file without its unused parts, and delete damaged files that were set aside beside it: what
    they hold can't be told any more. Blocks; call it on a thread.

    Returns:
        Number of files that were set aside and are deleted.

    Raises:
        StoreError: the file can't be rewritten; the disk may be full.
    """
    store.scrub()
    return delete_aside(store.path.parent)


def delete_aside(folder: Path) -> int:
    """Delete what was set aside in a folder; how many files (and folders) there were."""
    found = {path for pattern in _ASIDE for path in folder.glob(pattern)}
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return sum(not path.name.endswith(("-wal", "-shm")) for path in found)


def blank_log(logs: Path, component: str, ids: Iterable[str]) -> int:
    """Overwrite with `-` the lines of a component's log files that name one of these ids.

    The file is written in place and keeps its length: the supervisor goes on appending to it meanwhile.

    Returns:
        Number of lines.
    """
    names = b"|".join(re.escape(id.encode()) for id in ids if id)
    named = re.compile(rb"(?<![\w-])(?:%s)(?![\w-])" % names)
    blanked = 0
    for path in logs.glob(f"{component}.log*"):
        with path.open("r+b") as file:
            at = 0
            for line in file.readlines():
                if names and named.search(line):
                    file.seek(at)
                    file.write(b"-" * len(line.rstrip(b"\n")))
                    blanked += 1
                at += len(line)
    return blanked
