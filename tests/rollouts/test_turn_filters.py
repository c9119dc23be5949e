"""ListTurns' filters: class, version, text; exact, and quick with 200,000 turns."""

from __future__ import annotations

import time
from typing import Any

import pytest

from openclaw_rl.rollouts.tracking import tables, turn_filters, views
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.environment_pb2 import ListTurnsRequest
from tests.rollouts.harness import Harness, turn, user

MAIN, SIDE, UNKNOWN = turn_pb2.TURN_CLASS_MAIN, turn_pb2.TURN_CLASS_SIDE, turn_pb2.TURN_CLASS_UNKNOWN


def listed(harness: Harness, **fields: Any) -> list[str]:
    """Ids of all pages."""
    found: list[str] = []
    token = ""
    while True:
        page = views.turns(harness.store, ListTurnsRequest(page_token=token, **fields))
        found += [summary.turn_id for summary in page.turns]
        if not (token := page.next_page_token):
            return found


def test_by_class_and_version(harness: Harness) -> None:
    harness.tell(*(turn(f"t{i}", [user(f"u{i}")], "r", session_id=f"s{i}", policy_version=i % 3,
                     declared_type=("main", "side")[i % 2]) for i in range(6)))
    assert listed(harness, turn_classes=[SIDE]) == ["t5", "t3", "t1"]
    assert listed(harness, turn_classes=[MAIN, SIDE], page_size=2) == ["t5", "t4", "t3", "t2", "t1", "t0"]
    assert listed(harness, turn_classes=[UNKNOWN]) == []
    assert listed(harness, policy_version=0) == ["t3", "t0"]
    assert listed(harness, policy_version=0, turn_classes=[MAIN]) == ["t0"]
    assert listed(harness, policy_version=2, session_id="s5", page_size=1) == ["t5"]
    assert listed(harness, policy_version=7) == []


@pytest.mark.parametrize(("asked", "found"), [
    ("HELLO", ["t1"]), ("ello w", ["t1"]), ("50%", ["t2"]), ("%", ["t2"]), ("_", ["t3"]), ("*", ["t4"]),
    ("[a]?", ["t4"]), ("]", ["t4"]), ("^", ["t4"]), ("你好", ["t5"]), ("привет", ["t6"]), ("\\", ["t7"]),
    ("r?", []), ("' OR 1=1", []),
    ("DONE", ["t8"])])
def test_by_text(harness: Harness, asked: str, found: list[str]) -> None:
    texts = ["Hello World", "50% off", "snake_case", "^*[a]?", "他说你好吗", "ПРИВЕТ", "C:\\x", "u"]
    harness.tell(*(turn(f"t{i}", [user(text)], "done" if text == "u" else "r", session_id=f"s{i}")
                for i, text in enumerate(texts, 1)))
    assert listed(harness, text=asked) == found


@pytest.mark.parametrize(("fields", "message"), [
    ({"turn_classes": [9]}, "turn_classes: 9"), ({"policy_version": -1}, "policy_version: -1"),
    ({"text": "x" * 201}, "at most 200 characters"), ({"text": "a\0b"}, "NUL")])
def test_what_is_no_filter_is_refused(harness: Harness, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        views.turns(harness.store, ListTurnsRequest(**fields))


def test_a_search_goes_on_behind_what_it_looked_through(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_filters, "SCAN", 4)
    harness.tell(*(turn(f"t{i}", [user("needle" if i in (0, 9) else "hay")], "r", session_id=f"s{i}")
                for i in range(10)))
    first = views.turns(harness.store, ListTurnsRequest(text="needle"))
    assert [summary.turn_id for summary in first.turns] == ["t9"]
    assert first.next_page_token
    assert listed(harness, text="needle") == ["t9", "t0"]
    assert listed(harness, text="needle", page_size=1, turn_classes=[MAIN, SIDE, UNKNOWN]) == ["t9", "t0"]


def test_quick_with_200_000_turns(harness: Harness) -> None:
    harness.tell(turn("t", [user("u" * 150)], "r" * 150, policy_version=1))
    with harness.store.transaction() as db:
        columns = [row["name"] for row in db.execute("PRAGMA table_info(turns)")]
        copied = {"seq": "n", "id": "'c' || n", "session": "'s' || n % 999", "version": "n / 20000",
                  "class": f"CASE WHEN n = 777 THEN {UNKNOWN} ELSE {MAIN} + n % 2 END", "payload": "NULL"}
        db.execute(f"WITH RECURSIVE numbers(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < 200000) "
                   f"INSERT INTO turns({', '.join(columns)}) SELECT "
                   f"{', '.join(copied.get(name, name) for name in columns)} FROM numbers, turns WHERE turns.seq = 1")
    begun = time.thread_time()
    assert listed(harness, turn_classes=[UNKNOWN]) == ["c777"]
    assert listed(harness, turn_classes=[UNKNOWN], policy_version=0) == ["c777"]
    assert listed(harness, turn_classes=[UNKNOWN], policy_version=5) == []
    assert time.thread_time() - begun < 0.1  # of the processor; looking at each row takes several times as long
    begun = time.thread_time()
    page = views.turns(harness.store, ListTurnsRequest(text="nowhere"))
    assert time.thread_time() - begun < 0.5
    assert not page.turns
    assert int(page.next_page_token) == 200_000 - turn_filters.SCAN + 1
    plan = harness.store.query(f"EXPLAIN QUERY PLAN SELECT {tables.SUMMARY} FROM turns WHERE seq < 9 AND state <> 4 "
                               "AND version = 1 AND class = 1 ORDER BY seq DESC LIMIT 9")
    assert "turns_version" in plan[0]["detail"]
    assert len(plan) == 1  # nothing is sorted
