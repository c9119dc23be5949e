"""Small file systems for the home and for each component, which can be made full and be freed again."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.runtime.home import COMPONENTS, Home

#: Size of each file system. A tmpfs takes only the memory that its files need.
SIZE = 6 * 2**30
#: Bytes left when it is full.
_LEFT = 8 * 2**10


class Disks:
    """A tmpfs at the home and one at each component's folder. Mounting needs root; without, a full disk is imitated by
    a limit on the size of the files that a process writes, which is real to the process (EFBIG instead of ENOSPC).

    Attributes:
        problem: why nothing could be mounted; empty when all is well.
    """

    def __init__(self, home: Home) -> None:
        self.problem = ""
        self._folders = {"home": home.root} | {name: home.component(name) for name in COMPONENTS}
        self._mounted: list[Path] = []

    def mount(self) -> None:
        """Mount all. `problem` tells when that isn't possible."""
        for folder in self._folders.values():
            folder.mkdir(exist_ok=True)
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "openclaw-rl-chaos",
                                   str(folder)], capture_output=True, text=True, check=False)
            if done.returncode:
                self.problem = f"mount: {done.stderr.strip() or done.returncode}"
                return
            self._mounted.append(folder)

    def fill(self, name: str, pids: dict[str, int | None]) -> None:
        """Leave next to no room for a component, or for "home"; `pids` of the components, for the imitation."""
        if self.problem:
            self._limit(name, pids, 4096)
            return
        # More than one look: what is written meanwhile would make the new size too small.
        for _ in range(20):
            usage = os.statvfs(self._folders[name])
            used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
            if self._resize(name, used + _LEFT):
                return

    def free(self, name: str, pids: dict[str, int | None]) -> None:
        """Give the room back."""
        if self.problem:
            self._limit(name, pids, resource.RLIM_INFINITY)
        else:
            self._resize(name, SIZE)

    def copy(self, target: Path) -> None:
        """Copy everything to a folder that outlives the file systems."""
        if not self._mounted:
            return
        shutil.copytree(self._folders["home"], target, symlinks=True, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("*.sock"))

    def unmount(self) -> None:
        """Unmount all; what was in them is gone."""
        for folder in reversed(self._mounted):
            subprocess.run(["umount", str(folder)], capture_output=True, check=False)
        self._mounted.clear()

    def _resize(self, name: str, size: int) -> bool:
        return subprocess.run(["mount", "-o", f"remount,size={size}", str(self._folders[name])],
                              capture_output=True, check=False).returncode == 0

    @staticmethod
    def _limit(name: str, pids: dict[str, int | None], size: int) -> None:
        limit: Callable[..., object] = resource.prlimit
        for pid in pids.values() if name == "home" else [pids.get(name)]:
            if pid is not None:
                with contextlib.suppress(OSError):
                    limit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
