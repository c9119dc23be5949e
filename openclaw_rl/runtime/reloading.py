"""Values read from files, and read again when the files change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

#: Inode, time of the last change in nanoseconds, bytes and mode of a file; zeros while it can't be looked at.
Stamp = tuple[int, int, int, int]

logger = logging.getLogger(__name__)


def file_stamp(path: Path) -> Stamp:
    """What changes when a file is written, replaced or given to others."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0, 0, 0
    return stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_mode


class Reloading(Generic[T]):
    """A value made of files. While changed files can't be used, the value from before stays in use and `problem` says
    why. May be used from several threads.

    Args:
        name: for the log, such as "certificates".
        paths: the files.
        load: reads them.
        errors: what `load` raises when they can't be used.
        incomplete: whether an error may pass without a further change, as when only one of two files was replaced yet;
            the files are then read again at the next look.

    Raises:
        Exception: what `load` raises the first time.
    """

    def __init__(self, name: str, paths: Iterable[Path], load: Callable[[], T], errors: type[Exception], *,
                 incomplete: Callable[[Exception], bool] = lambda _: False) -> None:
        self._name, self._paths, self._load = name, tuple(paths), load
        self._errors, self._incomplete = errors, incomplete
        self._lock = threading.Lock()
        self._problem = ""
        self._seen = self._stamps()
        self._value = load()

    def value(self) -> T:
        """The newest value; costs a `stat` for each file."""
        with self._lock:
            seen = self._stamps()
            if seen != self._seen:
                try:
                    self._value = self._load()
                except self._errors as error:
                    if self._problem != str(error):
                        logger.error("%s can't be read again, the previous content stays in use: %s", self._name, error)
                    self._problem = str(error)
                    if self._incomplete(error):
                        return self._value
                else:
                    self._problem = ""
                    logger.info("%s: read again", self._name)
                self._seen = seen
            return self._value

    @property
    def problem(self) -> str:
        """Why the files can't be used as they are now, for a person; empty when they can."""
        self.value()
        return self._problem

    def _stamps(self) -> tuple[Stamp, ...]:
        return tuple(map(file_stamp, self._paths))


def reread_when_changed(load: Callable[[Path], T]) -> Callable[[Path], T]:
    """Make a function of a file's content read the file only when it has changed. What it raises is not remembered."""
    known: dict[Path, tuple[Stamp, T]] = {}
    lock = threading.Lock()

    def read(path: Path) -> T:
        stamp = file_stamp(path)
        with lock:
            if (found := known.get(path)) is not None and found[0] == stamp:
                return found[1]
        value = load(path)
        with lock:
            known[path] = stamp, value
        return value

    return read
