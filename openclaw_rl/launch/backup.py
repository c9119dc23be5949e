"""Backup of a home, consistent while its mesh runs, and its restoration as another home.

What makes it consistent: each store is copied in one snapshot, in the order of the ring, so that a message which one
component has handed over is in the copy of the next one or still in the sender's outbox; delivery is at least once, and
duplicates are known. Files beside the stores never change once they have their names (versions, checkpoints), so these
are linked: before the stores, since the trainer may delete old ones, and after them, since it may have made a new one.
What only one of the two knows is put in order at the next start, as after a kill.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.storage.opening import check
from openclaw_rl.storage.quarantine_files import quarantined
from openclaw_rl.storage.snapshot import copy_database

#: Format of the archive, in its first member; it grows when an older release could not restore it any more.
FORMAT = 1
_MANIFEST = "openclaw-rl-backup.json"
_STAGING = ".backup-"
#: Names of archives and how they are compressed.
SUFFIXES = {".tar.zst": "zst", ".tar.gz": "gz", ".tgz": "gz"}
#: What belongs to running processes, and comes again by itself; models are downloaded or converted again.
_LEFT_OUT = {"run", "models"}
_TRANSIENT = (".lock", "-wal", "-shm", "-journal", ".rewritten", ".salvaged", ".part")


class BackupError(Exception):
    """The backup or the restoration can't be made; the text says why, and what to do."""


@dataclass
class Archive:
    """What a backup holds."""

    file: Path
    made_by: str  #: version of openclaw-rl
    made_at: str  #: ISO 8601, UTC
    home: str
    bytes: int  #: of all files, unpacked
    stores: list[str] = field(default_factory=list)  #: databases, below the home
    left_out: list[str] = field(default_factory=list)  #: files that could not be copied, and why

    def json(self) -> dict[str, Any]:
        return {**self.__dict__, "file": str(self.file)}


def back_up(home: Home, file: Path, *, models: bool = False) -> Archive:
    """Write a backup of a home, whose mesh may run. Only its owner can read it: it has every conversation, and keys.

    Args:
        file: the archive; its name ends with one of `SUFFIXES`.
        models: with the base models' files, which are large and can be had again.

    Raises:
        BackupError: there is no home, the file is there already or has another suffix, or something can't be read or
            written; nothing is left behind.
    """
    file = file.expanduser().absolute()
    compression = _compression(file)
    if not home.root.is_dir():
        raise BackupError(f"there is no mesh in {home.root}; set OPENCLAW_RL_HOME to the folder of yours")
    if file.exists():
        raise BackupError(f"{file} is there already; name another file, or remove it")
    if file.resolve().is_relative_to(home.root.resolve()):
        raise BackupError(f"{file} is in the folder that it is a backup of; name a file outside of {home.root}")
    part = file.with_name(f"{file.name}.part")
    try:
        with _staged(home, models) as (staging, archive):
            archive.file = file
            with _writing(part, compression) as tar:
                _add_manifest(tar, archive)
                for path in sorted(staging.rglob("*")):
                    _add(tar, path, path.relative_to(staging))
        os.replace(part, file)
    except (OSError, sqlite3.Error, tarfile.TarError) as error:
        raise BackupError(f"{home.root} can't be backed up: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return archive


def restore(file: Path, home: Home) -> Archive:
    """Make a home of a backup. It appears whole or not at all.

    Args:
        home: is not there yet, or empty.

    Raises:
        BackupError: the home has files, the archive is damaged or none of ours, or a newer release made it.
    """
    file = file.expanduser().absolute()
    if home.root.exists() and (not home.root.is_dir() or any(home.root.iterdir())):
        raise BackupError(f"{home.root} is not empty, and a backup replaces nothing; set OPENCLAW_RL_HOME to a folder "
                          "that is empty or not there")
    home.root.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{home.root.name}.restoring-", dir=home.root.parent))  # mode 0700
    try:
        with _reading(file) as tar:
            members = iter(tar)
            archive = _manifest(tar, next(members, None), file)
            free = shutil.disk_usage(folder).free
            if archive.bytes > free:
                raise BackupError(f"{file} takes {archive.bytes / 2**20:.0f} MB, and {home.root.parent} has "
                                  f"{free / 2**20:.0f} MB left; make room, or restore it to another disk")
            for member in members:
                _extract(tar, member, folder)
        for name in archive.stores:
            with contextlib.closing(sqlite3.connect(folder / name)) as db:
                if damage := check(db):
                    raise BackupError(f"{file} is damaged: {name}: {damage}")
        os.replace(folder, home.root)
    except (OSError, EOFError, ValueError, tarfile.TarError, sqlite3.Error) as error:
        raise BackupError(f"{file} can't be restored: {error or type(error).__name__}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    home.create()
    return archive


# Writing

@contextlib.contextmanager
def _staged(home: Home, models: bool) -> Iterator[tuple[Path, Archive]]:
    """A folder with links to what goes into the archive, and copies of the databases."""
    for left in home.root.glob(f"{_STAGING}*"):  # of a backup that was killed
        shutil.rmtree(left, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=home.root))
    try:
        archive = Archive(Path(), version("openclaw-rl"), time.strftime("%FT%TZ", time.gmtime()), str(home.root), 0)
        _link(home, staging, models)
        databases = [home.component(name) / "state.db" for name in COMPONENTS]  # in the order of the ring
        for database in [*databases, *sorted({*home.root.glob("*/*.db")} - {*databases})]:
            name = database.relative_to(home.root)
            if not database.exists():
                continue
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                copy_database(database, staging / name)
                archive.stores.append(str(name))
            except sqlite3.DatabaseError as error:
                if database in databases:
                    raise BackupError(f"{database} can't be copied: {error}; `openclaw-rl status` says more") from error
                archive.left_out.append(f"{name}: {error}")
        _link(home, staging, models)
        running = home.run / "config.yaml"
        if running.exists() and not (staging / "config.yaml").exists():
            shutil.copyfile(running, staging / "config.yaml")
        archive.bytes = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
        yield staging, archive
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _link(home: Home, staging: Path, models: bool) -> None:
    """Link or copy all files but databases, and replace those that are others now."""
    aside = {path for folder in home.root.iterdir() if folder.is_dir() for path in quarantined(folder)}
    for path in _files(home.root, aside, models):
        target = staging / path.relative_to(home.root)
        with contextlib.suppress(FileNotFoundError):  # deleted or renamed meanwhile
            if target.exists() and target.samefile(path):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            try:
                os.link(path, target)
            except FileNotFoundError:
                raise
            except OSError:  # a file system without links
                shutil.copyfile(path, target)


def _files(root: Path, aside: set[Path], models: bool) -> Iterator[Path]:
    """Yield the files to link: neither databases nor what belongs to processes, is unfinished or quarantined."""
    left_out = _LEFT_OUT - ({"models"} if models else set())
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if not (here == root and (name in left_out or name.startswith(_STAGING)))
                      and not name.startswith((".tmp-", ".making-")) and here / name not in aside]
        for name in names:
            path = here / name
            if path in aside or name.endswith(_TRANSIENT) or (name.endswith(".db") and here.parent == root):
                continue
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode) or (models and path.is_file()):
                    yield path


