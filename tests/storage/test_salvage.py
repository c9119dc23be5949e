"""What is taken over from a damaged file into the one that is begun in its place."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from openclaw_rl.storage import opening
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.salvage import ALL, SALVAGED, Recovery

PAGE = 4096
SCHEMA = """
CREATE TABLE IF NOT EXISTS turns (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, payload BLOB);
CREATE INDEX IF NOT EXISTS states ON turns (state);
CREATE TABLE IF NOT EXISTS versions (version INTEGER PRIMARY KEY, turn TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
TURNS = 2_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with rows of many pages, some of which overflow, and three messages that wait."""
    store = Database(tmp_path / "state.db", schema=SCHEMA)
    outbox = Outbox(store, "messages")
    with store.transaction() as db:
        db.executemany("INSERT INTO turns VALUES (?, ?, ?, ?)", (
            (n, f"turn {n}", "waits" if n % 2 else "done", bytes([n % 256]) * (9000 if n % 100 == 0 else 300))
            for n in range(1, TURNS + 1)))
        db.executemany("INSERT INTO versions VALUES (?, ?)", ((n, f"turn {n} {'x' * 200}") for n in range(1, 201)))
        db.executemany("INSERT INTO counters VALUES (?, ?)", ((f"count {n}", n) for n in range(50)))
    for n in range(3):
        outbox.put(f"message {n}", b"waits")
    store.close()
    return tmp_path / "state.db"


def _pages(path: Path, name: str, kind: str) -> list[int]:
    """Numbers of the pages of a table or index, in the order of its keys."""
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY path", (name, kind))]


def _overwrite(path: Path, pages: list[int]) -> None:
    garbage = random.Random(1)
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE)
            file.write(garbage.randbytes(PAGE))


def _opened(path: Path, recovery: Recovery = ALL) -> tuple[Database, str]:
    store = Database(path, schema=SCHEMA, recovery=recovery)
    [problem] = store.problems
    assert len([file for file in path.parent.glob("state.db.corrupt-*") if file.suffix not in ("-wal", "-shm")]) == 1
    return store, problem


def _turns(store: Database) -> set[int]:
    rows = store.query("SELECT seq, id, state, payload FROM turns")
    for seq, id, state, payload in rows:
        assert (id, state, payload[:1]) == (f"turn {seq}", "waits" if seq % 2 else "done", bytes([seq % 256]))
    return {row["seq"] for row in rows}


@pytest.mark.parametrize("name", ["states", "sqlite_autoindex_turns_1"])
def test_a_damaged_index_loses_nothing(path: Path, name: str) -> None:
    _overwrite(path, _pages(path, name, "leaf")[:2])
    store, problem = _opened(path)
    assert problem.endswith(f"all that was in it, {TURNS + 200 + 50 + 3} rows, was taken over")
    assert _turns(store) == set(range(1, TURNS + 1))
    assert [row.id for row in Outbox(store, "messages").window(0, 10, 2**20)] == ["message 0", "message 1", "message 2"]
    assert store.query("SELECT SUM(value) AS sum FROM counters")[0]["sum"] == sum(range(50))
    assert store.query("SELECT name FROM sqlite_master WHERE name = 'states'")  # the index, too
    store.close()
    again = Database(path, schema=SCHEMA)
    assert again.problems == []
    again.close()


@pytest.mark.parametrize("choose", [lambda leaves: [leaves[0]], lambda leaves: [leaves[-1]],
                                    lambda leaves: [leaves[3], leaves[len(leaves) // 2], leaves[-1]]])
def test_damaged_pages_lose_their_rows_and_no_other(path: Path, choose: Callable[[list[int]], list[int]]) -> None:
    damaged = choose(_pages(path, "turns", "leaf"))
    _overwrite(path, damaged)
    store, problem = _opened(path)
    lost = TURNS - len(_turns(store))
    assert 0 < lost <= len(damaged) * PAGE // 300
    assert f"{TURNS - lost + 200 + 50 + 3} rows that were in it were taken over" in problem
    assert problem.endswith(f"lost are, by table, {lost} of turns")  # counted by its index
    store.close()


def test_a_damaged_overflow_page_loses_its_row(path: Path) -> None:
    _overwrite(path, _pages(path, "turns", "overflow")[:1])
    store, problem = _opened(path)
    assert TURNS - len(_turns(store)) == 1 and problem.endswith("lost are, by table, 1 of turns")
    store.close()


def test_damage_anywhere_loses_little_or_all_and_is_told(path: Path, tmp_path: Path) -> None:
    """4 KiB of garbage at random places: rows are as they were, or missing and told."""
    sound, chance = path.read_bytes(), random.Random(7)
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        at = chance.randrange(PAGE, len(sound))
        (folder / "state.db").write_bytes((sound[:at] + chance.randbytes(PAGE) + sound[at + PAGE:])[:len(sound)])
        store = Database(folder / "state.db", schema=SCHEMA)
        missing = TURNS - len(_turns(store))
        assert missing == 0 or (store.problems and "of turns" in store.problems[0]), (at, missing, store.problems)
        store.close()


RECOVERY = Recovery(whole=["versions", "counters"], alone={"turns": "state = 'waits'"},
                    repair=["INSERT OR IGNORE INTO counters VALUES ('repaired', 1)"])


def test_tables_that_refer_to_each_other_are_taken_over_whole_or_not_at_all(path: Path) -> None:
    _overwrite(path, _pages(path, "versions", "leaf")[1:2])
    store, problem = _opened(path, RECOVERY)
    assert _turns(store) == set(range(1, TURNS + 1, 2))  # those that wait
    assert store.query("SELECT * FROM versions") == []
    assert [tuple(row) for row in store.query("SELECT * FROM counters")] == [("repaired", 1)]
    assert Outbox(store, "messages").pending == 3
    assert f"lost are, by table, {TURNS // 2} of turns, " in problem and problem.endswith("of versions, 50 of counters")
    store.close()


def test_a_damaged_row_of_others_leaves_these_whole(path: Path) -> None:
    _overwrite(path, _pages(path, "turns", "leaf")[1:2])
    store, _ = _opened(path, RECOVERY)
    assert 0 < TURNS - len(_turns(store)) < 30 and len(store.query("SELECT * FROM versions")) == 200
    assert store.query("SELECT value FROM counters WHERE name = 'repaired'")
    store.close()


def test_a_file_without_its_first_page_gives_nothing(path: Path) -> None:
    _overwrite(path, [1])
    store, problem = _opened(path)
    assert "nothing that was in it could be taken over (file is not a database)" in problem
    assert Outbox(store, "messages").pending == 0
    store.close()


def test_who_is_killed_while_it_is_taken_over_begins_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> Path:
        raise Killed

    _overwrite(path, _pages(path, "states", "leaf")[:1])
    with monkeypatch.context() as patch:
        patch.setattr(opening, "move_aside", killed)
        with pytest.raises(Killed):
            Database(path, schema=SCHEMA)
    assert Path(f"{path}{SALVAGED}").exists()
    store, problem = _opened(path)
    assert _turns(store) == set(range(1, TURNS + 1)) and "was taken over" in problem
    assert not Path(f"{path}{SALVAGED}").exists()
    store.close()
