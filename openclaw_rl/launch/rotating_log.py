"""Log files that are rotated, and that never stop who writes to them."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import IO

from openclaw_rl.runtime.home import make_way

_LOG_BYTES, _LOG_FILES = 20 * 2**20, 3


class RotatingLog:
    """A file that becomes FILE.1 when it is full, and that FILE.2. When the disk is full, or the file can't be opened,
    what is written is lost: nobody must wait for a log, or end for it."""

    def __init__(self, path: Path, size: int = _LOG_BYTES, keep: int = _LOG_FILES) -> None:
        self._path, self._size, self._keep = path, size, keep
        self._file: IO[bytes] | None = None

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                make_way(self._path)
                self._file = self._open()
            if self._file.tell() + len(data) > self._size and self._file.tell():
                self._rotate()
            self._file.write(data)

    def _rotate(self) -> None:
        for number in range(self._keep, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if older.exists():
                os.replace(older, self._path.with_name(f"{self._path.name}.{number}"))
        new = self._open()
        if self._file is not None:
            self._file.close()
        self._file = new

    def _open(self) -> IO[bytes]:
        return open(self._path, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class RotatingHandler(logging.Handler):
    """Writes log records to a RotatingLog."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._log = RotatingLog(path)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self._log.write(self.format(record).encode(errors="replace") + b"\n")


def last_line(path: Path) -> str:
    """The last line of a log, cut to what fits into a table."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""
    return ""
