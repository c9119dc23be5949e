"""Errors of a component's file, and which of SQLite's errors they stand for."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypeGuard

import grpc

from openclaw_rl.rpc.errors import MeshError

#: Errors of SQLite that are the file's or the disk's, not a fault of the statement.
_OF_THE_FILE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY}


class StorageError(MeshError):
    """The file can't be read or written. Reasons: DISK_FULL (retryable), STORE_UNUSABLE, STORE_NEWER."""

    @classmethod
    def newer(cls, path: Path, found: int, known: int) -> StorageError:
        """A newer release wrote the file, in format `found`."""
        return cls(grpc.StatusCode.FAILED_PRECONDITION, "STORE_NEWER",
                   f"{path} was written by a newer release (format {found}; this one knows up to {known}) and is left "
                   "as it is: install that release again, or move the file away to begin anew, without what waits in "
                   "it")

    @classmethod
    def of(cls, path: Path, error: Exception) -> StorageError:
        """What `error` means for the user of `path`."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL",
                       f"{path}: the disk is full; free some space, work goes on by itself then", retry_after=5.0)
        damaged = "it is damaged; a restart of the component sets it aside and takes what can be read over to a new one"
        advice = {
            sqlite3.SQLITE_READONLY: "it is read-only; make the file and its folder writable",
            sqlite3.SQLITE_CANTOPEN: "it can't be opened; check that its folder is there and writable",
            sqlite3.SQLITE_IOERR: f"it can't be read or written ({error}); the kernel's log tells whether its disk is "
                                  "broken or has turned read-only",
            sqlite3.SQLITE_BUSY: "another process holds it; stop that one",
        }.get(code, damaged if is_damage(error) else str(error))
        return cls(grpc.StatusCode.INTERNAL, "STORE_UNUSABLE", f"{path}: {advice}")


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file's content is damaged. Python raises a UnicodeDecodeError where SQLite's own
    message quotes damaged bytes of the file."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, UnicodeDecodeError) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_of_the_file(error: BaseException) -> TypeGuard[sqlite3.Error]:
    """Whether an error is the file's or the disk's, not the statement's."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_FILE
