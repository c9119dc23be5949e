"""Outbox and inbox on their own."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.delivery.ids import message_id
from openclaw_rl.storage import inbox as inbox_module
from openclaw_rl.storage import outbox as outbox_module
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.inbox import Inbox
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, turn_pb2
from openclaw_rl.v1.common_pb2 import (
    ACK_STATUS_ACCEPTED,
    ACK_STATUS_DUPLICATE,
    ACK_STATUS_REJECTED,
    Ack,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    store = Database(tmp_path / "state.db")
    yield store
    store.close()


@pytest.fixture
def outbox(store: Database) -> Outbox:
    return Outbox(store, "turns")


def waiting(outbox: Outbox) -> list[str]:
    return [row.id for row in outbox.window(0, 1000, 2**30)]


def test_an_id_is_put_once(outbox: Outbox) -> None:
    woken = []
    outbox.listen(lambda: woken.append(True))
    for payload in (b"first", b"second"):
        outbox.put("t1", payload)
    [row] = outbox.window(0, 10, 1000)
    assert (row.id, row.payload, outbox.stats().pending, len(woken)) == ("t1", b"first", 1, 1)


def test_a_put_joins_the_callers_transaction(store: Database, outbox: Outbox) -> None:
    woken = []
    outbox.listen(lambda: woken.append(True))
    with pytest.raises(KeyError), store.transaction() as db:
        outbox.put("t1", b"x", db)
        raise KeyError
    assert outbox.stats().pending == 0 and woken == [] and waiting(outbox) == []
    with store.transaction() as db:
        outbox.put("t2", b"x", db)
        outbox.put("t3", b"x", db)
        assert woken == []  # the sender would not find them yet
    assert waiting(outbox) == ["t2", "t3"] and len(woken) == 2 and outbox.stats().pending == 2


def test_the_window_is_bounded_by_number_and_bytes_and_moves_on(outbox: Outbox) -> None:
    for i in range(10):
        outbox.put(f"t{i}", b"x" * 100)
    first = outbox.window(0, 3, 10**6)
    assert [row.id for row in first] == ["t0", "t1", "t2"]
    assert [row.id for row in outbox.window(first[-1].seq, 100, 250)] == ["t3", "t4"]
    assert [row.id for row in outbox.window(0, 100, 1)] == ["t0"]  # one at least


def test_settling(outbox: Outbox) -> None:
    for i in range(5):
        outbox.put(f"t{i}", b"x" * 10)
    settled = outbox.settle([Ack(id="t0", status=ACK_STATUS_ACCEPTED), Ack(id="t1", status=ACK_STATUS_DUPLICATE),
                             Ack(id="t2", status=ACK_STATUS_REJECTED, reason="no"), Ack(id="t3"),
                             Ack(id="never heard of", status=ACK_STATUS_ACCEPTED),
                             Ack(id="nor of this", status=ACK_STATUS_REJECTED)])
    assert settled == ["t0", "t1", "t2"] and waiting(outbox) == ["t3", "t4"]
    stats = outbox.stats()
    assert (stats.pending, stats.pending_bytes, stats.delivered, stats.rejected) == (2, 20, 2, 1)
    assert outbox.rejected() == [("t2", "no")]
    assert outbox.settle([Ack(id="t0", status=ACK_STATUS_ACCEPTED)]) == []


def test_what_follows_from_a_refusal_is_kept_with_it_or_not_at_all(store: Database) -> None:
    def note(db: sqlite3.Connection, id: str, reason: str) -> None:
        db.execute("INSERT INTO notes VALUES (?, ?)", (id, reason))
        if reason == "killed":
            raise KeyError

    with store.transaction() as db:
        db.execute("CREATE TABLE notes (id, reason)")
    outbox = Outbox(store, "turns", on_rejected=note)
    for id in ("t1", "t2"):
        outbox.put(id, b"x")
    with pytest.raises(KeyError):
        outbox.settle([Ack(id="t1", status=ACK_STATUS_REJECTED, reason="killed")])
    assert waiting(outbox) == ["t1", "t2"] and not outbox.rejected()
    outbox.settle([Ack(id="t1", status=ACK_STATUS_REJECTED, reason="bad")])
    assert outbox.rejected() == [tuple(row) for row in store.query("SELECT * FROM notes")] == [("t1", "bad")]


def test_rejected_messages_are_bounded(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "KEEP_REJECTED", 3)
    outbox = Outbox(store, "turns")
    for i in range(6):
        outbox.put(f"t{i}", b"x")
        outbox.settle([Ack(id=f"t{i}", status=ACK_STATUS_REJECTED, reason="no")])
    assert [id for id, _ in outbox.rejected()] == ["t5", "t4", "t3"]


def test_a_damaged_row_is_set_aside_and_the_others_go_on(tmp_path: Path, store: Database, outbox: Outbox,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    for i in range(4):
        outbox.put(f"t{i}", b"x" * 100)
    other = sqlite3.connect(tmp_path / "state.db")
    with other:
        other.execute("UPDATE outbox_turns SET payload = ? WHERE id = 't0'", (b"y" * 100,))
        other.execute("UPDATE outbox_turns SET payload = 'text' WHERE id = 't2'")
    other.close()
    assert waiting(outbox) == ["t1", "t3"]
    assert {id for id, _ in outbox.rejected()} == {"t0", "t2"} and "t0 is set aside: the row" in caplog.text
    assert (outbox.stats().pending, outbox.stats().rejected) == (2, 2)


def test_a_window_of_damaged_rows_is_not_the_end(tmp_path: Path, store: Database, outbox: Outbox) -> None:
    for i in range(30):
        outbox.put(f"t{i}", b"x" * 100)
    other = sqlite3.connect(tmp_path / "state.db")
    with other:
        other.execute("UPDATE outbox_turns SET crc = crc + 1 WHERE seq <= 25")
    other.close()
    assert [row.id for row in outbox.window(0, 10, 10**6)] == [f"t{i}" for i in range(25, 30)]


def test_streams_of_one_store_and_of_two_stores_are_apart(tmp_path: Path, store: Database) -> None:
    second_store = Database(tmp_path / "b" / "state.db")
    boxes = [Outbox(store, "turns"), Outbox(store, "samples"), Outbox(second_store, "turns")]
    for i, box in enumerate(boxes):
        box.put("same id", bytes([i]))
    assert [box.window(0, 10, 100)[0].payload for box in boxes] == [b"\x00", b"\x01", b"\x02"]
    boxes[0].settle([Ack(id="same id", status=ACK_STATUS_ACCEPTED)])
    assert [box.stats().pending for box in boxes] == [0, 1, 1]
    second_store.close()
    with pytest.raises(ValueError, match="name of an outbox"):
        Outbox(store, "turns; DROP TABLE outbox_turns")


def test_the_oldest_ones_age(outbox: Outbox) -> None:
    outbox.put("t1", b"x")
    time.sleep(0.05)
    outbox.put("t2", b"x")
    assert outbox.stats().oldest_age.ToNanoseconds() >= 0.05e9


def test_a_put_takes_well_under_a_millisecond(outbox: Outbox) -> None:
    costs = []
    for i in range(500):
        begin = time.perf_counter()
        outbox.put(f"t{i}", b"x" * 10_000)
        costs.append(time.perf_counter() - begin)
    assert sorted(costs)[250] < 0.001


def test_an_inbox_knows_what_it_has_taken(store: Database) -> None:
    inbox = Inbox(store, "turns")
    with store.transaction() as db:
        assert inbox.accept(db, "a") and inbox.accept(db, "b") and not inbox.accept(db, "a")
    with pytest.raises(KeyError), store.transaction() as db:
        assert inbox.accept(db, "c")
        raise KeyError
    again = Inbox(store, "turns")
    with store.transaction() as db:
        assert not again.accept(db, "b") and again.accept(db, "c")
        assert Inbox.accept(again, db, "d")
        assert not again.accept(db, "d")


def test_an_inbox_forgets_only_the_oldest(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_PRUNE_EVERY", 10)
    inbox = Inbox(store, "turns", keep=50)
    for i in range(200):
        with store.transaction() as db:
            assert inbox.accept(db, f"t{i}")
    assert 50 <= store.query("SELECT COUNT(*) FROM inbox_turns")[0][0] <= 60
    with store.transaction() as db:
        assert not inbox.accept(db, "t150") and inbox.accept(db, "t0")


def test_ids_of_all_messages() -> None:
    turn = turn_pb2.Turn(turn_id="t")
    assert message_id(environment_pb2.PolicyEvent(turn=turn)) == "t"
    assert message_id(environment_pb2.PolicyEvent(feedback=turn_pb2.Feedback(feedback_id="f"))) == "f"
    assert message_id(environment_pb2.PolicyEvent(session_end=turn_pb2.SessionEnd(event_id="e"))) == "e"
    assert message_id(environment_pb2.PolicyEvent()) == ""
    assert message_id(turn_pb2.Transition(turn=turn)) == "t"
    assert message_id(turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn))) == "t"


def test_what_is_to_be_forgotten_is_looked_for_beside_the_writer(store: Database) -> None:
    outbox = Outbox(store, "turns")
    for number in range(200):
        outbox.put(f"t{number}", b"ann" if number % 2 else b"bob")
    found = outbox.find(lambda payload: payload == b"ann")
    assert len(found.ids) == 100 and found.upto == 200
    outbox.settle([Ack(id="t1", status=ACK_STATUS_ACCEPTED)])  # meanwhile
    outbox.put("late", b"ann")
    outbox.put("other", b"bob")
    looked_at: list[bytes] = []
    with store.transaction() as db:
        gone = outbox.forget(db, lambda payload: looked_at.append(payload) or payload == b"ann", found)
    assert len(looked_at) == 2, "what came since then"
    assert {"late", "t3", "t199"} <= set(gone) and outbox.stats().pending == 101
    assert all(row.payload == b"bob" for row in outbox.window(0, 1000, 10**6))
