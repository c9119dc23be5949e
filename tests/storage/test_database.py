"""The file below outbox and inbox: transactions, damage, a full disk, a killed process."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.storage import database as store_module
from openclaw_rl.storage import upkeep
from openclaw_rl.storage.database import FORMAT, KEEP_DAMAGED, Database, StorageError
from openclaw_rl.storage.outbox import Outbox
from tests.support.waiting import until

SCHEMA = "CREATE TABLE IF NOT EXISTS things (id INTEGER PRIMARY KEY, data BLOB);"


@pytest.fixture(params=["group", "strict"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    store = Database(tmp_path / "new folder" / "state.db", durability=request.param, schema=SCHEMA)
    yield store
    store.close()


def count(store: Database) -> int:
    return store.query("SELECT COUNT(*) AS n FROM things")[0]["n"]


def test_a_transaction_is_all_or_nothing(store: Database) -> None:
    called = []
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
        store.after_commit(lambda: called.append(count(store)))
        assert count(store) == 1 and called == []  # a query within the transaction sees it
        other = []
        thread = threading.Thread(target=lambda: other.append(count(store)))
        thread.start()
        thread.join()
        assert other == [0]  # other threads don't, and don't wait
    assert count(store) == 1 and called == [1]
    with pytest.raises(KeyError), store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('b')")
        store.after_commit(lambda: called.append("never"))
        raise KeyError
    with pytest.raises(sqlite3.IntegrityError), store.transaction() as db:  # the caller's fault stays what it is
        db.execute("INSERT INTO things (id) VALUES (1)")
    assert count(store) == 1 and called == [1]


def test_a_transaction_within_another_is_a_fault_that_leaves_the_outer_one_alone(store: Database) -> None:
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
        with pytest.raises(RuntimeError, match="hand its connection on"), store.transaction():
            pass
    assert count(store) == 1


def test_only_strict_mode_waits_for_the_disk_at_each_commit(store: Database) -> None:
    [(level,)] = store._db.execute("PRAGMA synchronous").fetchall()
    assert level == {"group": 1, "strict": 2}[store.durability]


def test_threads_take_turns(store: Database) -> None:
    def work() -> None:
        for _ in range(50):
            with store.transaction() as db:
                n = db.execute("SELECT COUNT(*) FROM things").fetchone()[0]
                db.execute("INSERT INTO things (id) VALUES (?)", (n,))  # collides unless transactions are serial

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(store) == 200


def test_close_keeps_everything_and_may_be_repeated(store: Database) -> None:
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
    store.close()
    store.close()
    again = Database(store.path, store.durability, SCHEMA)
    assert count(again) == 1 and again.problems == []
    again.close()


def test_group_mode_syncs_behind_the_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (real(fd), synced.set()))
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    time.sleep(2 * upkeep.GROUP_SECONDS)
    synced.clear()
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
    assert synced.wait(5)
    synced.clear()
    assert not synced.wait(3 * upkeep.GROUP_SECONDS)  # nothing new, nothing to sync
    store.close()


@pytest.mark.parametrize("damage", ["not a database", "a page of it", "cut short"])
def test_a_damaged_file_is_set_aside_and_reported(tmp_path: Path, damage: str,
                                                  caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.db"
    store = Database(path, schema=SCHEMA)
    with store.transaction() as db:
        db.executemany("INSERT INTO things (data) VALUES (?)", [(b"x" * 3000,) for _ in range(100)])
    store.close()
    size = path.stat().st_size
    if damage == "not a database":
        path.write_bytes(b"what is this?" * 1000)
    elif damage == "cut short":
        os.truncate(path, size // 2)
    else:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(8 * 4096))
    store = Database(path, schema=SCHEMA)
    assert count(store) == 0
    [problem] = store.problems
    [aside] = [p for p in tmp_path.glob("state.db.corrupt-*") if not p.name.endswith(("-wal", "-shm"))]
    assert str(aside) in problem and problem in caplog.text and "\n" not in problem
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('works')")
    store.close()


@pytest.mark.parametrize("name", [b"things", b"quoted"])
def test_damage_whose_message_is_no_utf_8_is_set_aside(tmp_path: Path, name: bytes) -> None:
    """SQLite quotes the damaged bytes of a name in its message, which Python can't decode then."""
    path = tmp_path / "state.db"
    schema = SCHEMA + "CREATE INDEX IF NOT EXISTS quoted ON things (data);"
    Database(path, schema=schema).close()
    path.write_bytes(path.read_bytes().replace(name + b"things", b"\xff" + name[1:] + b"things"))  # type, name, table
    with pytest.raises(UnicodeDecodeError), contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    store = Database(path, schema=schema)
    assert count(store) == 0 and len(store.problems) == 1 and "\n" not in store.problems[0]
    assert len([file for file in tmp_path.glob("state.db.corrupt-*") if not file.name.endswith(("-wal", "-shm"))]) == 1
    store.close()


