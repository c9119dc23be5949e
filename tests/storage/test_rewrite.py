"""A file is replaced by a copy of what is in it while it is written, read, and its process is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from openclaw_rl.storage import rewrite as rewrite_module
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.quarantine_files import size
from openclaw_rl.storage.rewrite import REWRITTEN
from tests.support.loop import held_at_most

SCHEMA = """
CREATE TABLE IF NOT EXISTS things (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, data BLOB);
CREATE TABLE IF NOT EXISTS pairs (a TEXT, b BLOB, n INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, n INTEGER);
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "state.db", schema=SCHEMA)
    yield database
    database.close()


def fill(database: Database, rows: int, size: int) -> None:
    with database.transaction() as db:
        db.executemany("INSERT INTO things (name, data) VALUES (?, ?)",
                       [(f"n{i}", os.urandom(size)) for i in range(rows)])


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
                for table in ("things", "pairs", "names", "sqlite_sequence")}


def test_a_unique_value_may_move_between_two_rounds(database: Database, tmp_path: Path) -> None:
    """A round reads rows that changed after its keys were taken; what these took from other rows comes in the next."""
    fill(database, 2, 10)
    copy = sqlite3.connect(tmp_path / "copy.db", isolation_level=None)
    changes = rewrite_module._Changes()
    with closing(copy), database.reading() as source:
        source.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
        with database.transaction() as db:
            changes.watch(db)
        with database.transaction() as db:
            db.execute("UPDATE things SET data = x'00' WHERE id = 1")
        keys = changes.take()
        with database.transaction() as db:  # after the keys were taken
            db.execute("UPDATE things SET name = 'other' WHERE id = 2")
            db.execute("UPDATE things SET name = 'n1' WHERE id = 1")
        changes.bring(keys, source, copy)
        changes.bring(changes.take(), source, copy)
        assert copy.execute("SELECT * FROM things ORDER BY id").fetchall() == [
            tuple(row) for row in source.execute("SELECT * FROM things ORDER BY id")]
        with database.transaction() as db:
            changes.unwatch(db)


def test_all_changes_of_the_meantime_are_in_it(database: Database, tmp_path: Path) -> None:
    """The same changes, drawn by chance, are made to a second file that is never rewritten."""
    fill(database, 4000, 2000)
    other = Database(tmp_path / "other" / "state.db", schema=SCHEMA)
    with database.reading() as db, other.transaction() as copy:
        copy.executemany("INSERT INTO things VALUES (?, ?, ?)", map(tuple, db.execute("SELECT * FROM things")))
    draw, rewriting = random.Random(5), threading.Event()
    rewriting.set()

    def change(db: sqlite3.Connection, kind: int, i: int, j: int) -> None:
        match kind:
            case 0:
                db.execute("INSERT OR REPLACE INTO things (name, data) VALUES (?, ?)", (f"n{i}", b"replaced"))
            case 1:
                db.execute("DELETE FROM things WHERE id = ?", (i,))
            case 2:
                db.execute("UPDATE OR IGNORE things SET id = ? WHERE id = ?", (10_000 + j, i))
            case 3:
                db.execute("INSERT OR REPLACE INTO pairs VALUES (?, ?, ?)", (f"a{i % 9}", b"%d" % (j % 9), i))
            case 4:
                db.execute("DELETE FROM pairs WHERE a = ?", (f"a{i % 9}",))
            case 5:
                db.execute("INSERT INTO names VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1", (f"{i % 5}",))
            case 6:  # a unique value goes from one row to another
                db.execute("DELETE FROM things WHERE name = 'moving'")
                db.execute("UPDATE OR IGNORE things SET name = 'moving' WHERE id = ?", (i,))

    def write() -> None:
        while rewriting.is_set():
            drawn = [(draw.randrange(7), draw.randrange(4000), draw.randrange(4000)) for _ in range(5)]
            for file in (database, other):
                try:
                    with file.transaction() as db:
                        for step in drawn:
                            change(db, *step)
                        if drawn[0][1] % 10 == 0:
                            raise KeyError  # rolled back
                except KeyError:
                    pass

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3):
            database.rewrite()
    finally:
        rewriting.clear()
        thread.join()
    database.close()
    other.close()
    assert content(database.path) == content(other.path)
    assert {path.name for path in tmp_path.iterdir()} == {"state.db", "other"}


