"""Read the last lines of a log or of the journal, and follow it across rotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from openclaw_rl.runtime.home import COMPONENTS

#: Longer lines are cut, in bytes.
MAX_LINE = 16 * 2**10
#: Bytes read from the end of a file at once.
_BLOCK = 256 * 2**10

_JOURNAL = re.compile(r"rl_trace_(\d{8})(?:\.(\d+))?\.log")
_COMPONENT = re.compile(rf"(?:{'|'.join(COMPONENTS)})\.log(?:\.(\d+))?")


class Tail:
    """Follows the newest of the files of one log, also when it is rotated or a new day's begins.

    Args:
        folder: where the files are; it needn't be there yet.
        name: component whose log it is, or "" for the journal.
    """

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder, self.name = folder, name
        self._file: BinaryIO | None = None
        self._inode = 0
        self._rest = b""

    def files(self) -> list[Path]:
        """The log's files, newest first."""
        pattern = f"{self.name}.log*" if self.name else "rl_trace_*.log"
        return sorted((file for file in self.folder.glob(pattern) if _age(file.name) is not None),
                      key=lambda file: _age(file.name) or (), reverse=True)

    def last(self, count: int) -> list[str]:
        """The last lines, those of rotated files before them, and be at the end of the newest."""
        self._open()
        lines: list[str] = []
        if self._file is not None:
            end = self._file.seek(0, 2)
            lines, self._rest = _end_of(self._file, end, count)
            self._file.seek(end)
        for older in self.files()[1:]:
            if len(lines) >= count:
                break
            with older.open("rb") as file:
                lines = _end_of(file, file.seek(0, 2), count - len(lines))[0] + lines
        return lines[-count:] if count else []

    def new(self) -> Iterator[str]:
        """Complete lines that were written since."""
        if self._file is not None:
            yield from self._read(self._file)
        if self._open() and self._file is not None:
            yield from self._read(self._file)

    def _read(self, file: BinaryIO) -> Iterator[str]:
        while block := file.read(_BLOCK):
            *whole, rest = (self._rest + block).split(b"\n")
            for line in whole:
                yield _text(line)
            # Of a line without an end only the beginning is kept.
            self._rest = rest if len(rest) <= MAX_LINE else rest[:MAX_LINE + 1]

    def _open(self) -> bool:
        """Go to the newest file; True when that is another one than before."""
        path = next(iter(self.files()), None)
        if path is None:
            return False
        try:
            if path.stat().st_ino == self._inode:
                return False
            file = path.open("rb")
            inode = path.stat().st_ino
        except OSError:  # it is being rotated; the next look finds it
            return False
        self.close()
        self._file, self._inode = file, inode
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _age(name: str) -> tuple[str, bool, int] | None:
    """Sorts the files of one log from the oldest to the newest: the one without a number is the day's last. Journals
    are numbered upwards, a component's rotated logs downwards."""
    if match := _JOURNAL.fullmatch(name):
        return match[1], match[2] is None, int(match[2] or 0)
    if match := _COMPONENT.fullmatch(name):
        return "", match[1] is None, -int(match[1] or 0)
    return None


def _end_of(file: BinaryIO, end: int, count: int) -> tuple[list[str], bytes]:
    """The last `count` whole lines before `end`, and what comes behind them without an end of its own."""
    data, start = b"", end
    while start > 0 and data.count(b"\n") <= count:
        step = min(_BLOCK, start)
        start -= step
        file.seek(start)
        data = file.read(step) + data
    *whole, rest = data.split(b"\n")
    return [_text(line) for line in whole[-count:]] if count else [], rest


def _text(line: bytes) -> str:
    cut = line if len(line) <= MAX_LINE else line[:MAX_LINE] + "…".encode()
    return cut.decode(errors="replace").removesuffix("\r")
