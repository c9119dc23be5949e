"""Retries, choices, and turns that come out of order."""

from __future__ import annotations

import itertools

import pytest

from openclaw_rl.rollouts.tracking import views
from openclaw_rl.v1 import environment_pb2
from openclaw_rl.v1.turn_pb2 import ChatMessage, Feedback, ToolCall, Turn
from tests.rollouts.harness import Harness, answer, tool, turn, user


def attempt(turn_id: str, response: str, at: int = 0, **fields: object) -> Turn:
    result = turn(turn_id, [user("hi")], response, **fields)
    if at:
        result.requested_at.seconds = at
    return result


def follow(turn_id: str, response: str, words: str = "thanks") -> Turn:
    return turn(turn_id, [user("hi"), answer(response), user(words)], "welcome")


def test_a_retry_is_one_turn_and_the_later_attempt_stands(harness: Harness) -> None:
    harness.tell(attempt("t1", "one"), attempt("t2", "two"))
    assert harness.states() == {"t1": "SUPERSEDED", "t2": "OPEN"}
    assert harness.turns()["t1"].reason == "turn t2, a later attempt, took its place"
    harness.tell(follow("t3", "two"))
    assert harness.sent().keys() == {"t2"}
    harness.tracker.end("s")
    assert harness.sent().keys() == {"t2", "t3"}
    assert harness.tracker.counters == {"turns_main": 2, "retries": 1, "total_interactions": 2, "transitions_sent": 2}


def test_the_earlier_attempt_wins_when_it_is_continued(harness: Harness) -> None:
    harness.tell(attempt("t1", "one"), attempt("t2", "two"))
    harness.restart()
    harness.tell(follow("t3", "one"))
    assert harness.sent().keys() == {"t1"}
    assert harness.states() == {"t1": "SENT", "t2": "SUPERSEDED", "t3": "OPEN"}
    harness.tracker.end("s")
    assert harness.sent().keys() == {"t1", "t3"}
    harness.tell(follow("t4", "two"))
    assert "t2" not in harness.sent(), "after the end of the session it is gone"


def test_attempts_that_are_both_continued_are_two_turns(harness: Harness) -> None:
    """Two agents asked the same at once: to the client's session that looked like a retry."""
    harness.tell(attempt("t1", "one"), attempt("t2", "two"), follow("t3", "one", "good"), follow("t4", "two", "bad"))
    words = {turn_id: state.messages[0].content for turn_id, state in harness.sent().items()}
    assert words == {"t1": "good", "t2": "bad"}


def test_attempts_are_told_apart_by_the_ids_of_their_tool_calls(harness: Harness) -> None:
    def called(name: str) -> ChatMessage:
        return ChatMessage(role="assistant", tool_calls=[ToolCall(id=f"call_{name}", name="ls", arguments_json="{}")])

    def talk(name: str) -> list[ChatMessage]:
        return [user("list"), called(name), tool("a b", f"call_{name}")]

    names = ["x", "y", "z"]
    harness.tell(*(turn(name, [user("list")], called(name)) for name in names))
    harness.tell(*(turn(f"{name}2", talk(name), "two") for name in ("y", "x", "z")))
    assert {name: state.next_turn_id for name, state in harness.sent().items()} == {
        name: f"{name}2" for name in names}
    assert {turn_id: harness.turns()[turn_id].parent_turn_id for turn_id in ("x2", "y2", "z2")} == {
        "x2": "x", "y2": "y", "z2": "z"}
    harness.tell(turn("y3", [*talk("y"), answer("two"), user("wrong")], "three"))
    # Their last answers are equal, and so were they all but for the ids: it is one of them that is continued.
    assert len(harness.sent().keys() & {"x2", "y2", "z2"}) == 1


def test_attempts_with_the_same_answer(harness: Harness) -> None:
    harness.tell(attempt("t1", "one"), attempt("t2", "one"), follow("t3", "one"))
    assert harness.sent().keys() == {"t2"}


def test_an_attempt_that_arrives_late_does_not_stand(harness: Harness) -> None:
    harness.tell(attempt("t2", "two", at=20), attempt("t1", "one", at=10))
    assert harness.states() == {"t2": "OPEN", "t1": "SUPERSEDED"}
    harness.tell(follow("t3", "two"), attempt("t0", "zero", at=5))
    assert harness.states()["t0"] == "SUPERSEDED"
    harness.tracker.end("s")
    assert harness.sent().keys() == {"t2", "t3"}


