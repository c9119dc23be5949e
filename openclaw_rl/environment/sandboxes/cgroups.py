"""Limits of a sandbox as a whole: a control group, version 1 or 2, where one can be made.

One can be made by root, and by an ordinary user below a group that was delegated to him (systemd: `Delegate=yes`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

#: All groups made here are called `openclaw-rl-LABEL-PID-NUMBER`, PID being the one who made them.
PREFIX = "openclaw-rl-"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Place:
    """Where groups can be made."""

    version: int
    memory: Path
    pids: Path


@dataclass(slots=True)
class Group:
    """Of one sandbox."""

    version: int
    folders: list[Path]  #: version 1: memory, pids; version 2: the one

    @property
    def joins(self) -> list[str]:
        """The files that a process writes its PID into to be in the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def killed(self) -> int:
        """Processes that the memory limit has ended so far."""
        file = self.folders[0] / ("memory.oom_control" if self.version == 1 else "memory.events")
        with contextlib.suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        return 0

    def processes(self) -> list[int]:
        """PIDs of its living processes, zombies too."""
        with contextlib.suppress(OSError, ValueError):
            return [int(line) for line in (self.folders[-1] / "cgroup.procs").read_text().split()]
        return []

    def remove(self) -> bool:
        """Remove it; False when processes are still in it."""
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError):
                try:
                    folder.rmdir()
                except OSError:
                    return False
        return True


def find() -> Place | None:
    """Where this process can make groups that limit memory and processes; None when it can't."""
    for place in _candidates():
        group = None
        with contextlib.suppress(OSError):
            group = make(place, "probe", memory=64 * 2**20, processes=64)
        if group is not None:
            group.remove()
            return place
    return None


def make(place: Place, label: str, *, memory: int, processes: int) -> Group:
    """A new group.

    Raises:
        OSError: it can't be made or the limits can't be set.
    """
    name = f"{PREFIX}{label}-{os.getpid()}-{next(_numbers)}"
    group = Group(place.version, list(dict.fromkeys([place.memory / name, place.pids / name])))
    try:
        for folder in group.folders:
            folder.mkdir()
        if place.version == 1:
            (group.folders[0] / "memory.limit_in_bytes").write_text(str(memory))
            with contextlib.suppress(OSError):  # absent where the kernel doesn't count swap
                (group.folders[0] / "memory.memsw.limit_in_bytes").write_text(str(memory))
        else:
            (group.folders[0] / "memory.max").write_text(str(memory))
            with contextlib.suppress(OSError):
                (group.folders[0] / "memory.swap.max").write_text("0")
        (group.folders[-1] / "pids.max").write_text(str(processes))
    except OSError:
        group.remove()
        raise
    return group


def remove_leftovers(label: str) -> int:
    """Remove groups with this label whose maker is gone, wherever that one was: their number. Their processes died
    with it."""
    removed = 0
    mounts, _ = _mounts()
    for folder in {mounts[name] for name in ("memory", "pids", "2") if name in mounts}:
        for group in list(folder.rglob(f"{PREFIX}{label}-*")):
            pid = group.name.split("-")[-2]
            if not pid.isdigit() or lives(int(pid)):
                continue
            for _ in range(50):
                try:
                    group.rmdir()
                    removed += 1
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)  # the last processes are on their way out
            else:
                log.warning("the control group %s of a process that is gone can't be removed: it has processes", group)
    return removed


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _mounts() -> tuple[dict[str, Path], dict[str, str]]:
    """Where control groups are, and this process's own: by controller (version 1), or "2"."""
    mounts: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind, options, *_ = line.split()
            if kind == "cgroup2":
                mounts["2"] = Path(mount)
            elif kind == "cgroup":
                for option in options.split(","):
                    mounts.setdefault(option, Path(mount))
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            for name in controllers.split(",") if number != "0" else ["2"]:
                own[name] = path.lstrip("/")
    return mounts, own


def _candidates() -> list[Place]:
    mounts, own = _mounts()
    places = []
    if "memory" in mounts and "pids" in mounts:
        memory, pids = mounts["memory"], mounts["pids"]
        places += [Place(1, memory / own.get("memory", ""), pids / own.get("pids", "")), Place(1, memory, pids)]
    if "2" in mounts:
        mine = mounts["2"] / own.get("2", "")
        # A group that has processes can't give controllers to groups below it, but its parent may.
        for folder in dict.fromkeys([mine, mine.parent, mounts["2"]]):
            if folder.is_relative_to(mounts["2"]):
                with contextlib.suppress(OSError):
                    if "memory" not in (folder / "cgroup.subtree_control").read_text().split():
                        (folder / "cgroup.subtree_control").write_text("+memory +pids")
                places.append(Place(2, folder, folder))
    return places