def test_several_at_once_follow_one_another(database: Database) -> None:
    """Two forgettings at once: the second, which could not begin, took the first one's triggers away, so that what
    was written meanwhile was lost with the swap."""
    fill(database, 3000, 2000)
    failures: list[BaseException] = []

    def rewrite() -> None:
        try:
            database.rewrite()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=rewrite) for _ in range(4)]
    for thread in threads:
        thread.start()
    written = 0
    while any(thread.is_alive() for thread in threads):
        with database.transaction() as db:
            db.execute("INSERT INTO names VALUES (?, ?)", (f"m{written}", written))
        written += 1
    assert not failures
    assert len(content(database.path)["names"]) == written > 1


def test_it_goes_on_as_before(database: Database) -> None:
    fill(database, 100, 100)
    with database.transaction() as db:
        db.execute("DELETE FROM things WHERE id > 50")
    level = database._db.execute("PRAGMA synchronous").fetchone()[0]
    database.rewrite()
    assert database.query("SELECT COUNT(*) AS n FROM things")[0]["n"] == 50
    assert database._db.execute("PRAGMA synchronous").fetchone()[0] == level
    assert database._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert not database._db.execute("SELECT name FROM temp.sqlite_master").fetchall()
    fill_again = database.submit(lambda db: db.execute("INSERT INTO things (name) VALUES ('more')").lastrowid)
    assert fill_again.result() == 101, "AUTOINCREMENT gives no number twice"
    database.close()
    again = Database(database.path, schema=SCHEMA)
    assert again.problems == [] and again.query("SELECT COUNT(*) AS n FROM things")[0]["n"] == 51
    again.close()


def test_another_process_that_has_the_file_open_is_told_and_nothing_is_lost(
        database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite_module, "_WAIT", 0.2)
    fill(database, 10, 100)
    code = f"import sqlite3; db = sqlite3.connect({str(database.path)!r}); " \
           "print(db.execute('SELECT COUNT(*) FROM things').fetchone()[0], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"10\n"
        with pytest.raises(StorageError, match="another process has the file open"):
            database.rewrite()
        fill_one = database.submit(lambda db: db.execute("INSERT INTO things (name) VALUES ('more')").rowcount)
        assert fill_one.result() == 1
        other.communicate(b"\n")
    assert not Path(f"{database.path}{REWRITTEN}").exists()
    database.rewrite()
    assert database.query("SELECT COUNT(*) AS n FROM things")[0]["n"] == 11


def test_a_copy_that_fails_changes_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(database, 10, 100)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rewrite_module, "_sync", full)
    with pytest.raises(StorageError, match="No space left"):
        database.rewrite()
    assert not Path(f"{database.path}{REWRITTEN}").exists()
    assert database.query("SELECT COUNT(*) AS n FROM things")[0]["n"] == 10
    assert not database._db.execute("SELECT name FROM temp.sqlite_master").fetchall()


CHILD = """
import sys, threading
from openclaw_rl.storage.database import Database
database = Database(sys.argv[1])
def write():
    i = 0
    while True:
        with database.transaction() as db:
            db.execute("INSERT INTO things (name) VALUES (?)", (f"t{i}",))
        print(i, flush=True)
        i += 1
threading.Thread(target=write, daemon=True).start()
while True:
    database.rewrite()
"""


@pytest.mark.parametrize("seconds", [0.3, 0.45, 0.6])
def test_kill_9_while_it_is_rewritten_loses_nothing(database: Database, seconds: float) -> None:
    fill(database, 500, 2000)
    database.close()
    child = subprocess.Popen([sys.executable, "-c", CHILD, database.path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    lines = child.stdout.read().splitlines(keepends=True)
    child.wait()
    last = int([line for line in lines if line.endswith("\n")][-1])
    again = Database(database.path, schema=SCHEMA)
    there = {row["name"] for row in again.query("SELECT name FROM things")}
    again.close()
    assert again.problems == [] and {f"n{i}" for i in range(500)} < there
    assert {f"t{i}" for i in range(last + 1)} <= there
    assert not Path(f"{database.path}{REWRITTEN}").exists()


async def test_the_loop_is_free_while_250_megabytes_are_rewritten(database: Database) -> None:
    for _ in range(10):
        fill_one = await database.run(lambda db: db.executemany(
            "INSERT INTO things (data) VALUES (?)", [(os.urandom(2**20),) for _ in range(25)]).rowcount)
        assert fill_one == 25
    assert size(database.path.parent) > 250 * 2**20
    written = 0
    with held_at_most(0.05):
        rewriting = asyncio.create_task(asyncio.to_thread(database.rewrite))
        while not rewriting.done():
            await database.run(lambda db: db.execute("INSERT INTO things (data) VALUES ('small')"))
            written += 1
            await asyncio.sleep(0.005)
        await rewriting
    assert written > 1, "turns are recorded meanwhile"
    assert database.query("SELECT COUNT(*) AS n FROM things")[0]["n"] == 250 + written
