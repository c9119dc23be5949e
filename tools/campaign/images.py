"""A file system of its own for each component, on an image: it can be full, stand still, and turn read-only.

The kernel does each of these as it does to a real disk: ext4 stops in a freeze (FIFREEZE) until it is thawed, and turns
read-only after an error of the disk, here one that is triggered; only a repair while nobody uses it makes it writable
again. All of it needs root, and loop devices.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from openclaw_rl.runtime.home import COMPONENTS, Home
from tools.chaos.disks import Disks

#: Bytes of an image; it takes only the blocks that were written.
SIZE = 4 << 30
_FILLER = "filler"


class Images(Disks):
    """In place of the tmpfs of `Disks`; the home itself stays on the disk that it is on.

    Raises:
        OSError: from `mount`: it is not possible here.
    """

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self._home, self._images = home, home.root.parent / "images"

    def mount(self) -> None:
        self._images.mkdir()
        for name in COMPONENTS:
            image, folder = self._images / name, self._home.component(name)
            with image.open("wb") as file:
                file.truncate(SIZE)
            _run("mkfs.ext4", "-q", "-m", "0", str(image))
            folder.mkdir()
            self._mount(name)
            (folder / "lost+found").rmdir()
            folder.chmod(0o700)
            self._mounted.append(folder)

    def fill(self, name: str, pids: dict[str, int | None]) -> None:
        usage = os.statvfs(self._home.component(name))
        at, piece = 0, usage.f_bavail * usage.f_frsize
        with (self._home.component(name) / _FILLER).open("wb") as file:
            while piece >= usage.f_frsize:
                try:
                    os.posix_fallocate(file.fileno(), at, piece)
                    at += piece
                except OSError:
                    piece //= 2

    def free(self, name: str, pids: dict[str, int | None]) -> None:
        (self._home.component(name) / _FILLER).unlink()

    def freeze(self, name: str) -> None:
        """Let each write wait."""
        _run("fsfreeze", "--freeze", str(self._home.component(name)))

    def thaw(self, name: str) -> None:
        """Let them go on."""
        _run("fsfreeze", "--unfreeze", str(self._home.component(name)))

    def turn_read_only(self, name: str) -> None:
        """Trigger an error, as of a broken disk."""
        device = _run("findmnt", "--noheadings", "--output", "SOURCE", str(self._home.component(name))).strip()
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("campaign")

    def repair(self, name: str) -> None:
        """Make it writable again; nobody may use it."""
        _run("umount", str(self._home.component(name)))
        _run("e2fsck", "-y", str(self._images / name), fine=(0, 1))
        self._mount(name)

    def _mount(self, name: str) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._images / name), str(self._home.component(name)))


def _run(*command: str, fine: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in fine:
        raise OSError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout
