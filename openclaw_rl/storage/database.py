"""One SQLite file per component: its outbox, its inbox and its own tables, changed together in one transaction.

Durability: in `group` mode a commit is in the kernel's page cache when it returns (a killed process loses nothing), and
a thread of ours brings it to the disk every 100 ms (a power loss costs at most that, and never the file's consistency).
In `strict` mode each commit waits for the disk.

Checkpoints of the write-ahead log are that thread's work too, so that no commit ever waits for one, but for the rare
case of a log that grows beyond a limit since commits never pause.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import grpc

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.storage.wal import WalIndex

log = logging.getLogger(__name__)

#: Seconds between two syncs in group mode: the most that a power loss can cost.
GROUP_SECONDS = 0.1
#: A write-ahead log of more bytes is checkpointed beside the commits ...
SOFT_WAL = 4 * 2**20
#: ... and of more bytes than this while commits wait.
HARD_WAL = 64 * 2**20
#: Seconds for which `scrub` waits for those who read the file.
_SCRUB_SECONDS = 10.0
#: Unused pages (of 4 KiB) with which a file is opened as it is; with more, and more than used ones, it is shrunk first.
#: (SQLite could give pages back as it goes; that costs a page more with each commit.)
FREE_PAGES = 4096
#: Format of the files that this release writes, in SQLite's user_version. It grows when an older release could not
#: work with a file any more; tables and columns that are only added don't make it grow.
FORMAT = 1
#: SQLite's application_id of our files: "OCRL".
APPLICATION = 0x4F43524C
#: Damaged or foreign files of one store that are kept aside; beyond these the oldest go.
KEEP_DAMAGED = 3


class StorageError(MeshError):
    """The file can't be read or written. Reasons: DISK_FULL (retryable), STORE_UNUSABLE, STORE_NEWER."""

    @classmethod
    def newer(cls, path: Path, found: int) -> StorageError:
        """A newer release wrote the file."""
        return cls(grpc.StatusCode.FAILED_PRECONDITION, "STORE_NEWER",
                   f"{path} was written by a newer release (format {found}; this one knows up to {FORMAT}) and is left "
                   "as it is: install that release again, or move the file away to begin anew, without what waits in "
                   "it")

    @classmethod
    def of(cls, path: Path, error: sqlite3.Error | OSError) -> StorageError:
        """What `error` means for the user of `path`."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL",
                       f"{path}: the disk is full; free some space, work goes on by itself then", retry_after=5.0)
        advice = {
            sqlite3.SQLITE_READONLY: "it is read-only; make the file and its folder writable",
            sqlite3.SQLITE_CANTOPEN: "it can't be opened; check that its folder is there and writable",
            sqlite3.SQLITE_CORRUPT: "it is damaged; a restart of the component sets it aside and begins a new one",
            sqlite3.SQLITE_NOTADB: "it is damaged; a restart of the component sets it aside and begins a new one",
            sqlite3.SQLITE_BUSY: "another process holds it; stop that one",
        }.get(code, str(error))
        return cls(grpc.StatusCode.INTERNAL, "STORE_UNUSABLE", f"{path}: {advice}")


#: Errors of SQLite that are the file's or the disk's, not a fault of the statement.
_OF_THE_FILE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
                sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_BUSY}


def _is_damage(error: Exception) -> bool:
    """Whether an error says that the file's content is damaged. Python raises a UnicodeDecodeError where SQLite's own
    message quotes damaged bytes of the file."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, UnicodeDecodeError) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Database:
    """A component's SQLite file. All methods may be called from any thread.

    Args:
        path: the file; its folder is made.
        durability: see the module.
        schema: the component's own `CREATE TABLE IF NOT EXISTS` statements.

    Attributes:
        problems: what a person should know, such as a damaged file that was set aside.

    Raises:
        StorageError: the file can't be opened or made.
    """

    def __init__(self, path: Path | str, durability: Literal["group", "strict"] = "group", schema: str = "") -> None:
        self.path = Path(path)
        self.durability = durability
        self.problems: list[str] = []
        self._lock = threading.RLock()
        self._reader_lock = threading.RLock()
        self._owner = 0  # the thread that is in a transaction
        self._after_commit: list[Callable[[], None]] = []
        self._dirty = threading.Event()
        self._closed = threading.Event()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._check_header()
            self._db = self._open_sound()
            self._db.executescript(schema)
            self._sign()
            self._reader = self._connect()
            self._wal = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CREAT, 0o644)
        except (sqlite3.Error, OSError) as error:
            raise StorageError.of(self.path, error) from error
        self._thread = threading.Thread(target=self._maintain, name=f"store {self.path.parent.name}", daemon=True)
        self._thread.start()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is committed at the end of the block and rolled back by an exception.

        Raises:
            StorageError: nothing was stored: the disk is full, or the file can't be written.
        """
        with self._lock:
            if self._owner == threading.get_ident():
                raise RuntimeError("this thread is in a transaction already; hand its connection on")
            db = self._db
            self._after_commit = []
            try:
                db.execute("BEGIN IMMEDIATE")
                self._owner = threading.get_ident()
                yield db
                db.execute("COMMIT")
            except BaseException as error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error) and self._is_of_the_file(error):
                    self._dirty.set()  # a checkpoint gives the log's space back
                    raise StorageError.of(self.path, error) from error
                raise
            finally:
                self._owner = 0
            callbacks, self._after_commit = self._after_commit, []
        if not self._dirty.is_set():
            self._dirty.set()
        for callback in callbacks:
            callback()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the present transaction is committed; never when it is rolled back."""
        self._after_commit.append(callback)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading what is committed, beside a transaction of another thread; within a transaction of
        this thread, that one's. Read all that you need within the block.

        Raises:
            StorageError: the file can't be read.
        """
        own = self._owner == threading.get_ident()
        with self._lock if own else self._reader_lock:
            try:
                yield self._db if own else self._reader
            except sqlite3.Error as error:
                if self._is_of_the_file(error):
                    raise StorageError.of(self.path, error) from error
                raise

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> list[sqlite3.Row]:
        """All rows of a SELECT."""
        with self.reading() as db:
            return db.execute(sql, params).fetchall()

    def scrub(self) -> None:
        """Rewrite the file and empty its log, so that no byte of deleted rows is left in them. Everybody else waits
        meanwhile, about a second for 100 MB; nobody may be in a transaction of this thread.

        Raises:
            StorageError: the disk is full, or the file can't be written; it is as it was.
        """
        with self._lock, self._reader_lock:
            try:
                self._db.execute("PRAGMA secure_delete = ON")
                self._db.execute("VACUUM")
                deadline = time.monotonic() + _SCRUB_SECONDS
                while self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:  # beside the thread's own
                    if time.monotonic() > deadline:
                        raise sqlite3.OperationalError("another process reads the file; stop that one and repeat")
                    time.sleep(0.01)
            except sqlite3.Error as error:
                raise StorageError.of(self.path, error) from error
            finally:
                self._db.execute("PRAGMA secure_delete = OFF")

    def close(self) -> None:
        """Bring everything to the disk and close the file. May be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._dirty.set()
        self._thread.join()
        with self._lock, self._reader_lock:
            self._reader.close()
            try:
                os.fdatasync(self._wal)
            except OSError as error:
                log.error("%s: %s", self.path, error)
            os.close(self._wal)
            self._db.close()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        # NORMAL: no sync at commits, but checkpoints keep the order that the file's consistency needs.
        db.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'strict' else 'NORMAL'}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA journal_size_limit = {SOFT_WAL // 4}")
        db.execute("PRAGMA temp_store = MEMORY")
        # Some builds overwrite deleted content with zeros, which doubles the cost of an acknowledgement.
        db.execute("PRAGMA secure_delete = OFF")
        return db

    def _check_header(self) -> None:
        """Look at the file's first bytes, without SQLite, which would change it: one of a newer release must stay as
        it is, one of another program is set aside.

        Raises:
            StorageError: a newer release wrote it.
        """
        if self.path.is_dir():
            self._set_aside("a folder stands in its place")
            return
        try:
            with self.path.open("rb") as file:
                head = file.read(100)
        except FileNotFoundError:
            return
        if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
            return  # empty, or what `_open_sound` finds damaged
        # https://www.sqlite.org/fileformat2.html#database_header
        version, application = (int.from_bytes(head[at:at + 4], "big") for at in (60, 68))
        if application not in (0, APPLICATION):
            self._set_aside(f"another program wrote it (application_id {application:#x})")
        elif version > FORMAT:
            raise StorageError.newer(self.path, version)

    def _sign(self) -> None:
        """Note the format in the file's header."""
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found > FORMAT:  # told in the log only: its writer was killed at the first start
            self._db.close()
            raise StorageError.newer(self.path, found)
        if found < FORMAT:
            self._db.execute(f"PRAGMA application_id = {APPLICATION}")
            self._db.execute(f"PRAGMA user_version = {FORMAT}")
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _open_sound(self) -> sqlite3.Connection:
        """Open the file; a damaged one is set aside first."""
        db = None
        index = WalIndex.read(self.path)
        try:
            db = self._connect()
            if index is not None and (loss := index.lost(db)):
                log.error("%s: %s", self.path, loss)
                self.problems.append(f"{self.path}: {loss}")
            verdict = db.execute("SELECT CAST(quick_check AS BLOB) FROM pragma_quick_check(1)").fetchone()[0].decode(
                errors="replace")  # it may quote damaged bytes
            if verdict == "ok":
                self._shrink(db)
                return db
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not _is_damage(error):
                raise
            verdict = str(error)
        if db is not None:
            db.close()
        self._set_aside(" ".join(verdict.split()))
        return self._connect()

    def _set_aside(self, why: str) -> None:
        """Move the file, and those that belong to it, out of the way."""
        older = sorted(path for path in self.path.parent.glob(f"{self.path.name}.corrupt-*")
                       if not path.name.endswith(("-wal", "-shm")))
        for path in older[:max(0, len(older) - KEEP_DAMAGED + 1)]:
            log.warning("%s is deleted: there are newer ones", path)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{path}{suffix}").unlink(missing_ok=True)
        aside = f"{self.path}.corrupt-{time.strftime('%Y%m%dT%H%M%S')}"
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(f"{self.path}{suffix}"):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        problem = f"{self.path} was damaged ({why}); it was set aside as {aside}, and a new one begun"
        self.problems.append(problem)
        log.error(problem)

    @staticmethod
    def _is_of_the_file(error: sqlite3.Error) -> bool:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_FILE

    def _maintain(self) -> None:
        """The thread: syncs the log and checkpoints it."""
        checkpointer = self._connect()
        checkpointer.execute("PRAGMA busy_timeout = 50")
        failing = False
        while not self._closed.is_set():
            self._dirty.wait()
            self._closed.wait(GROUP_SECONDS)
            self._dirty.clear()
            try:
                if self.durability == "group":
                    os.fdatasync(self._wal)
                self._checkpoint(checkpointer)
                failing = False
            except (sqlite3.Error, OSError) as error:
                if not failing:
                    log.error("%s: %s", self.path, error)
                failing = True
        checkpointer.close()

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        if os.fstat(self._wal).st_size > SOFT_WAL:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if os.fstat(self._wal).st_size > HARD_WAL:
            with self._lock:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _shrink(self, db: sqlite3.Connection) -> None:
        """Give the space of a backlog that is gone back to the file system."""
        free, pages = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
        if free > max(FREE_PAGES, pages // 2):
            try:
                db.execute("VACUUM")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.OperationalError as error:  # it needs some room itself; all works without it
                log.warning("%s was not shrunk: %s", self.path, error)
