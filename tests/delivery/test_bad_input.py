"""What is refused or found damaged: ids that are forged or impossible, and where it all is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.delivery.validation import LONGEST_ID, RejectionCode, validate_id
from openclaw_rl.storage import outbox as outbox_module
from openclaw_rl.storage import quarantine as quarantine_module
from openclaw_rl.storage.checksum import content_key, crc, sound
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.inbox import IdConflict, Inbox
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.v1 import turn_pb2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    store = Database(tmp_path / "state.db")
    yield store
    store.close()


def test_an_id_with_another_content_is_forged_and_the_first_stands(store: Database) -> None:
    inbox = Inbox(store, "events")
    with store.transaction() as db:
        assert inbox.accept(db, "t1", 7) and not inbox.accept(db, "t1", 7)
        with pytest.raises(IdConflict, match="the first one stands"):
            inbox.accept(db, "t1", 8)
        assert not inbox.accept(db, "t1")
    again = Inbox(store, "events")
    with store.transaction() as db, pytest.raises(IdConflict):
        again.accept(db, "t1", 8)


def test_ids_of_an_inbox_of_before_are_known_without_their_content(store: Database) -> None:
    with store.transaction() as db:
        db.execute("CREATE TABLE inbox_events (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)")
        db.execute("INSERT INTO inbox_events (id) VALUES ('t1')")
    inbox = Inbox(store, "events")
    with store.transaction() as db:
        assert not inbox.accept(db, "t1", 8)


def test_the_content_counts_and_not_how_it_was_written() -> None:
    one = turn_pb2.Turn(turn_id="t", metadata={"a": "1", "b": "2"})
    other = turn_pb2.Turn(turn_id="t", metadata={"b": "2", "a": "1"})
    assert content_key(one) == content_key(other) != content_key(turn_pb2.Turn(turn_id="t", metadata={"a": "1"}))


def test_a_flipped_bit_is_found() -> None:
    payload = bytes(100)
    assert sound(payload, crc(payload)) and sound(payload, None)
    assert not sound(bytes([1, *payload[1:]]), crc(payload)) and not sound("text", None)


@pytest.mark.parametrize("id, why", [("", "0 characters"), ("x" * (LONGEST_ID + 1), "257 characters"),
                                     ("a\nb", "control"), ("a\0", "control"), ("\x85", "control")])
def test_impossible_ids_are_named(id: Any, why: str) -> None:
    rejection = validate_id("turn.turn_id", id)
    assert rejection is not None and rejection.code is RejectionCode.INVALID_ID
    assert why in rejection.message and rejection.message.startswith("turn.turn_id: ")


def test_possible_ids_are_taken() -> None:
    assert validate_id("turn_id", "turn_0190-é-漢") is None and validate_id("turn_id", "x" * LONGEST_ID) is None


def test_what_is_set_aside_is_kept_with_the_reason_and_in_bounds(store: Database,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_module, "KEEP", 3)
    monkeypatch.setattr(quarantine_module, "KEEP_BYTES", 250)
    quarantine = Quarantine(store, "samples")
    for number in range(5):
        with store.transaction() as db:
            quarantine.keep(db, f"t{number}", "bad", bytes(10))
    assert quarantine.recent() == [("t4", "bad"), ("t3", "bad"), ("t2", "bad")] and quarantine.count == 3
    with store.transaction() as db:
        quarantine.keep(db, "large", "bad", bytes(240))
    assert [id for id, _ in quarantine.recent()] == ["large", "t4"]
    with store.transaction() as db:
        quarantine.keep(db, "x" * 1000, "too large for any bound, but the newest", bytes(300))
    assert [len(id) for id, _ in quarantine.recent()] == [256]
    assert Quarantine(store, "samples").count == 1 and quarantine.last is not None


def test_nothing_is_set_aside_by_a_transaction_that_fails(store: Database) -> None:
    quarantine = Quarantine(store, "samples")
    with pytest.raises(RuntimeError), store.transaction() as db:
        quarantine.keep(db, "t", "bad", b"")
        raise RuntimeError
    assert quarantine.count == 0 and quarantine.recent() == []


def test_rejected_messages_of_an_outbox_are_bounded_in_bytes_too(store: Database,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "KEEP_REJECTED_BYTES", 250)
    outbox = Outbox(store, "turns")
    for number in range(4):
        outbox.put(f"t{number}", bytes(100))
    outbox.set_aside(["t0", "t1", "t2", "t3"], "no")
    assert [id for id, _ in outbox.rejected()] == ["t3", "t2"] and outbox.stats().rejected == 2
    assert Outbox(store, "turns").last_rejected == outbox.last_rejected is not None
