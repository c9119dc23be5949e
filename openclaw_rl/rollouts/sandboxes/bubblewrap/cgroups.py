"""Limits of a sandbox as a whole: a control group, version 1 or 2, where one can be made.

One can be made by root, and by an ordinary user below a group that was delegated to him (systemd: `Delegate=yes`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

#: All groups made here are called `openclaw-rl-LABEL-MAKER-NUMBER`; see `maker`.
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

    def remove(self) -> bool:
        """Kill what is in it, and remove it; False when processes are still in it, on their way out."""
        return all([_remove(folder) for folder in self.folders])


def find(label: str) -> Place | None:
    """Where this process can make groups that limit memory and processes; None when it can't.

    Args:
        label: of the group that is made to try it.
    """
    for place in _candidates():
        group = None
        with contextlib.suppress(OSError):
            group = make(place, label, memory=64 * 2**20, processes=64)
        if group is not None:
            group.remove()
            return place
    return None


def make(place: Place, label: str, *, memory: int, processes: int) -> Group:
    """A new group.

    Raises:
        OSError: it can't be made or the limits can't be set.
    """
    group = None
    while group is None:
        group = _folders(place, f"{PREFIX}{label}-{maker()}-{next(_numbers)}")
    try:
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
    """Remove groups with this label whose maker is gone, wherever that one was: their number. What still runs in them
    is killed."""
    removed = 0
    mounts, _ = _mounts()
    for mount in {mounts[name] for name in ("memory", "pids", "2") if name in mounts}:
        for folder, names, _ in os.walk(mount):  # which passes over what vanishes meanwhile
            for name in names:
                if name.startswith(f"{PREFIX}{label}-") and is_leftover(name):
                    removed += _remove_patiently(Path(folder, name))
    return removed


def maker() -> str:
    """What names this process, and no other one that has or had its PID: `PID-START`, the latter as in proc(5)."""
    pid = os.getpid()
    return f"{pid}-{_started(pid)}"


def is_leftover(name: str) -> bool:
    """Whether the process that made what is called `openclaw-rl-LABEL-MAKER-SOMETHING` is gone."""
    pid, start = name.split("-")[-3:-1]
    return pid.isdigit() and start.isdigit() and _started(int(pid)) != int(start)


def _started(pid: int) -> int | None:
    """When a process was started, in ticks since the machine's start; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if fields[0] not in (b"Z", b"X") else None


def _folders(place: Place, name: str) -> Group | None:
    """The group's folders; None when one of that name is there.

    Raises:
        OSError: they can't be made.
    """
    group = Group(place.version, [])
    for folder in dict.fromkeys([place.memory / name, place.pids / name]):
        try:
            folder.mkdir()
        except OSError as error:
            group.remove()
            if isinstance(error, FileExistsError):
                return None
            raise
        group.folders.append(folder)
    return group


def _remove(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for pid in map(int, (folder / "cgroup.procs").read_text().split()):
            if pid > 0:  # 0: one that can't be seen from here
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove_patiently(folder: Path) -> bool:
    for _ in range(50):
        if _remove(folder):
            return True
        time.sleep(0.02)
    logger.warning("the control group %s of a process that is gone can't be removed: it has processes", folder)
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
