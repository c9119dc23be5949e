"""The files of spans: bounded, forgetful, and nothing that a damaged one could break."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.observability import names
from openclaw_rl.observability.span_reader import SpanReader
from openclaw_rl.observability.span_store import SpanStore
from openclaw_rl.runtime.home import Home


def span(number: int, *, turn: str = "", session: str = "", start: int | None = None, links: tuple[str, ...] = (),
         **attributes: Any) -> dict[str, Any]:
    values = {names.TURN: turn, names.SESSION: session, **attributes}
    return {"trace": f"{number:032x}", "span": f"{number:016x}", "parent": "", "service": "s", "name": "n", "kind": 1,
            "start": number if start is None else start, "end": number, "status": "", "message": "", "events": [],
            "attributes": {key: value for key, value in values.items() if value},
            "links": [{"trace": "0", "span": "0", "attributes": {names.TURN: turn}} for turn in links]}


def test_only_the_newest_stay(tmp_path: Path) -> None:
    store = SpanStore(tmp_path / "x.db", 1000)
    for begin in range(0, 5000, 500):
        store.add([span(i, turn=f"t{i}") for i in range(begin, begin + 500)])
    assert 1000 <= store.count() <= 2000
    assert store.of_turn("t4999") and not store.of_turn("t0")
    store.close()
    reopened = SpanStore(tmp_path / "x.db", 10)
    assert reopened.count() == 10
    reopened.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to be one" * 50, b"SQLite format 3\0" * 99])
def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.db"
    file.write_bytes(content)
    store = SpanStore(file, 1000)
    store.add([span(1)])
    assert store.count() == 1
    (aside,) = tmp_path.glob("x.db.damaged-*")
    assert aside.read_bytes() == content
    assert str(aside) in store.problems[0]
    store.close()


def test_one_damaged_file_is_kept(tmp_path: Path) -> None:
    for time in (1, 2):
        (tmp_path / f"x.db.damaged-{time}").write_text("old")
        (tmp_path / f"x.db.damaged-{time}-wal").write_text("old")
    (tmp_path / "x.db").write_bytes(b"not a database" * 50)
    SpanStore(tmp_path / "x.db", 1000).close()
    (aside,) = tmp_path.glob("x.db.damaged-*")
    assert aside.read_bytes() == b"not a database" * 50


def test_a_file_of_another_layout_is_set_aside(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.db") as db:
        db.execute("PRAGMA user_version = 99")
    store = SpanStore(tmp_path / "x.db", 1000)
    assert "layout 99" in store.problems[0]
    store.close()


def test_what_is_forgotten_is_gone_from_the_disk(tmp_path: Path) -> None:
    store = SpanStore(tmp_path / "x.db", 1000)
    secret = {"gen_ai.input.messages": "my secret words"}
    store.add([span(1, turn="a", session="ann-5581", **secret), span(2, turn="b", session="other"), span(3, turn="c"),
               span(4, session="ann-5581"), span(5, links=("a", "b", "c"), **{names.TRAINED: 4})])
    assert store.forget("ann-5581", ["c"]) == 3
    assert store.count() == 2
    assert not store.of_turn("a") and not store.of_turn("c") and store.of_turn("b")
    store.add([span(6, turn="a2", session="ann-5581")])
    assert store.count() == 2, "it began before the session was forgotten"
    for file in tmp_path.iterdir():
        assert not any(text in file.read_bytes() for text in (b"my secret words", b"ann-5581"))
    store.add([span(7, turn="a3", session="ann-5581", start=2**62)])
    assert store.count() == 3, "the session goes on"
    store.close()
    (step,) = [s for s in _read(tmp_path / "x.db") if s["attributes"].get(names.TRAINED) == 4]
    assert [link["attributes"][names.TURN] for link in step["links"]] == ["b"]
    reopened = SpanStore(tmp_path / "x.db", 1000)
    reopened.add([span(8, session="ann-5581")])
    assert reopened.count() == 3, "known also after a restart"
    reopened.close()


def _read(file: Path) -> list[dict[str, Any]]:
    import orjson

    with sqlite3.connect(file) as db:
        return [orjson.loads(row[0]) for row in db.execute("SELECT payload FROM spans")]


def test_a_reader_puts_the_four_together_while_they_write(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert SpanReader(home).empty
    policy = SpanStore(tmp_path / "telemetry/policy_server.db", 1000)
    trainer = SpanStore(tmp_path / "telemetry/trainer.db", 1000)
    policy.add([span(1, turn="a", session="s", start=5), span(2, turn="b", session="s", start=7)])
    trainer.add([{**span(1, start=6), "span": "f" * 16, "attributes": {names.TURN: "a", names.TRAINED: 3}}])
    (tmp_path / "telemetry/prm_judge.db").write_bytes(b"nonsense" * 1000)
    reader = SpanReader(home)
    assert [s["start"] for s in reader.turn("a")] == [5, 6]
    assert [s["start"] for s in reader.session("s")] == [5, 6, 7]
    assert [s["start"] for s in reader.trained(3)] == [5, 6]
    assert reader.turn("unknown") == []
    assert len(reader.problems) == 1 and "prm_judge.db" in reader.problems[0]
    policy.close()
    trainer.close()