def test_damage_that_shows_later_is_an_error_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Database(path, schema=SCHEMA)
    with store.transaction() as db:
        db.executemany("INSERT INTO things (data) VALUES (?)", [(b"x" * 3000,) for _ in range(2000)])
    store.close()
    store = Database(path, schema=SCHEMA)
    with path.open("r+b") as file:
        file.seek(8 * 4096)
        file.write(b"\xff" * (path.stat().st_size - 9 * 4096))
    with pytest.raises(StorageError, match="damaged; a restart") as caught:
        for _ in range(3):
            store.query("SELECT SUM(LENGTH(data)), MAX(data) FROM things")
            with store.transaction() as db:
                db.execute("UPDATE things SET data = 'x'")
    assert caught.value.reason == "STORE_UNUSABLE"
    assert ("state_damaged", caught.value.message) in store.alarms()
    store.close()


def test_damage_in_use_ends_the_process_and_the_next_start_looks_thoroughly(tmp_path: Path) -> None:
    """Of damage that a quick check misses: an index that lacks what its table has."""
    path = tmp_path / "state.db"
    schema = SCHEMA + "CREATE INDEX IF NOT EXISTS by_data ON things (data);"
    Database(path, schema=schema).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'by_data'").fetchone()[0]
    empty = path.read_bytes()[(page - 1) * 4096:page * 4096]
    store = Database(path, schema=schema)
    with store.transaction() as db:
        db.executemany("INSERT INTO things (data) VALUES (?)", [(b"x",), (b"y",)])
    store.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(empty)
    told: list[str] = []
    with activated(Ambient(give_up=told.append)):
        store = Database(path, schema=schema)
        with pytest.raises(StorageError), store.transaction() as db:
            db.execute("DELETE FROM things WHERE id = 1")
    assert not store.problems and len(told) == 1 and f"{path}: it is damaged" in told[0]
    store.close()
    store = Database(path, schema=schema)
    assert len(store.problems) == 1 and "was damaged" in store.problems[0] and count(store) == 2
    with store.transaction() as db:
        db.execute("DELETE FROM things WHERE id = 1")
    store.close()
    assert not Database(path, schema=schema).problems, "the suspicion is gone"


def _as_if_killed(store: Database, folder: Path) -> Path:
    """The store's files as a kill would leave them now."""
    folder.mkdir()
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{store.path}{suffix}", folder)
    return folder / store.path.name


@pytest.mark.parametrize("idle", [True, False])
def test_a_header_that_is_overwritten_in_use_is_written_anew(tmp_path: Path, idle: bool) -> None:
    """SQLite takes the first page from memory meanwhile: what would be missed at the next start is told and mended."""
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    with store.transaction() as db:
        db.executemany("INSERT INTO things (data) VALUES (?)", [(b"x" * 3000,) for _ in range(100)])
    store.close()
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    with store.path.open("r+b") as file:
        file.write(b"garbage!" * 512)
    if not idle:
        with store.transaction() as db:
            db.execute("UPDATE things SET data = 'changed' WHERE id = 7")
    def told() -> list[str]:
        return [text for name, text in store.alarms() if name == "state_damaged" and text]

    until(lambda: bool(told()), 120)
    [message] = told()
    assert "its header was overwritten while it was in use" in message and "nothing is lost" in message
    again = Database(_as_if_killed(store, tmp_path / "copy"), schema=SCHEMA)
    assert again.problems == [] and count(again) == 100
    again.close()
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('more')")
    store.rewrite()  # whose header is that of another file
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('more')")
    assert count(store) == 102 and told() == [message]
    store.close()
    again = Database(tmp_path / "state.db", schema=SCHEMA)
    assert again.problems == [] and count(again) == 102
    again.close()


