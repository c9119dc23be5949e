"""The thread beside an open file: syncs its log, checkpoints it, and has an overwritten header written anew."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from openclaw_rl.storage.header import Header

logger = logging.getLogger(__name__)

#: Seconds between two syncs in group mode: the most that a power loss can cost.
GROUP_SECONDS = 0.1
#: Seconds between two looks at the header of a file that nobody changes.
LOOK_SECONDS = 1.0
#: Seconds between two tries when one of the two fails.
RETRY_SECONDS = 1.0
#: A write-ahead log of more bytes is checkpointed beside the commits ...
SOFT_WAL = 4 * 2**20
#: ... and of more bytes than this while commits wait.
HARD_WAL = 64 * 2**20


class Upkeep:
    """Does what no commit is to wait for.

    Args:
        path: the file.
        sync: whether the log is still to be synced after commits.
        connect: opens a connection to it.
        writing: holds commits up, and gives the connection that makes them.
        damaged: called with the error that keeps a lost header from being written anew.

    Attributes:
        lock: held while anything is done; who holds the writer up, too, takes that lock before.
        dirty: set it after a commit.
        failure: why what was committed last can't be brought to the disk now.
        mended: what was written anew, for a person.
    """

    def __init__(self, path: Path, sync: bool, connect: Callable[[], sqlite3.Connection],
                 writing: Callable[[], AbstractContextManager[sqlite3.Connection]],
                 damaged: Callable[[sqlite3.Error], object]) -> None:
        self.lock = threading.Lock()
        self.dirty = threading.Event()
        self.failure = self.mended = ""
        self._path, self._sync, self._connect, self._writing, self._damaged = path, sync, connect, writing, damaged
        self._header: Header | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sync {path.parent.name}/{path.name}", daemon=True)

    def open(self, db: sqlite3.Connection) -> None:
        """Open what it needs, when the file was opened or replaced; `db`: the connection that makes the commits."""
        self._header = self._header or Header(self._path, db)
        self._checkpointer = self._connect()
        self._checkpointer.execute("PRAGMA busy_timeout = 50")
        self._wal = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Bring the log to the disk, and close what `open` opened, but for the header."""
        self._checkpointer.close()
        try:
            os.fdatasync(self._wal)
        except OSError as error:
            logger.error("%s: %s", self._path, error)
        os.close(self._wal)

    def close_header(self) -> None:
        """Close that, too, when the process has no connection to the file any more."""
        if self._header is not None:
            self._header.close()
        self._header = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        self.dirty.set()
        self._thread.join()

    def header_lost(self) -> bool:
        """Whether somebody has overwritten the header, and it is not written anew yet."""
        with self.lock:
            try:
                return self._header is not None and not self._header.sound()
            except OSError:  # the disk's fault, not the content's
                return True

    def checkpoint(self, kind: Literal["PASSIVE", "TRUNCATE"], beyond: int) -> int:
        """Checkpoint the log if it has more bytes than `beyond`; gives its bytes. Under the lock."""
        if os.fstat(self._wal).st_size > beyond:
            self._checkpointer.execute(f"PRAGMA wal_checkpoint({kind})").fetchall()
        return os.fstat(self._wal).st_size

    def _run(self) -> None:
        while not self._ended.is_set():
            dirty = self.dirty.wait(LOOK_SECONDS)
            if dirty:
                self._ended.wait(GROUP_SECONDS)
                self.dirty.clear()
            try:
                self._keep_header()
                if dirty:
                    self._keep_log()
                self.failure = ""
            except (sqlite3.Error, OSError) as error:
                if not self.failure:
                    logger.error("%s: %s", self._path, error)
                self.failure = f"{self._path}: what was committed last can't be brought to the disk: {error}"
                self._ended.wait(RETRY_SECONDS)
                self.dirty.set()

    def _keep_log(self) -> None:
        with self.lock:
            if self._sync:
                os.fdatasync(self._wal)
            size = self.checkpoint("PASSIVE", SOFT_WAL)
        if size > HARD_WAL:
            with self._writing(), self.lock:
                self.checkpoint("TRUNCATE", HARD_WAL)

    def _keep_header(self) -> None:
        """Write a header that somebody has overwritten anew. A reader of what was before holds that up till the next
        look."""
        with self.lock:  # or it is another file meanwhile
            if self._header is None or self._header.sound():
                return
        with self._writing() as db, self.lock:
            if self._header is None:
                return
            try:
                self._header.write(db)
                self.checkpoint("PASSIVE", 0)
            except sqlite3.DatabaseError as error:
                self._damaged(error)
                return
            if self._header.sound():
                self.mended = (f"{self._path}: its header was overwritten while it was in use (look which program or "
                               "disk did that); it was written anew from memory, and nothing is lost")
                logger.error(self.mended)
