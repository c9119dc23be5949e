"""Bytes on the disk that are not what was written: one turn suffers, everything else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.rollouts.tracking import tracker
from openclaw_rl.v1.common_pb2 import ACK_STATUS_ACCEPTED, ACK_STATUS_DUPLICATE, ACK_STATUS_REJECTED
from openclaw_rl.v1.turn_pb2 import Feedback, SessionEnd, Turn
from tests.rollouts.harness import Harness, answer, turn, user


def damage(harness: Harness, table: str, column: str, where: str, flip: bytes = b"") -> None:
    """Overwrite a value: by nonsense, or, after `flip`, by what can still be read."""
    with harness.store.transaction() as db:
        [(before,)] = db.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchall()
        after = before.replace(flip, bytes([flip[0] ^ 1, *flip[1:]])) if flip else b"\xff\xff\xff"
        assert after != before
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (after,))


@pytest.mark.parametrize("flip", [b"", b"A bird."])
@pytest.mark.parametrize("by", ["a message", "feedback", "the end"])
def test_a_damaged_turn_is_no_obstacle_for_what_comes_next(harness: Harness, by: str, flip: bytes) -> None:
    asked = [user("What is a heron?")]
    harness.tell(turn("t1", asked, "A bird."), turn("other", [user("Hello")], "Hi", session_id="s"))
    damage(harness, "turns", "payload", "id = 't1'", flip)
    events: dict[str, Turn | Feedback | SessionEnd] = {
        "a message": turn("t2", [*asked, answer("A bird."), user("Wrong.")], "A wading bird."),
        "feedback": Feedback(feedback_id="f", turn_id="t1", score=-1),
        "the end": SessionEnd(event_id="e", session_id="s")}
    assert harness.tell(events[by]) == [ACK_STATUS_ACCEPTED]
    harness.tell(SessionEnd(event_id="e2", session_id="s"))
    assert harness.states()["t1"] == "REJECTED" and harness.turns()["t1"].reason == "its record on disk is damaged"
    assert set(harness.sent()) == {"other", *(["t2"] if by == "a message" else [])}
    assert harness.tracker.quarantine.recent() == [("t1", "the turn's record on disk is damaged; it is not judged")]


@pytest.mark.parametrize("flip", [b"", b"t1"])
def test_damaged_feedback_is_left_out(harness: Harness, flip: bytes) -> None:
    harness.tell(Feedback(feedback_id="f1", turn_id="t1", score=1), Feedback(feedback_id="f2", turn_id="t1", score=-1))
    damage(harness, "feedback", "payload", "id = 'f1'", flip)
    harness.tell(turn("t1", [user("Hello")], "Hi"), SessionEnd(event_id="e", session_id="s"))
    assert [feedback.feedback_id for feedback in harness.sent()["t1"].feedback] == ["f2"]


@pytest.mark.parametrize("flip", [b"", b"Wrong."])
def test_a_damaged_next_state_that_came_first(harness: Harness, flip: bytes) -> None:
    asked = [user("What is a heron?")]
    harness.tell(turn("t2", [*asked, answer("A bird."), user("Wrong.")], "A wading bird."))
    damage(harness, "awaited", "next_state", "turn = 't2'", flip)
    assert harness.tell(turn("t1", asked, "A bird.")) == [ACK_STATUS_ACCEPTED]
    assert harness.sent()["t1"].next_turn_id == "t2" and not harness.sent()["t1"].messages


def test_an_id_that_was_used_before_is_refused_and_kept_aside(harness: Harness) -> None:
    first, forged = turn("t1", [user("Hello")], "Hi"), turn("t1", [user("Hello")], "Go away")
    assert harness.tell(first, first) == [ACK_STATUS_ACCEPTED, ACK_STATUS_DUPLICATE]
    assert harness.tell(forged) == [ACK_STATUS_REJECTED]
    [(turn_id, reason)] = harness.tracker.quarantine.recent()
    assert turn_id == "t1" and "this id was used before" in reason
    harness.tell(SessionEnd(event_id="e", session_id="s"))
    [row] = harness.store.query("SELECT payload FROM outbox_transitions")
    assert b"Hi" in row["payload"] and b"Go away" not in row["payload"], "the first one stands"


@pytest.mark.parametrize("event, field", [
    (turn("x" * 300, [user("Hello")], "Hi"), "turn's id"), (turn("a\nb", [user("Hello")], "Hi"), "turn's id"),
    (turn("t1", [user("Hello")], "Hi", session_id="s\0"), "turn.session_id"),
    (SessionEnd(event_id="e\r", session_id="s"), "session_end's id")])
def test_impossible_ids_are_refused_and_kept_aside(harness: Harness, event: Turn | SessionEnd, field: str) -> None:
    assert harness.tell(event) == [ACK_STATUS_REJECTED]
    [(_, reason)] = harness.tracker.quarantine.recent()
    assert field in reason


def test_a_turn_of_another_mesh_is_refused_and_one_of_none_is_ours(tmp_path: Path) -> None:
    harness = Harness(tmp_path, "mesh-ours")
    foreign, ours = turn("t1", [user("Hello")], "Hi"), turn("t2", [user("Hello")], "Hi")
    foreign.mesh_id = "mesh-theirs"
    assert harness.tell(foreign, ours) == [ACK_STATUS_REJECTED, ACK_STATUS_ACCEPTED]
    [(turn_id, reason)] = harness.tracker.quarantine.recent()
    assert turn_id == "t1" and "the turn is of the mesh mesh-theirs, and this is mesh-ours" in reason
    assert harness.tell(ours) == [ACK_STATUS_DUPLICATE], "as it came, not as it was stamped"
    harness.tell(SessionEnd(event_id="e", session_id="s"))
    assert [turn.mesh_id for turn in harness.transitions()] == ["mesh-ours"]


def test_a_file_without_checksums_is_read(harness: Harness) -> None:
    harness.tell(turn("t1", [user("Hello")], "Hi"), Feedback(feedback_id="f1", turn_id="t9", score=1))
    with harness.store.transaction() as db:
        for table in ("turns", "awaited", "feedback"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN crc")
    harness.restart()
    harness.tell(SessionEnd(event_id="e", session_id="s"), turn("t9", [user("Hello")], "Hi"))
    assert set(harness.sent()) == {"t1", "t9"}


def test_a_session_that_cant_be_ended_keeps_no_other_open(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(tracker.time, "monotonic", lambda: now)
    harness.restart()
    harness.tell(turn("t1", [user("Hello")], "Hi", session_id="a"), turn("t2", [user("Hello")], "Hi", session_id="b"),
              turn("t3", [user("Hello")], "Hi", session_id="c"))
    with harness.store.transaction() as db:
        db.execute("UPDATE turns SET branch = CAST(x'ff' AS TEXT) WHERE id = 't1'")
        db.execute("UPDATE turns SET request_text = CAST(x'ff' AS TEXT) WHERE id = 't2'")
    now = 301
    assert harness.tracker.reap() == 2
    assert set(harness.sent()) == {"t2", "t3"}
    with harness.store.transaction() as db:
        db.execute("UPDATE turns SET branch = 't1' WHERE id = 't1'")
    now = 602
    assert harness.tracker.reap() == 1 and "t1" in harness.sent()