def test_a_reader_that_meets_a_lost_header_ends_no_process(tmp_path: Path) -> None:
    """It is read from the file once its cache is out of date, and is about to be mended."""
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
    store.close()
    told: list[str] = []
    with activated(Ambient(give_up=told.append)):
        store = Database(tmp_path / "state.db", schema=SCHEMA)
        assert count(store) == 1
        with store._lock:  # the mending waits
            with store.path.open("r+b") as file:
                file.write(b"garbage!" * 512)
            with store.transaction() as db:
                db.execute("UPDATE things SET data = 'b'")
            with pytest.raises(StorageError, match="is damaged"):
                count(store)
        until(lambda: store._upkeep.mended, 120)
        assert count(store) == 1 and not told
    store.close()
    assert not Database(tmp_path / "state.db", schema=SCHEMA).problems


def test_a_header_that_is_in_no_memory_any_more_is_damage(tmp_path: Path) -> None:
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    store.close()
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    with store._lock, store._upkeep.lock:
        store.path.write_bytes(b"garbage!" * (store.path.stat().st_size // 8))
        store._db.close()
        store._db = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    until(lambda: any("is damaged" in text for name, text in store.alarms() if name == "state_damaged"), 120)
    store.close()


def test_a_read_only_file_is_an_alarm_as_long_as_it_is(store: Database) -> None:
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(StorageError, match="read-only") as error, store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
    assert ("state_unusable", error.value.message) in store.alarms()
    store._db.execute("PRAGMA query_only = OFF")
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
    assert not any(message for _, message in store.alarms())


def test_a_log_that_the_disk_does_not_take_is_an_alarm_until_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                     ) -> None:
    broken = threading.Event()
    broken.set()
    sync = os.fdatasync

    def fdatasync(file: int) -> None:
        if broken.is_set():
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        sync(file)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(upkeep, "RETRY_SECONDS", 0.01)
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES ('a')")
    until(lambda: any("Read-only file system" in message for _, message in store.alarms()))
    broken.clear()
    until(lambda: not any(message for _, message in store.alarms()))  # without another commit
    store.close()


def test_a_full_file_is_an_error_that_passes(store: Database) -> None:
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 5}")
    outbox_error = None
    for _ in range(20):
        try:
            with store.transaction() as db:
                db.execute("INSERT INTO things (data) VALUES (?)", (b"x" * 4000,))
        except StorageError as error:
            outbox_error = error
            break
    assert outbox_error is not None and outbox_error.reason == "DISK_FULL" and outbox_error.retryable
    assert str(store.path) in str(outbox_error) and "free some space" in str(outbox_error)
    kept = count(store)
    store._db.execute("PRAGMA max_page_count = 100000")
    with store.transaction() as db:
        db.execute("INSERT INTO things (data) VALUES (?)", (b"x" * 4000,))
    assert count(store) == kept + 1


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounts a small file system: needs root")
def test_a_really_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        store = Database(disk / "state.db")
        outbox = Outbox(store, "turns")
        put = 0
        with pytest.raises(StorageError) as caught:
            for put in range(10_000):
                outbox.put(f"t{put}", b"x" * 5000)
        assert caught.value.reason == "DISK_FULL" and outbox.stats().pending == put > 20
        assert len(outbox.window(0, 10_000, 2**30)) == put
        outbox.set_aside([], "a transaction that changes nothing works")
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        outbox.put("afterwards", b"x" * 5000)
        assert outbox.stats().pending == put + 1
        store.close()
        store = Database(disk / "state.db")
        assert Outbox(store, "turns").stats().pending == put + 1 and store.problems == []
        store.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_place_that_cant_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        Database(tmp_path / "file" / "state.db")
    assert str(tmp_path / "file" / "state.db") in str(caught.value)


