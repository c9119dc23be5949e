"""One SQLite file per component: its outbox, its inbox and its own tables, changed together in one transaction.

Durability: in `group` mode a commit is in the kernel's page cache when it returns (a killed process loses nothing), and
a thread brings it to the disk every 100 ms (a power loss costs at most that, and never the file's consistency). In
`strict` mode each commit waits for the disk.

Threads: an event loop uses `run`, `call` and `read`, which wait without blocking it; `transaction`, `reading` and
`query` block, and are for other threads and for what runs within those three. Checkpoints of the write-ahead log are
the work of a thread of their own (`upkeep.py`), so that no commit waits for one, but for the rare case of a log that
grows beyond a limit since commits never pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from openclaw_rl.runtime import runtime
from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.storage import upkeep
from openclaw_rl.storage.errors import StorageError, is_damage, is_of_the_file
from openclaw_rl.storage.opening import SUSPECTED, check_header, open_or_replace
from openclaw_rl.storage.rewrite import REWRITTEN, rewrite
from openclaw_rl.storage.salvage import ALL, SALVAGED, Recovery
from openclaw_rl.storage.writer import Job, Writer

__all__ = ["Database", "StorageError"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Unused pages (of 4 KiB) with which a file is opened as it is; with more, and more than used ones, it is shrunk first.
#: (SQLite could give pages back as it goes; that costs a page more with each commit.)
FREE_PAGES = 4096
#: Format of the files that this release writes, in SQLite's user_version. It grows when an older release could not
#: work with a file any more; tables and columns that are only added don't make it grow.
FORMAT = 1
#: SQLite's application_id of our files: "OCRL".
APPLICATION = 0x4F43524C
#: Quarantined files of one database that are kept; beyond these the oldest go.
KEEP_DAMAGED = 3


class Database:
    """A component's SQLite file.

    Args:
        path: the file; its folder is made.
        durability: see the module.
        schema: the component's own `CREATE TABLE IF NOT EXISTS` statements. Each table has a primary key.
        recovery: what is taken over from a damaged file.

    Attributes:
        problems: what a person should know, such as a damaged file that was quarantined.

    Raises:
        StorageError: the file can't be opened or made.
    """

    def __init__(self, path: Path | str, durability: Literal["group", "strict"] = "group", schema: str = "",
                 recovery: Recovery = ALL) -> None:
        self.path = Path(path)
        self.durability = durability
        self.problems: list[str] = []
        self._lock = threading.RLock()
        self._reader_lock = threading.RLock()
        self._rewriting = threading.Lock()
        self._owner = 0  # the thread that is in a transaction
        self._after_commit: list[Callable[[], None]] = []
        self._failure = self._damage = ""  # see `alarms`
        self._closed = False
        self._upkeep = upkeep.Upkeep(self.path, durability == "group", self._connect, self._writing,
                                     self._beyond_repair)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for copy in (REWRITTEN, SALVAGED):  # of a process that was killed meanwhile
                Path(f"{self.path}{copy}").unlink(missing_ok=True)
            self._db, self.problems = open_or_replace(self.path, self._connect_checked, label="corrupt",
                                                      keep=KEEP_DAMAGED, recovery=recovery)
            self._shrink()
            self._db.executescript(schema)
            self._sign()
            self._open_others()
        except (sqlite3.Error, OSError) as error:
            raise StorageError.of(self.path, error) from error
        name = f"{self.path.parent.name}/{self.path.name}"
        self._writer = Writer(f"write {name}", self._commit)
        self._readers = ThreadPoolExecutor(1, f"read {name}")
        self._upkeep.start()

    # For an event loop

    async def run(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run `change` in a transaction on the writer thread; it is committed when this returns. Changes that wait
        at the same time share a commit, but for each it is as if it had one of its own; when that fails, `change` may
        run a second time.

        Raises:
            StorageError: nothing was stored: the disk is full, or the file can't be written.
        """
        return await asyncio.wrap_future(self.submit(change))

    def submit(self, change: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Begin `run` without waiting for it. Changes are made in the order in which they are submitted. Once the file
        is closed they fail."""
        try:
            return self._writer.submit(change, grouped=True)
        except sqlite3.ProgrammingError as error:
            failed: Future[T] = Future()
            failed.set_exception(error)
            return failed

    async def call(self, work: Callable[..., T], *args: Any) -> T:
        """Run a function that uses `transaction`, on the writer thread and in its turn."""
        return await asyncio.wrap_future(self._writer.submit(lambda: work(*args), grouped=False))

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        """Run a function that uses `reading` or `query`, on another thread, beside the writer."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._readers, lambda: context.run(work, *args))

    # For other threads

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is committed at the end of the block and rolled back by an exception. It blocks.

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
                self._failure = ""
            except BaseException as error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if is_of_the_file(error):
                    self._upkeep.dirty.set()  # a checkpoint gives the log's space back
                    raise self._failed(error) from error
                raise
            finally:
                self._owner = 0
            callbacks, self._after_commit = self._after_commit, []
        if not self._upkeep.dirty.is_set():
            self._upkeep.dirty.set()
        for callback in callbacks:
            callback()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the present transaction is committed; never when it is rolled back."""
        self._after_commit.append(callback)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading what is committed, beside a transaction of another thread; within a transaction of
        this thread, that one's. Read all that you need within the block. It blocks.

        Raises:
            StorageError: the file can't be read.
        """
        own = self._owner == threading.get_ident()
        with self._lock if own else self._reader_lock:
            try:
                yield self._db if own else self._reader
            except sqlite3.Error as error:
                if is_of_the_file(error):
                    raise self._failed(error) from error
                raise

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> list[sqlite3.Row]:
        """All rows of a SELECT. It blocks."""
        with self.reading() as db:
            return db.execute(sql, params).fetchall()

    def rewrite(self) -> None:
        """Replace the file by a copy of what is in it, so that no byte of deleted rows is left, and its size is that of
        its content. It blocks, about a second for 100 MB; writers and readers wait only for the swap at its end. One
        that is called meanwhile waits for it, and then rewrites again: rows may have gone since it began.

        Raises:
            StorageError: the disk is full, or another process holds the file; it is as it was.
        """
        try:
            with self._rewriting:
                rewrite(self.path, self._on_writer, self._swap)
        except (sqlite3.Error, OSError) as error:
            raise StorageError.of(self.path, error) from error

    def alarms(self) -> list[Raised]:
        """What an operator should know: that the file was damaged, or can't be read or written now."""
        damaged = dict.fromkeys([*self.problems, self._upkeep.mended, self._damage])
        return [*(("state_damaged", text) for text in damaged),
                ("state_unusable", self._failure or self._upkeep.failure)]

    def close(self) -> None:
        """Bring everything to the disk and close the file. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        self._readers.shutdown()
        self._upkeep.end()
        with self._lock, self._reader_lock:
            self._close_others()
            self._db.close()
            self._upkeep.close_header()

    def _commit(self, jobs: Sequence[Job]) -> None:
        """Do the changes of some jobs in one transaction. A single one needs no savepoint; when there are more, one
        that raises is undone alone."""
        done: list[tuple[Job, Any]] = []
        failed: list[tuple[Job, BaseException]] = []
        try:
            with self.transaction() as db:
                for job in jobs:
                    mark = len(self._after_commit)
                    if len(jobs) > 1:
                        db.execute("SAVEPOINT job")
                    try:
                        done.append((job, job.work(db)))
                    except BaseException as error:
                        if len(jobs) == 1 or is_of_the_file(error) or isinstance(error, StorageError):
                            raise
                        db.execute("ROLLBACK TO job")
                        del self._after_commit[mark:]
                        failed.append((job, error))
                    if len(jobs) > 1:
                        db.execute("RELEASE job")
        except BaseException as error:
            if len(jobs) > 1 and isinstance(error, StorageError):  # one that is too large is no obstacle for the others
                for job in jobs:
                    self._commit([job])
                return
            done, failed = [], [(job, error) for job in jobs]
        for job, result in done:
            job.future.set_result(result)
        for job, reason in failed:
            job.future.set_exception(reason)

    def _failed(self, error: sqlite3.Error) -> StorageError:
        """What an error of the file means: an alarm as long as it holds. Damage that is a lost header is no alarm yet,
        which `upkeep` mends within a moment, or tells that it can't."""
        if not is_damage(error):
            failed = StorageError.of(self.path, error)
            self._failure = failed.message
            return failed
        if self._upkeep.header_lost():
            self._upkeep.dirty.set()
            return StorageError.of(self.path, error)
        return self._beyond_repair(error)

    def _beyond_repair(self, error: sqlite3.Error) -> StorageError:
        """What damage means. Only a new start mends it, so a process that is this component's alone ends; in a shared
        one it is an alarm until then."""
        failed = StorageError.of(self.path, error)
        self._damage = failed.message
        with contextlib.suppress(OSError):
            Path(f"{self.path}{SUSPECTED}").touch()
        if (give_up := runtime.current().give_up) is not None:
            give_up(failed.message)
        return failed

    def _on_writer(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the writer thread between transactions, and wait for it."""
        def locked() -> T:
            with self._writing() as db:
                return work(db)

        return self._writer.submit(locked, grouped=False).result()

    def _swap(self, replace: Callable[[sqlite3.Connection], bool]) -> bool:
        """On the writer thread, between transactions: give `replace` the only connection that this process has to the
        file. It closes that when it has replaced the file (True)."""
        with self._lock, self._reader_lock, self._upkeep.lock:
            self._close_others()
            keep = False
            try:
                replaced = replace(self._db)
                keep = not replaced
                return replaced
            finally:
                if keep:
                    self._db.execute("PRAGMA journal_mode = WAL")
                else:
                    self._db.close()
                    self._upkeep.close_header()
                    self._db = self._connect()
                self._open_others()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            db.row_factory = sqlite3.Row
            db.execute("PRAGMA journal_mode = WAL")
            # NORMAL: no sync at commits, but checkpoints keep the order that the file's consistency needs.
            db.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'strict' else 'NORMAL'}")
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute(f"PRAGMA journal_size_limit = {upkeep.SOFT_WAL // 4}")
            db.execute("PRAGMA temp_store = MEMORY")
            # Some builds overwrite deleted content with zeros, which doubles the cost of an acknowledgement.
            db.execute("PRAGMA secure_delete = OFF")
        except BaseException:
            db.close()
            raise
        return db

    def _connect_checked(self) -> sqlite3.Connection:
        check_header(self.path, APPLICATION, FORMAT)
        return self._connect()

    def _open_others(self) -> None:
        """Open what goes beside the writer's connection."""
        self._reader = self._connect()
        self._upkeep.open(self._db)

    def _close_others(self) -> None:
        """Bring the log to the disk, and close what goes beside the writer's connection."""
        self._reader.close()
        self._upkeep.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """The writer's connection between transactions, which wait meanwhile."""
        with self._lock:
            yield self._db

    def _sign(self) -> None:
        """Note the format in the file's header."""
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found > FORMAT:  # told in the log only: its writer was killed at the first start
            self._db.close()
            raise StorageError.newer(self.path, found, FORMAT)
        if found < FORMAT:
            self._db.execute(f"PRAGMA application_id = {APPLICATION}")
            self._db.execute(f"PRAGMA user_version = {FORMAT}")
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _shrink(self) -> None:
        """Give the space of a backlog that is gone back to the file system."""
        free, pages = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
        if free > max(FREE_PAGES, pages // 2):
            try:
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.OperationalError as error:  # it needs some room itself; all works without it
                logger.warning("%s was not shrunk: %s", self.path, error)
