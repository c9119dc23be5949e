"""Control groups, version 1 or 2, that limit a sandbox as a whole.

Each sandbox has its share of CPU time; and all sandboxes of a process are in one group that weighs half as much as the
processes beside it, so that however many compute, who serves users comes first.

Groups can be made by root, and by an ordinary user below a delegated group (systemd: `Delegate=yes`).
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

logger = logging.getLogger(__name__)

#: All groups are named `openclaw-rl-LABEL-MAKER-NUMBER`; see `maker`.
PREFIX = "openclaw-rl-"

#: Weight of all sandboxes together: half of the default.
_SHARES, _WEIGHT = 512, 50
#: Microseconds of a period in which a sandbox has its CPU time.
_PERIOD = 100_000

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Parent:
    """Groups below which new ones can be made."""

    version: int
    memory: Path
    pids: Path
    cpu: Path | None = None  #: None: CPU time can't be limited


@dataclass(slots=True)
class Group:
    """The control group of a sandbox."""

    version: int
    folders: list[Path]  #: version 1: those of memory, pids and cpu; version 2: the only one

    @property
    def joins(self) -> list[str]:
        """The files into which a process writes its PID to join the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def killed(self) -> int:
        """Number of processes killed by the memory limit."""
        file = self.folders[0] / ("memory.oom_control" if self.version == 1 else "memory.events")
        with contextlib.suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        return 0

    def remove(self) -> bool:
        """Kill its processes and remove it; False while killed processes are still exiting."""
        return all([_remove(folder) for folder in self.folders])


def find(label: str) -> Parent | None:
    """Find where this process can make groups that limit memory and processes, and CPU time if possible; None if it
    can't.

    Args:
        label: of the group made to try it.
    """
    for parent in _candidates():
        for candidate in (*filter(None, [_shared(parent, label)]), replace(parent, cpu=None)):
            group = None
            with contextlib.suppress(OSError):
                group = make(candidate, label, memory=64 * 2**20, processes=64, cpus=1)
            if group is not None:
                group.remove()
                return candidate
    return None


def make(parent: Parent, label: str, *, memory: int, processes: int, cpus: float) -> Group:
    """Make a group.

    Args:
        memory: bytes.
        cpus: CPU time, in cores.

    Raises:
        OSError: it can't be made or the limits can't be set.
    """
    group = None
    while group is None:
        group = _folders(parent, f"{PREFIX}{label}-{maker()}-{next(_numbers)}")
    try:
        if parent.version == 1:
            (group.folders[0] / "memory.limit_in_bytes").write_text(str(memory))
            with contextlib.suppress(OSError):  # absent if the kernel does not account for swap
                (group.folders[0] / "memory.memsw.limit_in_bytes").write_text(str(memory))
        else:
            (group.folders[0] / "memory.max").write_text(str(memory))
            with contextlib.suppress(OSError):
                (group.folders[0] / "memory.swap.max").write_text("0")
        (parent.pids / group.folders[0].name / "pids.max").write_text(str(processes))
        if parent.cpu is not None:
            folder, quota = parent.cpu / group.folders[0].name, max(int(cpus * _PERIOD), 1000)
            if parent.version == 1:
                (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
                (folder / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (folder / "cpu.max").write_text(f"{quota} {_PERIOD}")
    except OSError:
        group.remove()
        raise
    return group


def remove_leftovers(label: str) -> int:
    """Remove groups with this label whose maker is gone, and kill what still runs in them; returns their number."""
    removed = 0
    mounts, _ = _mounts()
    for mount in {mounts[name] for name in ("memory", "pids", "cpu", "2") if name in mounts}:
        # It tolerates groups that vanish meanwhile. A group is removed before the one that it is in.
        for folder, names, _ in os.walk(mount, topdown=False):
            for name in names:
                if name.startswith(f"{PREFIX}{label}-") and is_leftover(name):
                    removed += _remove_patiently(Path(folder, name))
    return removed


def maker() -> str:
    """Unique name of this process among all that have or had its PID: `PID-START`, the latter as in proc(5)."""
    pid = os.getpid()
    return f"{pid}-{_started(pid)}"


def is_leftover(name: str) -> bool:
    """Whether the maker of something named `openclaw-rl-LABEL-MAKER-SOMETHING` is gone."""
    pid, start = name.split("-")[-3:-1]
    return pid.isdigit() and start.isdigit() and _started(int(pid)) != int(start)


def _started(pid: int) -> int | None:
    """Start time of a process in ticks since boot; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if fields[0] not in (b"Z", b"X") else None


def _folders(parent: Parent, name: str) -> Group | None:
    """Make the group's folders; None if one of that name exists.

    Raises:
        OSError: they can't be made.
    """
    group = Group(parent.version, [])
    for folder in dict.fromkeys(parent / name for parent in (parent.memory, parent.pids, parent.cpu) if parent):
        try:
            folder.mkdir()
        except OSError as error:
            group.remove()
            if isinstance(error, FileExistsError):
                return None
            raise
        group.folders.append(folder)
    return group


def _shared(parent: Parent, label: str) -> Parent | None:
    """Make the group of all sandboxes of this process; None if CPU time can't be limited below `parent`."""
    if parent.cpu is None:
        return None
    shared = parent.cpu / f"{PREFIX}{label}-{maker()}-all"
    try:
        shared.mkdir(exist_ok=True)
        atexit.register(_remove, shared)
        if parent.version == 1:
            (shared / "cpu.shares").write_text(str(_SHARES))
            return replace(parent, cpu=shared)
        (shared / "cpu.weight").write_text(str(_WEIGHT))
        (shared / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    except OSError:
        _remove(shared)
        return None
    return Parent(2, shared, shared, shared)


def _remove(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for pid in map(int, (folder / "cgroup.procs").read_text().split()):
            if pid > 0:  # 0: a process that is invisible from here
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
    """This process's groups: by controller (version 1), or "2"."""
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


def _candidates() -> list[Parent]:
    mounts, own = _mounts()
    parents = []
    if "memory" in mounts and "pids" in mounts:
        memory, pids = mounts["memory"], mounts["pids"]
        cpu = mounts.get("cpu")
        parents += [Parent(1, memory / own.get("memory", ""), pids / own.get("pids", ""),
                           cpu and cpu / own.get("cpu", "")), Parent(1, memory, pids, cpu)]
    if "2" in mounts:
        mine = mounts["2"] / own.get("2", "")
        # A group with processes can't delegate controllers to groups below it, but its parent may.
        for folder in dict.fromkeys([mine, mine.parent, mounts["2"]]):
            if folder.is_relative_to(mounts["2"]):
                for controllers in ("+memory +pids", "+cpu"):
                    with contextlib.suppress(OSError):
                        (folder / "cgroup.subtree_control").write_text(controllers)
                parents.append(Parent(2, folder, folder, folder))
    return parents