def test_a_folder_in_the_files_place_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    (tmp_path / "state.db" / "letter.txt").write_text("mine")
    store = Database(tmp_path / "state.db")
    [aside] = tmp_path.glob("state.db.corrupt-*")
    assert (aside / "letter.txt").read_text() == "mine" and str(aside) in store.problems[0]
    store.close()


def test_a_file_of_a_newer_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Database(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == FORMAT
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(StorageError, match=f"newer release .format {FORMAT + 1}.*left as it is") as caught:
        Database(path)
    assert caught.value.reason == "STORE_NEWER"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_newer_format_that_stands_in_the_log_only_is_refused_too(tmp_path: Path) -> None:
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    with contextlib.closing(sqlite3.connect(store.path)) as db:
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
        copy = tmp_path / "copy"
        copy.mkdir()
        for file in tmp_path.glob("state.db*"):
            shutil.copy(file, copy)
    store.close()
    with pytest.raises(StorageError, match="newer release"):
        Database(copy / "state.db")


def test_a_file_of_another_program_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute("PRAGMA application_id = 1234")
    store = Database(path, schema=SCHEMA)
    assert "another program" in store.problems[0]
    assert len(list(tmp_path.glob("state.db.corrupt-*"))) == 1
    assert not store.query("SELECT name FROM sqlite_master WHERE name = 'bookmarks'")
    store.close()


def test_damaged_files_are_kept_in_bounds(tmp_path: Path) -> None:
    for number in range(KEEP_DAMAGED):
        (tmp_path / f"state.db.corrupt-2025010{number}T000000").write_text("old")
    (tmp_path / "state.db").write_text("no database" * 1000)
    Database(tmp_path / "state.db").close()
    there = sorted(path.name for path in tmp_path.glob("state.db.corrupt-*"))
    assert len(there) == KEEP_DAMAGED and "state.db.corrupt-20250100T000000" not in there


def test_the_log_stays_small_while_commits_never_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SOFT_WAL", 2**18)
    monkeypatch.setattr(upkeep, "HARD_WAL", 2**20)
    monkeypatch.setattr(upkeep, "GROUP_SECONDS", 0.01)
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    largest = written = 0
    while written < 120 * 2**20:
        with store.transaction() as db:
            db.execute("INSERT OR REPLACE INTO things (id, data) VALUES (1, ?)", (b"x" * 40_000,))
        written += 40_000
        largest = max(largest, os.path.getsize(f"{store.path}-wal"))
    # The writer never waits, so a busy machine lets the log outgrow its bound by what is written meanwhile; without the
    # bound it would be all of the 120 MB.
    assert largest < 60 * 2**20
    store.close()
    assert (tmp_path / "state.db").stat().st_size < 2**20


def test_a_file_whose_backlog_is_gone_is_opened_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FREE_PAGES", 32)
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    with store.transaction() as db:
        db.executemany("INSERT INTO things (data) VALUES (?)", [(b"x" * 4000,) for _ in range(1000)])
    with store.transaction() as db:
        db.execute("DELETE FROM things WHERE id > 2")
    store.close()
    assert (tmp_path / "state.db").stat().st_size > 2**20
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    assert (tmp_path / "state.db").stat().st_size < 2**17 and count(store) == 2
    store.close()


CHILD = """
import sys
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.database import Database
outbox = Outbox(Database(sys.argv[1]), "turns")
i = 0
while True:
    outbox.put(f"t{i}", b"x" * 2000)
    print(i, flush=True)
    i += 1
"""


def test_kill_9_loses_nothing_that_was_put(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, tmp_path / "state.db"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(500)]
    os.kill(child.pid, signal.SIGKILL)
    lines += child.stdout.readlines()
    last = int(lines[-1] if lines[-1].endswith("\n") else lines[-2])
    child.wait()
    store = Database(tmp_path / "state.db")
    outbox = Outbox(store, "turns")
    ids = [row.id for row in outbox.window(0, 10**6, 2**30)]
    assert ids[:last + 1] == [f"t{i}" for i in range(last + 1)] and len(ids) <= last + 2
    assert outbox.stats().pending == len(ids) and store.problems == []
    store.close()
