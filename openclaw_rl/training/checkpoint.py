"""Checkpoints: weights and optimizer state to go on from, in a folder named by the version's number.

A folder appears by one rename, with all its bytes on the disk; the files' digests are kept in the trainer's store, and
nothing is read from files that are not what was written. A backend whose ranks write shards keeps them in two folders
instead of two files. The optimizer's state is kept for the newest version only: it is two thirds of the bytes, and
training that goes back to an older version begins with a fresh one. """

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from openclaw_rl.training.backends.interface import (
    OPTIMIZER_FILE,
    OPTIMIZER_FOLDER,
    WEIGHTS_FILE,
    WEIGHTS_FOLDER,
    StartPoint,
)
from openclaw_rl.weights.files import fsync

_TMP = ".tmp-"


class CorruptCheckpoint(Exception):
    """A checkpoint's file is missing or not what was written; the text names it."""


class Checkpoints:
    """Checkpoints below a folder, which is made. One process writes to it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{_TMP}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def write(self, version: int, save: Callable[[Path], None]) -> dict[str, str]:
        """Keep what `save` writes into the folder that it is given, which nobody else can read or write.

        Returns:
            Path below the folder and SHA-256 of each file.

        Raises:
            OSError: the disk is full or can't be written; nothing is left behind.
        """
        folder = Path(tempfile.mkdtemp(prefix=_TMP, dir=self._root))
        try:
            save(folder)
            paths = sorted(folder.rglob("*"))
            digests = {str(file.relative_to(folder)): _digest(file) for file in paths if not file.is_dir()}
            for path in [*paths, folder]:
                fsync(path)
            self.remove(version)
            os.rename(folder, self._root / str(version))
            fsync(self._root)
            return digests
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def start_point(self, version: int, digests: dict[str, str]) -> StartPoint:
        """Return where to go on from.

        Args:
            version: its number.
            digests: as `write` returned them.

        Raises:
            CorruptCheckpoint: a file is damaged, of a folder one is missing or too many, or the weights are missing.
        """
        folder = self._root / str(version)
        if any(Path(name).parts[0] == WEIGHTS_FOLDER for name in digests):
            return StartPoint(*(_whole(folder, part, digests) for part in (WEIGHTS_FOLDER, OPTIMIZER_FOLDER)))
        paths = {}
        for name, digest in digests.items():
            path = folder / name
            if path.exists():
                if _digest(path) != digest:
                    raise CorruptCheckpoint(f"{path} is not what was written")
                paths[name] = path
        if WEIGHTS_FILE not in paths:
            raise CorruptCheckpoint(f"{folder / WEIGHTS_FILE} is missing")
        return StartPoint(paths[WEIGHTS_FILE], paths.get(OPTIMIZER_FILE))

    def forget_optimizer(self, version: int) -> None:
        """Delete the optimizer's state of a version that isn't the newest any more."""
        folder = self._root / str(version)
        (folder / OPTIMIZER_FILE).unlink(missing_ok=True)
        self._discard(folder / OPTIMIZER_FOLDER)

    def versions(self) -> list[int]:
        """Return the versions that have a folder."""
        return sorted(int(path.name) for path in self._root.iterdir() if path.name.isdecimal())

    def remove(self, version: int) -> None:
        """Delete a version's checkpoint if it is there."""
        self._discard(self._root / str(version))

    def _discard(self, folder: Path) -> None:
        if folder.exists():
            trash = Path(tempfile.mkdtemp(prefix=_TMP, dir=self._root))
            os.rename(folder, trash / "deleted")  # gone at once, whatever happens to the deletion
            shutil.rmtree(trash, ignore_errors=True)


def _whole(folder: Path, part: str, digests: dict[str, str]) -> Path | None:
    """Return the folder of this name with exactly the files that were written; None of an optimizer that was
    deleted."""
    wanted = {name: digest for name, digest in digests.items() if Path(name).parts[0] == part}
    if part == OPTIMIZER_FOLDER and not (folder / part).exists():
        return None
    found = {str(file.relative_to(folder)) for file in (folder / part).rglob("*") if not file.is_dir()}
    if missing := wanted.keys() - found:
        raise CorruptCheckpoint(f"{folder / min(missing)} is missing")
    if foreign := found - wanted.keys():
        raise CorruptCheckpoint(f"{folder / min(foreign)} was not written by this trainer")
    for name, digest in wanted.items():
        if _digest(folder / name) != digest:
            raise CorruptCheckpoint(f"{folder / name} is not what was written")
    return folder / part


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
