"""What does not belong into the home folder is no obstacle, and is never deleted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from openclaw_rl.config import EMBEDDED_MODEL, JournalConfig
from openclaw_rl.launch.status import report
from openclaw_rl.models import prepare
from openclaw_rl.observability.journal import Journal
from openclaw_rl.runtime.home import Home, RunRecord, make_way, read_record, write_record
from openclaw_rl.runtime.lock import only_process


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def foreign_folder(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "letter.txt").write_text("mine")


def kept(path: Path) -> bool:
    [aside] = path.parent.glob(f"{path.name}.foreign-*")
    return (aside / "letter.txt").read_text() == "mine"


def test_a_folder_in_the_place_of_a_record(home: Home) -> None:
    foreign_folder(home.run / "trainer.json")
    assert read_record(home, "trainer") is None
    record = RunRecord("trainer", 7, "127.0.0.1:1")
    write_record(home, record)
    assert read_record(home, "trainer") == record and kept(home.run / "trainer.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b'{"pid": []}', b'{"pid": 1}'])
def test_records_that_cant_be_read_are_none(home: Home, content: bytes) -> None:
    (home.run / "trainer.json").write_bytes(content)
    assert read_record(home, "trainer") is None
    assert report(home)["trainer"].state == "STOPPED"


def test_a_folder_in_the_place_of_a_lock(home: Home) -> None:
    foreign_folder(home.component("trainer") / "process.lock")
    with only_process(home, "trainer"):
        assert kept(home.component("trainer") / "process.lock")


def test_a_folder_in_the_place_of_the_journal(home: Home) -> None:
    path = home.logs / f"rl_trace_{time.strftime('%Y%m%d')}.log"
    foreign_folder(path)
    journal = Journal(home.logs, JournalConfig())
    journal.action("s", 1, "MAIN", "hello")
    journal.flush()
    journal.close()
    assert "hello" in path.read_text() and kept(path)


def test_what_stands_in_the_models_place_is_moved(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home.models / EMBEDDED_MODEL
    folder.write_text("mine")
    prepare._set_aside(folder)
    [aside] = home.models.glob(f"{EMBEDDED_MODEL}.damaged-*")
    assert aside.read_text() == "mine" and not folder.exists()


def test_a_file_is_not_in_the_way(home: Home) -> None:
    (home.run / "x.json").write_text("ours")
    make_way(home.run / "x.json")
    make_way(home.run / "missing.json")
    assert [path.name for path in home.run.iterdir()] == ["x.json"]
