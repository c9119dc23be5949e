"""Contexts that the client compacted, edited or cut: branches, what is judged, what is said of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from openclaw_rl.rollouts.tracking import views
from openclaw_rl.v1.turn_pb2 import (
    FINISH_REASON_CANCELLED,
    NEXT_STATE_KIND_SESSION_ENDED,
    ChatMessage,
    ToolCall,
)
from tests.rollouts.harness import Harness, answer, tool, turn, user

SYSTEM = ChatMessage(role="system", content="You are Claw.")
SUMMARY = user("Here is a summary of the conversation so far: we baked bread.")


def history(count: int) -> list[ChatMessage]:
    """So many exchanges."""
    return [message for i in range(count) for message in (user(f"question {i}"), answer(f"the answer to number {i}"))]


def say(harness: Harness, turn_id: str, messages: Sequence[ChatMessage], response: str = "", **fields: object) -> None:
    harness.tell(turn(turn_id, [SYSTEM, *messages], response or f"response of {turn_id}", **fields))


def grow(harness: Harness, count: int) -> list[ChatMessage]:
    """A conversation of `count` turns t0, t1, ...; what the client has of it then."""
    talk = history(count)
    for i in range(count):
        say(harness, f"t{i}", talk[:2 * i + 1], talk[2 * i + 1].content)
    return talk


def change(harness: Harness, turn_id: str) -> str:
    return harness.turns()[turn_id].context_change


def branches(harness: Harness) -> dict[str, str]:
    return {turn_id: summary.branch_id for turn_id, summary in harness.turns().items()}


def test_a_branch_is_named_by_the_turn_that_opened_it(harness: Harness) -> None:
    talk = grow(harness, 3)
    harness.tell(turn("side", [*talk, user("title")], "Bread", declared_type="side"))
    say(harness, "other", [user("something else")])
    assert branches(harness) == {"t0": "t0", "t1": "t0", "t2": "t0", "side": "t0", "other": "other"}
    harness.tracker.end("s")
    sent = {turn.turn_id: turn.branch_id for turn in harness.transitions()}
    assert sent == {"t0": "t0", "t1": "t0", "t2": "t0", "other": "other"}
    assert views.session(harness.store, "s")[0].branches == 2


def test_a_branch_whose_beginning_comes_late_gets_its_name(harness: Harness) -> None:
    talk = history(4)
    for i in (0, 2, 3, 1):
        say(harness, f"t{i}", talk[:2 * i + 1], talk[2 * i + 1].content)
    assert set(branches(harness).values()) == {"t0"}
    harness.tracker.end("s")
    assert {turn.branch_id for turn in harness.transitions() if turn.turn_id in ("t1", "t3")} == {"t0"}
    assert not any(summary.context_change for summary in harness.turns().values())


def test_attempts_share_a_branch(harness: Harness) -> None:
    talk = grow(harness, 1)
    say(harness, "a", [*talk, user("and?")], "one")
    say(harness, "b", [*talk, user("and?")], "two")
    assert branches(harness) == {"t0": "t0", "a": "t0", "b": "t0"}
    assert change(harness, "b") == ""


def test_a_summary_in_place_of_the_beginning_opens_a_branch(harness: Harness) -> None:
    talk = grow(harness, 8)
    say(harness, "n", [SUMMARY, *talk[-4:], user("go on")])
    assert change(harness, "n") == "compacted: 12 of 16 messages gone, a summary in their place"
    assert branches(harness)["n"] == "n"
    # The last answer and the user's answer to it are still there, beyond doubt.
    state = harness.sent()["t7"]
    assert ([message.content for message in state.messages], state.next_turn_id) == (["go on"], "n")
    assert harness.turns()["n"].parent_turn_id == "t7"
    say(harness, "m", [SUMMARY, *talk[-4:], user("go on"), answer("response of n"), user("thanks")])
    assert branches(harness)["m"] == "n"
    assert change(harness, "m") == ""
    assert harness.sent()["n"].next_turn_id == "m"


def test_a_summary_of_everything_is_not_an_answer(harness: Harness) -> None:
    grow(harness, 3)
    say(harness, "n", [SUMMARY, user("thanks, that was wrong")])
    assert change(harness, "n") == "compacted: all 6 messages gone, a summary in their place"
    assert harness.states()["t2"] == "OPEN"
    assert harness.turns()["n"].parent_turn_id == ""
    harness.tracker.end("s")
    assert harness.sent()["t2"].kind == NEXT_STATE_KIND_SESSION_ENDED


@pytest.mark.parametrize("kept", [slice(0, 0), slice(0, 2)])
def test_messages_dropped_from_the_front_or_the_middle(harness: Harness, kept: slice) -> None:
    talk = grow(harness, 5)
    say(harness, "n", [*talk[kept], *talk[6 + kept.stop:], user("a")])
    assert change(harness, "n") == "compacted: 6 of 10 messages gone"
    assert harness.sent()["t4"].next_turn_id == "n"
    assert list(harness.sent()) == ["t0", "t1", "t2", "t3", "t4"], "nothing is judged twice"


def test_dropped_messages_do_not_make_an_answer_of_what_follows(harness: Harness) -> None:
    talk = history(1)
    say(harness, "t0", talk[:1], talk[1].content)
    say(harness, "t1", [*talk, user("q1")], "a1")
    # The last exchange was dropped, and another question follows the first answer, which has its next state already.
    say(harness, "n", [*talk, user("completely different")])
    assert change(harness, "n") == "edited: message 4 differs"
    assert harness.states()["t1"] == "OPEN"
    assert harness.turns()["n"].parent_turn_id == "t0"
    assert branches(harness)["n"] == "n"


def test_an_edited_message_opens_a_branch(harness: Harness) -> None:
    talk = grow(harness, 3)
    say(harness, "n", [*talk[:2], user("question 1, but better")])
    assert change(harness, "n") == "edited: message 4 differs"
    assert (harness.turns()["n"].parent_turn_id, branches(harness)["n"]) == ("t0", "n")
    assert harness.states()["t2"] == "OPEN"


def test_an_edit_before_the_last_answer_leaves_its_judgement_alone(harness: Harness) -> None:
    calls = ChatMessage(role="assistant", tool_calls=[ToolCall(id="c1", name="ls", arguments_json="{}")])
    talk = [user("list"), calls, tool("a b c"), answer("There are three files.")]
    harness.tell(turn("t0", talk[:1], calls), turn("t1", talk[:3], talk[3]))
    cleared = [talk[0], talk[1], tool("[Old tool result content cleared]"), talk[3], user("wrong, four")]
    harness.tell(turn("n", cleared, "sorry"))
    assert change(harness, "n") == "edited: message 3 differs"
    assert [message.content for message in harness.sent()["t1"].messages] == ["wrong, four"], "it stands in its place"
    long = answer("There are three files in this folder: a, b and c. Shall I show what is in one of them?")
    harness.tell(turn("t2", [user("list"), calls, tool("a b c"), user("look")], long, session_id="l"))
    harness.tell(turn("n2", [user("list"), calls, tool("cleared"), user("look"), long, user("no")], "x",
                      session_id="l"))
    assert change(harness, "n2") == "edited: message 3 differs"
    assert [message.content for message in harness.sent()["t2"].messages] == ["no"]


def test_what_two_branches_may_have_said_is_not_guessed(harness: Harness) -> None:
    for name in ("x", "y"):
        talk = [user(f"topic {name}"), answer("ok"), user("and?")]
        say(harness, f"{name}0", talk[:1], "ok")
        say(harness, f"{name}1", talk, "the same answer")
    say(harness, "n", [SUMMARY, user("and?"), answer("the same answer"), user("bad")])
    assert change(harness, "n").startswith("compacted")
    assert {harness.states()["x1"], harness.states()["y1"]} == {"OPEN"}


def test_asking_again_after_the_answer_was_answered_opens_a_branch(harness: Harness) -> None:
    talk = grow(harness, 2)
    say(harness, "again", talk[:1], "another answer")
    assert change(harness, "again") == "regenerated: turn t0 answered the same request"
    assert branches(harness)["again"] == "again"
    say(harness, "next", [talk[0], answer("another answer"), user("better")])
    assert branches(harness)["next"] == "again"
    assert harness.sent()["again"].next_turn_id == "next"


def test_another_conversation_of_the_session_is_no_change(harness: Harness) -> None:
    grow(harness, 3)
    say(harness, "n", [user("what is the weather"), answer("from elsewhere"), user("question 1")])
    assert change(harness, "n") == ""
    assert branches(harness)["n"] == "n"


def test_all_of_it_survives_a_restart(harness: Harness) -> None:
    talk = grow(harness, 8)
    harness.restart()
    say(harness, "n", [SUMMARY, *talk[-4:], user("go on")])
    assert change(harness, "n") == "compacted: 12 of 16 messages gone, a summary in their place"
    assert harness.sent()["t7"].next_turn_id == "n"


@pytest.mark.parametrize("seen", ["I wou", "I would  say that", "I would say that the"])
def test_a_response_that_the_client_cut_is_continued_by_what_it_has_of_it(harness: Harness, seen: str) -> None:
    say(harness, "t0", [user("why?")], "I would say that the", finish_reason=FINISH_REASON_CANCELLED)
    say(harness, "t1", [user("why?"), answer(seen), user("stop, be brief")])
    assert [message.content for message in harness.sent()["t0"].messages] == ["stop, be brief"]
    assert harness.turns()["t0"].flaw == "the client cut the response off"
    assert (harness.turns()["t1"].parent_turn_id, branches(harness)["t1"], change(harness, "t1")) == ("t0", "t0", "")


def test_only_a_response_that_was_cut_is_continued_by_a_part_of_it(harness: Harness) -> None:
    say(harness, "t0", [user("why?")], "I would say that the")
    say(harness, "t1", [user("why?"), answer("I wou"), user("stop")])
    assert harness.states()["t0"] == "OPEN"
    assert change(harness, "t1") == "edited: message 3 differs"
    say(harness, "t2", [user("how?")], "I would", finish_reason=FINISH_REASON_CANCELLED, session_id="l")
    say(harness, "t3", [user("how?"), answer("Error: LLM request timed out."), user("try again")], session_id="l")
    assert harness.states()["t2"] == "OPEN", "what was said is said of the banner"


@pytest.mark.parametrize("between", [[], [answer("")], [answer("(no response)")], [answer("[empty response]")]])
def test_an_empty_response_is_answered_too(harness: Harness, between: list[ChatMessage]) -> None:
    harness.tell(turn("t0", [user("why?")], ChatMessage(role="assistant")))
    say(harness, "t1", [user("why?"), *between, user("hello?")])
    assert [message.content for message in harness.sent()["t0"].messages] == ["hello?"]
    assert harness.turns()["t0"].flaw == "the response is empty"
    assert (branches(harness)["t1"], change(harness, "t1")) == ("t0", "")


def test_tool_results_count_in_any_order(harness: Harness) -> None:
    calls = ChatMessage(role="assistant", tool_calls=[
        ToolCall(id=f"c{i}", name="read", arguments_json=f'{{"file": {i}}}') for i in range(3)])
    results = [tool(f"content {i}", f"c{i}") for i in range(3)]
    harness.tell(turn("t0", [user("read")], calls))
    harness.tell(turn("t1", [user("read"), calls, results[2], results[0], results[1]], "done"))
    assert list(harness.sent()["t0"].messages) == [results[2], results[0], results[1]]
    harness.tell(turn("t2", [user("read"), calls, *results, answer("done"), user("thanks")], "x"))
    assert [message.content for message in harness.sent()["t1"].messages] == ["thanks"]
    assert change(harness, "t2") == ""
