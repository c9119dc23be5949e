"""A write-ahead log whose end is gone: SQLite is content with it, a person must hear of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox

_CHILD = """
import sys, time
from openclaw_rl.storage import upkeep
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
upkeep.GROUP_SECONDS = 1000.0  # no checkpoint of its own
outbox = Outbox(Database(sys.argv[1]), "turns")
for i in range(50):
    outbox.put(f"t{i}", b"x" * 3000)
print("ready", flush=True)
time.sleep(1000)
"""


def _cut(wal: Path) -> None:
    os.truncate(wal, wal.stat().st_size - 20_000)


def _flip(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.seek(-30_000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def _empty(wal: Path) -> None:
    os.truncate(wal, 0)


def _overwrite_header(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.write(bytes(range(7, 39)))


def _cut_header(wal: Path) -> None:
    os.truncate(wal, 20)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose process was killed with everything in the log."""
    path = tmp_path / "state.db"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    return path


def test_a_sound_log_is_no_problem(killed: Path) -> None:
    store = Database(killed)
    assert store.problems == [] and Outbox(store, "turns").stats().pending == 50
    store.close()
    store = Database(killed)
    assert store.problems == []
    store.close()


@pytest.mark.parametrize("damage", [_cut, _flip, _empty, _overwrite_header, _cut_header, os.unlink])
def test_a_log_whose_end_is_gone_is_told_once(killed: Path, damage: Callable[[Path], None]) -> None:
    damage(Path(f"{killed}-wal"))
    store = Database(killed)
    assert len(store.problems) == 1 and "its write-ahead log was damaged or lost" in store.problems[0]
    outbox = Outbox(store, "turns")
    assert outbox.stats().pending < 50
    outbox.put("new", b"goes on")
    store.close()
    store = Database(killed)
    assert store.problems == [] and Outbox(store, "turns").window(0, 1000, 2**30)[-1].id == "new"
    store.close()


def test_an_index_of_an_earlier_log_is_no_loss(killed: Path, tmp_path: Path) -> None:
    """A power loss leaves the log as it was synced, and any earlier state of the index, which is not."""
    index = Path(f"{killed}-shm").read_bytes()
    store = Database(killed)
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    Outbox(store, "turns").put("new", b"of the next log")
    left = tmp_path / "left"
    left.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{killed}{suffix}", left)
    (left / "state.db-shm").write_bytes(index)
    store.close()
    store = Database(left / "state.db")
    assert store.problems == [] and Outbox(store, "turns").stats().pending == 51
    store.close()


def test_the_begin_of_a_log_hides_what_was_copied_of_its_end(tmp_path: Path) -> None:
    store = Database(tmp_path / "state.db")
    outbox = Outbox(store, "turns")
    for i in range(50):
        outbox.put(f"t{i}", b"x" * 3000)
    _, frames, copied = store._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert frames == copied > 50
    for name in ("sound", "flipped", "empty"):
        (tmp_path / name).mkdir()
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{store.path}{suffix}", tmp_path / name)
    store.close()
    _flip(tmp_path / "flipped" / "state.db-wal")
    _empty(tmp_path / "empty" / "state.db-wal")
    for name in ("sound", "empty"):
        again = Database(tmp_path / name / "state.db")
        assert again.problems == [] and Outbox(again, "turns").stats().pending == 50
        again.close()
    again = Database(tmp_path / "flipped" / "state.db")
    assert "its write-ahead log was damaged or lost" in again.problems[0]
    again.close()
