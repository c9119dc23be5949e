"""Covers of the host's folders that a sandbox sees, so that no socket or FIFO in them leads to a process of the host.

A read-only bind keeps nobody from connecting to a socket or writing into a FIFO in it. Through an overlay the files
are the same, but sockets and FIFOs are other ones, to which no process of the host listens, also when one is made
later. The overlays are mounted in a mount namespace of the sandbox's own, and end with it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Mounts the overlays named by its arguments (their number, an empty folder, and of each its source and its place), and
#: becomes the rest of its arguments.
_SCRIPT = """\
n=$1 empty=$2; shift 2
while [ "$n" -gt 0 ]; do
  mount -t overlay sandbox -o "ro,lowerdir=$1:$empty" "$2" || exit 1
  shift 2; n=$((n-1))
done
exec "$@"
"""
#: Characters that separate options and layers of an overlay.
_SEPARATORS = frozenset(":,\\")


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder or file of the host, and its path inside."""

    source: str
    target: str


def with_mounts(bind: Bind, mounted: Sequence[str]) -> list[Bind]:
    """The bind itself, and those of what is mounted below it, outermost first: an overlay has one file system."""
    below = sorted(point for point in mounted if point.startswith(bind.source.rstrip("/") + "/"))
    return [bind, *(Bind(point, bind.target + point[len(bind.source):]) for point in below if _harmless(point))]


def mount_points() -> list[str]:
    """Where something is mounted on this machine."""
    points = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            point = line.split(" ")[4]
            for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                point = point.replace(code, character)
            points.append(point)
    return points


class Cover:
    """The overlays over some folders.

    Args:
        binds: what a sandbox sees of the host.
        folder: an existing folder in which the places of the overlays are made.

    Raises:
        OSError: a place can't be made.
    """

    def __init__(self, binds: Sequence[Bind], folder: Path) -> None:
        self.binds: list[Bind] = []  #: the same, seen through the overlays
        self._arguments: list[str] = []
        self._empty = folder / "empty"
        self._empty.mkdir(mode=0o755)
        for bind in binds:
            if not os.path.isdir(bind.source) or not _SEPARATORS.isdisjoint(bind.source):
                self.binds.append(bind)  # a file, which is no socket
                continue
            place = folder / str(len(self.binds))
            place.mkdir(mode=0o755)
            self._arguments += [bind.source, str(place)]
            self.binds.append(Bind(str(place), bind.target))

    def command(self) -> list[str]:
        """The command before another one, which is run where the overlays are mounted."""
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        return [*unshare, "/bin/sh", "-c", _SCRIPT, "sh", str(len(self._arguments) // 2), str(self._empty),
                *self._arguments]


def _harmless(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) or stat.S_ISREG(mode)
