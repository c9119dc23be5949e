"""What the components share: which messages are meant, what is remembered, what the disk still shows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.privacy import Target, Tombstones
from openclaw_rl.privacy.erase import blank_log, erase
from openclaw_rl.runtime.home import Home
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.storage.quarantine_listing import files
from openclaw_rl.v1 import common_pb2, component_pb2, environment_pb2, turn_pb2

MARK = "the-secret-of-the-orchard"


def turn(turn_id: str, session: str, at: float, text: str = MARK) -> turn_pb2.Turn:
    made = turn_pb2.Turn(turn_id=turn_id, session_id=session,
                         messages=[turn_pb2.ChatMessage(role="user", content=text)])
    made.requested_at.FromNanoseconds(int(at * 1e9))
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    store = Database(tmp_path / "state.db")
    yield store
    store.close()


def found(folder: Path, text: str) -> list[str]:
    """Files below a folder that hold the text."""
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_a_target_is_a_session_up_to_a_moment() -> None:
    target = Target("a", 100.0, frozenset({"t9"}))
    assert target.has(turn("t1", "a", 99.0))
    assert target.has(turn("t1", "a", 0.0)), "one whose moment is not known"
    assert not target.has(turn("t1", "a", 100.0)), "a new conversation of that session"
    assert not target.has(turn("t1", "b", 99.0))
    assert target.has(turn("t9", "b", 200.0)), "a turn that is known to belong to it"
    sample = turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn("t1", "a", 99.0)))
    assert target.has(sample) and target.has_payload(turn_pb2.Sample, sample.SerializeToString())
    assert target.has(environment_pb2.PolicyEvent(feedback=turn_pb2.Feedback(turn_id="t9")))
    assert not target.has(environment_pb2.PolicyEvent())
    assert not target.has_payload(turn_pb2.Turn, turn("t1", "b", 9.0, "a").SerializeToString()), "only its text says a"
    assert target.has_payload(turn_pb2.Turn, b"\xff\xff a damaged row"), "that names it"
    assert not target.has_payload(turn_pb2.Turn, b"\xff\xff xyz")


def test_without_a_moment_a_request_means_now() -> None:
    target = Target.of(component_pb2.ForgetRequest(session_id="a", turn_ids=["t"]))
    assert abs(target.before - time.time()) < 5 and target.turn_ids == {"t"}


def test_tombstones_outlive_a_restart_and_hold_no_id(tmp_path: Path) -> None:
    store = Database(tmp_path / "state.db")
    tombstones = Tombstones(store)
    assert not tombstones.cover(turn("turn-of-ann", "ann", 1.0))
    with store.transaction() as db:
        tombstones.add(db, Target("ann", 100.0, frozenset({"turn-of-ann"})))
    with store.transaction() as db:
        tombstones.add(db, Target("ann", 50.0))  # an older request that comes again does not bring anything back
    store.close()
    assert not found(tmp_path, "ann")
    store = Database(tmp_path / "state.db")
    tombstones = Tombstones(store)
    assert tombstones.cover(turn("t", "ann", 99.0)) and not tombstones.cover(turn("t", "ann", 100.0))
    assert tombstones.cover(turn_pb2.Feedback(turn_id="turn-of-ann", comment="late"))
    assert not tombstones.cover(turn_pb2.SessionEnd(session_id="")), "no session is no forgotten session"
    store.close()


def test_nothing_that_was_tombstoned_in_a_broken_transaction_counts(store: Database) -> None:
    tombstones = Tombstones(store)
    with pytest.raises(RuntimeError), store.transaction() as db:
        tombstones.add(db, Target("ann", 100.0))
        raise RuntimeError
    assert not tombstones.cover(turn("t", "ann", 1.0))


def test_outboxes_and_what_they_set_aside_forget(store: Database) -> None:
    outbox = Outbox(store, "turns")
    for number, session in enumerate("abab"):
        event = environment_pb2.PolicyEvent(turn=turn(f"t{number}", session, 10.0))
        outbox.put(f"t{number}", event.SerializeToString())
    outbox.settle([common_pb2.Ack(id=f"t{i}", status=common_pb2.ACK_STATUS_REJECTED, reason="no") for i in (0, 1)])
    quarantine = Quarantine(store, "events")
    with store.transaction() as db:
        quarantine.keep(db, "x", "forged", environment_pb2.PolicyEvent(turn=turn("x", "a", 1.0)).SerializeToString())
        quarantine.keep(db, "y", "forged", environment_pb2.PolicyEvent(turn=turn("y", "b", 1.0)).SerializeToString())
    target = Target("a", 100.0)

    def meant(payload: bytes) -> bool:
        return target.has_payload(environment_pb2.PolicyEvent, payload)

    with store.transaction() as db:
        assert sorted(outbox.forget(db, meant)) == ["t0", "t2"] and quarantine.forget(db, meant) == 1
    assert [row.id for row in outbox.window(0, 10, 10**6)] == ["t3"]
    assert (outbox.stats().pending, outbox.stats().rejected, outbox.rejected()) == (1, 1, [("t1", "no")])
    assert outbox.stats().pending_bytes == len(outbox.window(0, 1, 10**6)[0].payload)
    assert quarantine.count == 1 and quarantine.recent() == [("y", "forged")]


def test_no_byte_of_what_was_deleted_stays_on_the_disk(tmp_path: Path) -> None:
    """Neither in unused pages, nor in the log, nor in a damaged file that was set aside."""
    store = Database(tmp_path / "state.db", schema="CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x TEXT)")
    with store.transaction() as db:
        db.executemany("INSERT INTO t VALUES (?, ?)", [(i, f"{MARK} {'x' * (i % 5000)}") for i in range(1, 400)])
        db.execute("INSERT INTO t VALUES (1000, 'something else')")
    with store.transaction() as db:  # deleted long ago, as an acknowledged message is
        db.execute("DELETE FROM t WHERE id < 300")
    (tmp_path / "state.db.corrupt-20260101T000000").write_text(MARK)
    (tmp_path / "state.db.corrupt-20260101T000000-wal").write_text(MARK)
    with store.transaction() as db:
        db.execute("DELETE FROM t WHERE id < 1000")
    assert found(tmp_path, MARK)
    assert erase(store) == 1
    assert not found(tmp_path, MARK)
    assert [row["x"] for row in store.query("SELECT x FROM t")] == ["something else"]
    with store.transaction() as db:
        db.execute("INSERT INTO t VALUES (2, 'it goes on')")
    store.close()


def test_what_is_listed_as_quarantined_is_what_forgetting_deletes(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = home.component("trainer")
    store = Database(folder / "state.db")
    for name in ("state.db.corrupt-1", "state.db.corrupt-1-wal", "policy.json.corrupt-2", "old.json.foreign-3",
                 "versions/corrupt-7-4/weights", "set-aside/version-9-5/versions/weights"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(MARK)
    (folder / "versions" / "8").mkdir()
    assert [file.path.name for file in files(home)] == [
        "old.json.foreign-3", "policy.json.corrupt-2", "version-9-5", "state.db.corrupt-1", "corrupt-7-4"]
    assert erase(store) == 5
    assert not found(tmp_path, MARK) and files(home) == [] and (folder / "versions" / "8").is_dir()
    store.close()


def test_lines_of_a_log_are_blanked_in_place(tmp_path: Path) -> None:
    log = tmp_path / "env_server.log"
    log.write_text("first\nturn t1 of session ann is MAIN\nsession annabel ended\n")
    (tmp_path / "env_server.log.1").write_text("session ann ended")
    (tmp_path / "trainer.log").write_text("ann\n")
    with log.open("a") as writer:  # the supervisor's
        assert blank_log(tmp_path, "env_server", ["ann", ""]) == 2
        writer.write("later\n")
    assert log.read_text().splitlines() == ["first", "-" * 30, "session annabel ended", "later"]
    assert (tmp_path / "env_server.log.1").read_text() == "-" * 17
    assert (tmp_path / "trainer.log").read_text() == "ann\n"
    assert blank_log(tmp_path, "env_server", []) == 0