def test_asking_again_after_the_next_state_is_a_new_turn(harness: Harness) -> None:
    harness.tell(attempt("t1", "one"), follow("t2", "one", "no"), attempt("t3", "three"), follow("t4", "three"))
    assert harness.sent().keys() == {"t1", "t3"}


def test_the_first_choice_stands_until_one_is_continued(harness: Harness) -> None:
    choices = [attempt(f"t1-{i}" if i else "t1", f"answer {i}", at=100, choice_index=i) for i in range(3)]
    for order in itertools.permutations(choices):
        session = "-".join(choice.turn_id for choice in order)
        for choice in order:
            copy = Turn()
            copy.CopyFrom(choice)
            copy.turn_id += session
            copy.session_id = session
            harness.tell(copy)
        states = {turn_id: state for turn_id, state in harness.states().items() if turn_id.endswith(session)}
        assert states == {f"t1{session}": "OPEN", f"t1-1{session}": "SUPERSEDED", f"t1-2{session}": "SUPERSEDED"}
    assert harness.tracker.counters["turns_main"] == 6
    harness.tell(*choices, follow("t2", "answer 2"))
    assert harness.sent().keys() == {"t1-2"}


def test_a_choice_that_comes_after_the_session_ended_is_not_a_second_turn(harness: Harness) -> None:
    harness.tell(attempt("t1", "a", at=100, session_done=True), attempt("t1-1", "b", at=100, choice_index=1))
    harness.tracker.end("s")
    assert harness.sent().keys() == {"t1"}


def test_feedback_on_a_superseded_attempt_makes_it_count(harness: Harness) -> None:
    harness.tell(attempt("t1", "one"), attempt("t2", "two"), Feedback(feedback_id="f", turn_id="t1", score=1))
    assert harness.sent().keys() == {"t1"}
    assert harness.states() == {"t1": "SENT", "t2": "SUPERSEDED"}


def test_a_title_of_the_same_messages_is_no_retry(harness: Harness) -> None:
    harness.tell(attempt("t1", "one"), attempt("side", "Title", declared_type="side"))
    assert harness.states() == {"t1": "OPEN", "side": "NOT_TRAINABLE"}


def test_superseded_turns_are_listed_on_request(harness: Harness) -> None:
    harness.tell(attempt("t1", "one"), attempt("t2", "two"))
    listed = views.turns(harness.store, environment_pb2.ListTurnsRequest()).turns
    assert [summary.turn_id for summary in listed] == ["t2"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_order_of_arrival_gives_the_same_links(harness: Harness, order: tuple[int, ...]) -> None:
    talk = [user("q0"), answer("a0"), user("q1"), answer("a1"), user("q2"), answer("a2"), user("q3"), answer("a3")]
    turns = [turn(f"t{i}", talk[:2 * i + 1], talk[2 * i + 1]) for i in range(4)]
    for i in order:
        harness.tell(turns[i])
    harness.tracker.end("s")
    sent = harness.sent()
    assert {turn_id: [message.content for message in state.messages] for turn_id, state in sent.items()} == {
        "t0": ["q1"], "t1": ["q2"], "t2": ["q3"], "t3": []}
    parents = {turn_id: summary.parent_turn_id for turn_id, summary in harness.turns().items()}
    assert parents == {"t0": "", "t1": "t0", "t2": "t1", "t3": "t2"}
    assert harness.store.query("SELECT * FROM awaited") == []


def test_a_foreign_history_is_waited_for_in_bounds(harness: Harness) -> None:
    history = [message for i in range(100) for message in (user(f"q{i}"), answer(f"a{i}"))]
    harness.tell(turn("t1", [*history, user("and now?")], "now"))
    assert len(harness.store.query("SELECT * FROM awaited")) == 8
    harness.tell(turn("t2", [*history, user("and now?"), answer("now"), user("thanks")], "welcome"))
    assert harness.sent().keys() == {"t1"}
    assert len(harness.store.query("SELECT * FROM awaited")) == 8
