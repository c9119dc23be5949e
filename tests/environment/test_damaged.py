"""Bytes on the disk that are not what was written: one turn suffers, everything else goes on."""

from __future__ import annotations

import pytest

from openclaw_rl.v1.common_pb2 import ACK_STATUS_ACCEPTED
from openclaw_rl.v1.turn_pb2 import Feedback, SessionEnd

from .talk import Desk, answer, turn, user


def damage(desk: Desk, table: str, column: str, where: str) -> None:
    with desk.store.transaction() as db:
        assert db.execute(f"UPDATE {table} SET {column} = x'ffffff' WHERE {where}").rowcount == 1


@pytest.mark.parametrize("by", ["a message", "feedback", "the end"])
def test_a_damaged_turn_is_no_obstacle_for_what_comes_next(desk: Desk, by: str) -> None:
    asked = [user("What is a heron?")]
    desk.tell(turn("t1", asked, "A bird."), turn("other", [user("Hello")], "Hi", session_id="s"))
    damage(desk, "turns", "payload", "id = 't1'")
    event = {"a message": turn("t2", [*asked, answer("A bird."), user("Wrong.")], "A wading bird."),
             "feedback": Feedback(feedback_id="f", turn_id="t1", score=-1),
             "the end": SessionEnd(event_id="e", session_id="s")}[by]
    assert desk.tell(event) == [ACK_STATUS_ACCEPTED]
    desk.tell(SessionEnd(event_id="e2", session_id="s"))
    assert desk.states()["t1"] == "REJECTED" and desk.turns()["t1"].reason == "its record on disk is damaged"
    assert set(desk.sent()) == {"other", *(["t2"] if by == "a message" else [])}


def test_damaged_feedback_is_left_out(desk: Desk) -> None:
    desk.tell(Feedback(feedback_id="f1", turn_id="t1", score=1), Feedback(feedback_id="f2", turn_id="t1", score=-1))
    damage(desk, "feedback", "payload", "id = 'f1'")
    desk.tell(turn("t1", [user("Hello")], "Hi"), SessionEnd(event_id="e", session_id="s"))
    assert [feedback.feedback_id for feedback in desk.sent()["t1"].feedback] == ["f2"]


def test_a_damaged_next_state_that_came_first(desk: Desk) -> None:
    asked = [user("What is a heron?")]
    desk.tell(turn("t2", [*asked, answer("A bird."), user("Wrong.")], "A wading bird."))
    damage(desk, "awaited", "next_state", "turn = 't2'")
    assert desk.tell(turn("t1", asked, "A bird.")) == [ACK_STATUS_ACCEPTED]
    assert desk.sent()["t1"].next_turn_id == "t2"
