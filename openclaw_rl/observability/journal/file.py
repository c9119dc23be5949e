"""Files of the journal. Several processes append to the same one, in whole lines."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.runtime.home import make_way

#: Beginning of a file that is about to take another one's place.
_REWRITTEN = ".rewritten."

_NAME = re.compile(r"rl_trace_(\d{8})(?:\.(\d+))?\.log")


class JournalFile:
    """`rl_trace_YYYYMMDD.log` in a folder; full ones become `rl_trace_YYYYMMDD.N.log`, N growing.

    A lock on a file beside them makes writing and rotating one step for all processes; another process's rotation
    shows in the inode.

    Args:
        folder: made when it is needed.
        max_size: bytes; a file never grows beyond them, unless a single line is longer.
        keep: rotated files and files of other days that are kept.
    """

    def __init__(self, folder: Path, max_size: int, keep: int) -> None:
        self._folder, self._max_size, self._keep = folder, max_size, keep
        self._fd = -1
        self._lock = -1
        self._path = folder

    def write(self, day: str, data: bytes) -> None:
        """Append lines to the file of `day`.

        Raises:
            OSError: they could not be written. What was written of them is taken back, but for files filled up by it.
            `OSError.written` is the number of bytes that stay.
        """
        done = 0
        try:
            with self._locked():
                while done < len(data):
                    size = self._open(day)
                    room = self._max_size - size
                    end = len(data)
                    if end - done > room:
                        end = data.rfind(b"\n", done, done + max(room, 0)) + 1
                    if end <= done:
                        if size:
                            self._rotate(day)
                            continue
                        end = data.index(b"\n", done) + 1  # one line longer than a file
                    self._append(data[done:end] if end - done < len(data) else data, size)
                    done = end
        except OSError as error:
            error.written = done  # type: ignore[attr-defined]
            raise

    def remove(self, unwanted: Callable[[bytes], bool]) -> int:
        """Rewrite the files that have `unwanted` lines without these; how many there were.

        Whoever else writes to the folder waits meanwhile, as for a rotation, and goes on with the new file: nobody's
        line is lost. A file appears by one rename, so a killed process leaves the old one or the new one.

        Raises:
            OSError: a file can't be read or written; those before it are done.
        """
        removed = 0
        with self._locked():
            for leftover in self._folder.glob(f"{_REWRITTEN}*"):
                leftover.unlink()
            for path in sorted(self._folder.glob("rl_trace_*.log")):
                removed += _rewrite(path, unwanted)
        return removed

    def close(self) -> None:
        """Close the files."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock < 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._folder / ".rl_trace.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _open(self, day: str) -> int:
        """Have the file of `day` open, the one that is there now, and at the end of a line; returns its size."""
        size = self._opened(day)
        if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a process was killed amid its write
            self._append(b"\n", size)
            size += 1
        return size

    def _opened(self, day: str) -> int:
        path = self._folder / f"rl_trace_{day}.log"
        if self._fd >= 0:
            try:
                there, ours = os.stat(path), os.fstat(self._fd)
                if (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev):
                    return ours.st_size
            except FileNotFoundError:
                pass
            os.close(self._fd)
            self._fd = -1
        make_way(path)
        fresh = not path.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if fresh:
            self._prune(path.name)
        return os.fstat(self._fd).st_size

    def _append(self, data: bytes, size: int) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view):]
        except OSError:
            os.ftruncate(self._fd, size)
            raise

    def _rotate(self, day: str) -> None:
        numbers = [int(m[2]) for m in map(_NAME.fullmatch, os.listdir(self._folder)) if m and m[1] == day and m[2]]
        name = f"rl_trace_{day}.{max(numbers, default=0) + 1}.log"
        os.rename(self._folder / f"rl_trace_{day}.log", self._folder / name)

    def _prune(self, current: str) -> None:
        """Delete the oldest files. Numbered ones are older than their day's last one."""
        found = [m for m in map(_NAME.fullmatch, os.listdir(self._folder)) if m and m[0] != current]
        found.sort(key=lambda m: (m[1], m[2] is None, int(m[2] or 0)), reverse=True)
        for match in found[self._keep:]:
            (self._folder / match[0]).unlink(missing_ok=True)


def _rewrite(path: Path, unwanted: Callable[[bytes], bool]) -> int:
    with path.open("rb") as file:
        removed = sum(map(unwanted, file))
        if not removed:
            return 0
        file.seek(0)
        fresh = path.with_name(f"{_REWRITTEN}{path.name}")
        with fresh.open("wb") as out:
            out.writelines(line for line in file if not unwanted(line))
            out.flush()
            os.fsync(out.fileno())
    os.replace(fresh, path)
    return removed