def _add_manifest(tar: tarfile.TarFile, archive: Archive) -> None:
    data = json.dumps({"format": FORMAT, **archive.json()}, indent=1).encode()
    entry = tarfile.TarInfo(_MANIFEST)
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
    tar.addfile(entry, io.BytesIO(data))


def _add(tar: tarfile.TarFile, path: Path, name: Path) -> None:
    entry = tarfile.TarInfo(str(name))
    if path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(entry)
        return
    with path.open("rb") as opened:  # a log grows: what it has at this moment
        there = os.fstat(opened.fileno())
        entry.size, entry.mtime, entry.mode = there.st_size, int(there.st_mtime), 0o600
        tar.addfile(entry, opened)


def _compression(file: Path) -> str:
    for suffix, compression in SUFFIXES.items():
        if file.name.endswith(suffix):
            return compression
    raise BackupError(f"{file.name}: the name of a backup ends with {', '.join(SUFFIXES)}")


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise BackupError("zstandard is not installed; name the backup .tar.gz, or pip install zstandard") from None
    return zstandard


@contextlib.contextmanager
def _writing(file: Path, compression: str) -> Iterator[tarfile.TarFile]:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as raw:
        compressed: Any = (gzip.GzipFile("", "wb", 6, raw) if compression == "gz" else
                           _zstd().ZstdCompressor(level=3, threads=-1, write_checksum=True).stream_writer(
                               raw, closefd=False))
        with compressed, tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            yield tar
        raw.flush()
        os.fsync(raw.fileno())


# Reading

@contextlib.contextmanager
def _reading(file: Path) -> Iterator[tarfile.TarFile]:
    compression = _compression(file)
    unpacking: type[Exception] = zlib.error if compression == "gz" else _zstd().ZstdError
    with file.open("rb") as raw:
        try:
            compressed: Any = (gzip.GzipFile(fileobj=raw) if compression == "gz" else
                               _zstd().ZstdDecompressor().stream_reader(raw))
            with compressed, tarfile.open(fileobj=compressed, mode="r|") as tar:
                yield tar
                while compressed.read(1 << 20):  # to the end, where the checksum is
                    pass
        except unpacking as error:
            raise ValueError(str(error)) from error


def _manifest(tar: tarfile.TarFile, first: tarfile.TarInfo | None, file: Path) -> Archive:
    content = tar.extractfile(first) if first is not None and first.isreg() and first.name == _MANIFEST else None
    if content is None:
        raise BackupError(f"{file} is no backup of a mesh: `openclaw-rl backup FILE` makes one")
    try:
        data = json.loads(content.read(1 << 20))
        if data["format"] > FORMAT:
            raise BackupError(f"{file} was made by openclaw-rl {data['made_by']}, which is newer than this one; "
                              "install that release")
        return Archive(file, str(data["made_by"]), str(data["made_at"]), str(data["home"]), int(data["bytes"]),
                       [str(name) for name in data["stores"]], [str(name) for name in data["left_out"]])
    except (KeyError, TypeError, ValueError) as error:
        raise BackupError(f"{file} is damaged: what it holds can't be read ({error})") from None


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one member, with our own rights, and nowhere but below the folder."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
        raise BackupError(f"{member.name!r} is nothing that a backup of a mesh has; nothing was restored")
    path = folder / name
    if member.isdir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None  # of a regular file
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    os.utime(path, (member.mtime, member.mtime))
