"""Continuation, branches, ends, feedback, restart."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest

from openclaw_rl.delivery import receiver
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.rollouts.tracking import tracker, views
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.v1.common_pb2 import ACK_STATUS_ACCEPTED, ACK_STATUS_DUPLICATE, ACK_STATUS_REJECTED
from openclaw_rl.v1.environment_pb2 import ListTurnsRequest, PolicyEvent
from openclaw_rl.v1.turn_pb2 import (
    FINISH_REASON_CANCELLED,
    FINISH_REASON_LENGTH,
    NEXT_STATE_KIND_CONTINUED,
    NEXT_STATE_KIND_FEEDBACK,
    NEXT_STATE_KIND_SESSION_ENDED,
    NEXT_STATE_KIND_SESSION_TIMEOUT,
    TURN_CLASS_MAIN,
    ChatMessage,
    ContentPart,
    Feedback,
    SessionActive,
    SessionEnd,
    ToolCall,
    Transition,
    Turn,
)
from tests.rollouts.harness import Harness, answer, as_event, tool, turn, user

HELLO = [user("hi"), answer("hello")]


def test_the_next_request_of_the_branch_is_the_next_state(harness: Harness) -> None:
    assert harness.tell(turn("t1", [user("hi")], "hello")) == [ACK_STATUS_ACCEPTED]
    assert harness.sent() == {}
    harness.tell(turn("t2", [*HELLO, user("too long"), user("again")], "ok", policy_version=3))
    state = harness.sent()["t1"]
    assert state.kind == NEXT_STATE_KIND_CONTINUED
    assert [message.content for message in state.messages] == ["too long", "again"]
    assert state.next_turn_id == "t2"
    assert state.HasField("observed_at")
    assert harness.states() == {"t1": "SENT", "t2": "OPEN"}
    assert harness.turns()["t2"].parent_turn_id == "t1"
    assert harness.turns()["t1"].reason == "continued by turn t2"
    assert harness.tracker.policy_version == 3
    assert harness.journal.lines == [("s", 0, "MAIN", "hello"), ("s", 0, "NextState", "too long\nagain"),
                                  ("s", 3, "MAIN", "ok")]


def test_the_transition_carries_the_whole_turn_with_its_class(harness: Harness) -> None:
    given = turn("t1", [user("hi")], "hello", session_done=True, metadata={"a": "b"})
    given.tokens.response_ids.extend([1, 2])
    harness.tell(given)
    [row] = harness.outbox.window(0, 10, 2**20)
    assert row.id == "t1"
    expected = Turn()
    expected.CopyFrom(given)
    expected.turn_class = TURN_CLASS_MAIN
    expected.class_reason, expected.branch_id = "the last message is of role user", "t1"
    assert Transition.FromString(row.payload).turn == expected


def test_all_tool_results_and_parts_are_the_next_state(harness: Harness) -> None:
    calls = ChatMessage(role="assistant", tool_calls=[
        ToolCall(id=f"c{i}", name="ls", arguments_json='{"path": "/"}') for i in range(3)])
    harness.tell(turn("t1", [user("list")], calls))
    again = ChatMessage(role="assistant", tool_calls=[
        ToolCall(id=f"other{i}", name="ls", arguments_json='{"path":"/"}') for i in range(3)])
    picture = ChatMessage(role="user", parts=[ContentPart(text="see"), ContentPart(image_url="data:x")])
    system = ChatMessage(role="system", content="It is noon")
    harness.tell(turn("t2", [system, user("list"), again, tool("a"), tool("b"), tool("c"), system, picture], "ok"))
    state = harness.sent()["t1"]
    assert list(state.messages) == [tool("a"), tool("b"), tool("c"), picture]


def test_a_request_that_continues_nothing_is_a_branch_of_its_own(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"), turn("t2", [user("other")], "thing"),
              turn("t3", [*HELLO, user("bye")], "bye"),
              turn("t4", [user("hi"), answer("edited by the client"), user("bad")], "sorry"))
    assert harness.sent().keys() == {"t1"}
    assert harness.sent()["t1"].next_turn_id == "t3"
    found, turns = views.session(harness.store, "s")
    assert (found.turns, found.branches, found.ended) == (4, 3, False)
    assert [summary.turn_id for summary in turns] == ["t1", "t2", "t3", "t4"]


def test_two_continuations_of_one_turn_are_branches_and_the_first_is_its_next_state(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"), turn("t2", [*HELLO, user("one")], "1"),
              turn("t3", [*HELLO, user("two")], "2"))
    assert [message.content for message in harness.sent()["t1"].messages] == ["one"]
    assert harness.turns()["t3"].parent_turn_id == "t1"
    harness.tell(turn("t4", [*HELLO, user("two"), answer("2"), user("fine")], "ok"))
    assert harness.sent().keys() == {"t1", "t3"}


def test_sessions_do_not_mix(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello", session_id="a"))
    harness.tell(turn("t2", [*HELLO, user("bye")], "bye", session_id="b"))
    assert harness.sent() == {}
    assert harness.turns()["t2"].parent_turn_id == ""


def test_side_turns_do_not_disturb_the_conversation(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"))
    harness.tell(turn("side", [*HELLO, user("make a title")], "Greeting", declared_type="side"))
    assert harness.sent() == {}
    assert harness.states()["side"] == "NOT_TRAINABLE"
    harness.tell(turn("t2", [*HELLO, user("make a title"), answer("Greeting"), user("too long")], "ok"))
    assert [message.content for message in harness.sent()["t1"].messages] == ["too long"]
    harness.tell(SessionEnd(event_id="e", session_id="s"))
    assert harness.sent().keys() == {"t1", "t2"}
    assert harness.tracker.counters == {"turns_main": 2, "turns_side": 1, "total_interactions": 3,
                                        "transitions_sent": 2}


def test_unknown_turns_are_kept_and_not_sent(harness: Harness) -> None:
    harness.tell(turn("t1", [], "text", api="grpc.generate", session_done=True))
    assert harness.sent() == {}
    assert harness.states() == {"t1": "NOT_TRAINABLE"}
    assert harness.turns()["t1"].reason == "unknown turns are not trained on"
    assert harness.tracker.counters["turns_unknown"] == 1


def test_the_end_of_a_session_is_a_next_state(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"), turn("t2", [user("other")], "thing"))
    assert harness.tracker.sessions_open == 1
    harness.tell(SessionEnd(event_id="e1", session_id="s"))
    assert {turn_id: state.kind for turn_id, state in harness.sent().items()} == {
        "t1": NEXT_STATE_KIND_SESSION_ENDED, "t2": NEXT_STATE_KIND_SESSION_ENDED}
    assert harness.tracker.sessions_open == 0
    harness.tell(turn("t3", [*HELLO, user("back")], "again"))
    assert harness.tracker.sessions_open == 1
    assert harness.turns()["t3"].parent_turn_id == "t1"
    assert harness.tracker.end("s") == 1
    assert harness.tracker.end("s") == 0
    assert list(harness.sent()) == ["t1", "t2", "t3"]


def test_session_done_closes_the_turn_that_says_it(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"), turn("t2", [*HELLO, user("bye")], "bye", session_done=True))
    assert {turn_id: state.kind for turn_id, state in harness.sent().items()} == {
        "t1": NEXT_STATE_KIND_CONTINUED, "t2": NEXT_STATE_KIND_SESSION_ENDED}
    assert views.session(harness.store, "s")[0].ended


def test_an_idle_session_times_out(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(tracker.time, "monotonic", lambda: now)
    harness.restart()
    harness.tell(turn("t1", [user("hi")], "hello"), turn("t2", [user("x")], "y", session_id="b"))
    now = 299
    assert harness.tracker.reap() == 0
    harness.tell(turn("t3", [user("x"), answer("y"), user("z")], "!", session_id="b"))
    now = 301
    assert harness.tracker.reap() == 1
    assert harness.sent()["t1"].kind == NEXT_STATE_KIND_SESSION_TIMEOUT
    assert "t3" not in harness.sent()
    now = 600
    assert harness.tracker.reap() == 1
    assert harness.sent()["t3"].kind == NEXT_STATE_KIND_SESSION_TIMEOUT
    assert harness.tracker.sessions_open == 0


def test_a_session_whose_response_takes_long_does_not_time_out(
        harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(tracker.time, "monotonic", lambda: now)
    harness.restart()
    harness.tell(turn("t1", [user("hi")], "hello"), turn("x", [user("x")], "y", session_id="x", session_done=True))

    def active(number: int, session: str) -> list[int]:
        event = SessionActive(event_id=f"a{number}", session_id=session)
        return [ack.status for ack in harness.tracker.handle([PolicyEvent(session_active=event)])]

    for number in range(1, 5):
        now = number * 200.0
        assert active(number, "s") == [ACK_STATUS_ACCEPTED]
        assert harness.tracker.reap() == 0
    assert active(4, "s") == [ACK_STATUS_DUPLICATE]
    assert active(5, "x") == active(6, "nobody") == [ACK_STATUS_ACCEPTED]
    assert harness.tracker.sessions_open == 1, "neither a session that has ended nor an unknown one is opened"
    harness.tell(turn("t2", [*HELLO, user("thanks")], "welcome"))
    assert [message.content for message in harness.sent()["t1"].messages] == ["thanks"]
    now += 301
    assert harness.tracker.reap() == 1


def test_the_timeout_goes_on_over_a_restart(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"))
    with harness.store.transaction() as db:
        db.execute("UPDATE sessions SET active = active - 1000")
    now = 0.0
    monkeypatch.setattr(tracker.time, "monotonic", lambda: now)
    harness.restart()
    assert harness.tracker.sessions_open == 1
    now = tracker.START_GRACE - 1
    assert harness.tracker.reap() == 0, "turns may still be under way"
    now += 2
    assert harness.tracker.reap() == 1
    assert harness.sent().keys() == {"t1"}


def test_feedback_closes_an_open_turn_at_once(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"))
    harness.tell(Feedback(feedback_id="f1", turn_id="t1", score=-1, comment="too long"))
    state = harness.sent()["t1"]
    assert state.kind == NEXT_STATE_KIND_FEEDBACK
    assert [(given.score, given.comment) for given in state.feedback] == [(-1, "too long")]
    harness.tell(turn("t2", [*HELLO, user("bye")], "bye"), Feedback(feedback_id="f2", turn_id="t1", score=1))
    assert list(harness.sent()) == ["t1"], "a turn is judged once"
    assert harness.journal.lines[1] == ("s", 0, "NextState", "-1 too long")
    assert [given.feedback_id for given in views.feedback(harness.store, "s")] == ["f1", "f2"]
    assert views.feedback(harness.store, "another") == []


def test_feedback_on_a_session_means_its_last_main_turn(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"), turn("t2", [user("x")], "y"),
              turn("side", [user("title")], "z", declared_type="side"))
    harness.tell(Feedback(feedback_id="f1", session_id="s", comment="nice"))
    assert list(harness.sent()) == ["t2"]


def test_feedback_that_comes_before_its_turn_waits_for_it(harness: Harness) -> None:
    harness.tell(Feedback(feedback_id="f1", turn_id="t1", score=1))
    harness.restart()
    harness.tell(turn("t1", [user("hi")], "hello"))
    assert harness.sent()["t1"].feedback[0].feedback_id == "f1"


def test_feedback_on_what_is_not_trainable_is_kept_only(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello", declared_type="side"))
    assert harness.tell(Feedback(feedback_id="f1", turn_id="t1", score=1),
                     Feedback(feedback_id="f2", session_id="nobody", score=1)) == [ACK_STATUS_ACCEPTED] * 2
    assert harness.sent() == {}
    assert len(harness.store.query("SELECT * FROM feedback")) == 2


def test_a_message_that_comes_again_changes_nothing(harness: Harness) -> None:
    first = turn("t1", [user("hi")], "hello")
    end = SessionEnd(event_id="e1", session_id="s")
    harness.tell(first, end)
    harness.restart()
    assert harness.tell(first, end) == [ACK_STATUS_DUPLICATE] * 2
    assert list(harness.sent()) == ["t1"]
    assert harness.tracker.counters["turns_main"] == 1


def test_everything_goes_on_after_a_restart(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello", policy_version=2))
    harness.restart()
    assert harness.tracker.sessions_open == 1
    assert harness.tracker.policy_version == 2
    harness.tell(turn("t2", [*HELLO, user("bye")], "bye"))
    assert harness.sent()["t1"].next_turn_id == "t2"
    assert harness.tracker.counters["turns_main"] == 2


def test_a_failed_batch_leaves_no_trace(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"))
    monkeypatch.setattr(harness.outbox, "put", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        harness.tell(turn("x", [user("x")], "y", session_id="b"), turn("t2", [*HELLO, user("bye")], "bye"))
    monkeypatch.undo()
    assert harness.states() == {"t1": "OPEN"}
    assert harness.tracker.counters["turns_main"] == 1
    assert harness.tracker.sessions_open == 1
    assert harness.tell(turn("t2", [*HELLO, user("bye")], "bye")) == [ACK_STATUS_ACCEPTED]
    assert harness.sent().keys() == {"t1"}


async def test_the_others_of_a_failed_batch_are_taken_as_they_came(harness: Harness) -> None:
    bad = turn("bad", [user("x")], "y")
    bad.finished_at.seconds = 2**62
    first = turn("t1", [user("hi")], "hello", session_id="", client="ann")
    batch = [as_event(first), as_event(bad)]
    acks = await receiver._handle(batch, partial(harness.store.call, harness.tracker.handle), message_id)
    assert [ack.status for ack in acks] == [ACK_STATUS_ACCEPTED, ACK_STATUS_REJECTED]
    assert harness.tell(first) == [ACK_STATUS_DUPLICATE]  # the answer was lost, and it comes again
    harness.tell(turn("t2", [*HELLO, user("bye")], "bye", session_id="", client="ann"))
    assert harness.sent().keys() == {"t1"}


@pytest.mark.parametrize(("event", "reason"), [
    (PolicyEvent(), "the message has none of turn, feedback, session_end and session_active"),
    (PolicyEvent(turn=Turn()), "the turn has no id"),
    (PolicyEvent(session_end=SessionEnd(event_id="e")), "session_end.session_id is empty"),
    (PolicyEvent(session_active=SessionActive(event_id="e")), "session_active.session_id is empty"),
    (PolicyEvent(feedback=Feedback(feedback_id="f")),
     "feedback.turn_id and feedback.session_id are empty: one of them must say what is meant"),
    (PolicyEvent(feedback=Feedback(feedback_id="f", turn_id="t", score=2)),
     "feedback.score is 2: must be from -1 to +1"),
    (PolicyEvent(feedback=Feedback(feedback_id="f", turn_id="t", score=float("nan"))),
     "feedback.score is nan: must be from -1 to +1"),
])
def test_bad_events_are_refused_and_the_others_taken(harness: Harness, event: PolicyEvent, reason: str) -> None:
    refused, taken = harness.tracker.handle([event, PolicyEvent(turn=turn("t1", [user("hi")], "hello"))])
    assert (refused.status, refused.reason) == (ACK_STATUS_REJECTED, reason)
    assert taken.status == ACK_STATUS_ACCEPTED


def test_odd_turns_are_turns_and_marked(harness: Harness) -> None:
    harness.tell(turn("t1", [user("a")], "hel", finish_reason=FINISH_REASON_CANCELLED),
              turn("t2", [user("b")], "long", finish_reason=FINISH_REASON_LENGTH), turn("t3", [user("c")], " "),
              turn("t4", [user("d")], "", finish_reason=FINISH_REASON_CANCELLED))
    assert [summary.flaw for summary in harness.turns().values()] == [
        "the client cut the response off", "the response stopped at the token limit", "the response is empty",
        "the client cut the response off; the response is empty"]
    harness.tracker.end("s")
    assert harness.sent().keys() == {"t1", "t2", "t3", "t4"}
    assert (harness.turns()["t3"].reason, harness.turns()["t3"].flaw) == ("the session ended", "the response is empty")


def test_a_refused_transition_is_told(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello", session_done=True))
    with harness.store.transaction() as db:
        harness.tracker.rejected(db, "t1", "no messages")
    assert harness.states() == {"t1": "REJECTED"}
    assert harness.turns()["t1"].reason == "the judge refused it: no messages"


def test_turns_without_a_session_are_joined_for_the_same_client_only(harness: Harness) -> None:
    def nameless(turn_id: str, client: str, messages: list[ChatMessage], response: str) -> Turn:
        return turn(turn_id, messages, response, session_id="", client=client)

    harness.tell(nameless("a1", "ann", [user("hi")], "hello"))
    harness.restart()
    harness.tell(nameless("a2", "ann", [*HELLO, user("bye")], "bye"),
                 nameless("b1", "bob", [*HELLO, user("bye")], "bye"))
    turns = harness.turns()
    assert turns["a1"].session_id == turns["a2"].session_id != turns["b1"].session_id
    assert harness.sent().keys() == {"a1"}
    # Of two conversations of one client that began alike the newest counts.
    harness.tell(nameless("c1", "cat", [user("hi")], "hello"), nameless("c2", "cat", [user("hi")], "hello"),
              nameless("c3", "cat", [*HELLO, user("bye")], "bye"))
    turns = harness.turns()
    assert turns["c1"].session_id != turns["c2"].session_id == turns["c3"].session_id
    assert harness.sent().keys() == {"a1", "c2"}


def test_users_with_keys_of_their_own_never_answer_each_other_in_a_session_of_one_name(harness: Harness) -> None:
    ann, bob = (client_digest(key, "10.0.0.1", "") for key in ("sk-ann", "sk-bob"))
    long = "A heron is a wading bird with long legs and a long neck that lives near water and eats fish and frogs."
    asked = [user("What is a heron?")]
    harness.tell(turn("a1", asked, long, client=ann), turn("b1", asked, long, client=bob))
    assert harness.states() == {"a1": "OPEN", "b1": "OPEN"}  # none repeats the other
    harness.tell(turn("b2", [*asked, answer(long), user("Wrong.")], "Oh.", client=bob))
    assert harness.sent().keys() == {"b1"}
    harness.tell(turn("b3", [user("(summary of our conversation)"), answer(long), user("So?")], "Yes.", client=bob))
    elsewhere = client_digest("sk-ann", "10.9.9.9", "x")  # the same key is the same user
    harness.tell(turn("a2", [*asked, answer(long), user("Thanks!")], "Bye.", client=elsewhere))
    assert harness.sent()["a1"].messages[0].content == "Thanks!"


def test_a_session_without_a_trainable_turn_is_noticed_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for i in range(25):
            harness.tell(turn(f"t{i}", [user("title")], "x", declared_type="side"))
            assert bool(harness.tracker.trainability.problem) == (i >= 19)
    assert harness.tracker.trainability.problem == (
        "none of the 25 requests since the start is trainable (25 side by rule 'declared type side'): check "
        "session_awareness in the configuration, and the X-Turn-Type that the client sends")
    assert len(caplog.records) == 1
    harness.tell(turn("main", [user("hi")], "hello"))
    assert harness.tracker.trainability.problem == ""
    for i in range(100):  # later it takes more: a framework may be busy with its own affairs
        harness.tell(turn(f"u{i}", [user("title")], "x", declared_type="side"))
        assert bool(harness.tracker.trainability.problem) == (i >= 99)
    assert "none of the 100 requests since the last trainable one" in harness.tracker.trainability.problem


def test_debug_logs_each_class_and_its_rule(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(tmp_path, debug=True)
    with caplog.at_level(logging.INFO):
        harness.tell(turn("t1", [user("hi")], "hello"))
    assert "turn t1 of session s is MAIN: the last message is of role user" in caplog.messages
    harness.store.close()


def test_old_summaries_go_and_open_turns_stay(harness: Harness) -> None:
    harness.tell(turn("open", [user("first")], "kept", session_id="o"),
              *(turn(f"t{i}", [user(str(i))], "x", session_id=f"s{i}", session_done=True) for i in range(10)))
    assert harness.tracker.prune(keep=4) == 6
    assert list(harness.turns()) == ["open", "t6", "t7", "t8", "t9"]
    assert [row["id"] for row in harness.store.query("SELECT id FROM sessions ORDER BY id")] == [
        "o", "s6", "s7", "s8", "s9"]
    harness.tell(turn("next", [user("first"), answer("kept"), user("thanks")], "x", session_id="o"))
    assert harness.sent()["open"].next_turn_id == "next"


def test_turns_are_listed_in_pages(harness: Harness) -> None:
    harness.tell(*(turn(f"t{i}", [user("u" * 500)], "r" * 500, session_id="ab"[i % 2]) for i in range(5)))
    listed, token = [], ""
    while True:
        page = views.turns(harness.store, ListTurnsRequest(page_size=2, page_token=token, include_superseded=True))
        listed += [summary.turn_id for summary in page.turns]
        token = page.next_page_token
        if not token:
            break
    assert listed == ["t4", "t3", "t2", "t1", "t0"]
    only = views.turns(harness.store, ListTurnsRequest(session_id="b", include_superseded=True)).turns
    assert [summary.turn_id for summary in only] == ["t3", "t1"]
    assert len(only[0].request_text) == len(only[0].response_text) == 200


def test_turns_are_listed_by_their_ids(harness: Harness) -> None:
    harness.tell(*(turn(f"t{i}", [user(str(i))], "x", session_id="ab"[i % 2]) for i in range(5)),
              turn("again", [user("1")], "y", session_id="b"))
    asked = ListTurnsRequest(turn_ids=["t1", "t4", "nobody", "again"])
    assert [summary.turn_id for summary in views.turns(harness.store, asked).turns] == ["again", "t4", "t1"]
    page = views.turns(harness.store, ListTurnsRequest(turn_ids=["t0", "t1", "t2"], page_size=2))
    assert [summary.turn_id for summary in page.turns] == ["t2", "t1"]
    with pytest.raises(MeshError, match="session_id"):
        views.turns(harness.store, ListTurnsRequest(turn_ids=["t0"], session_id="a"))
    with pytest.raises(MeshError, match="turn_ids"):
        views.turns(harness.store, ListTurnsRequest(turn_ids=["t"] * 1001))


def test_feedback_with_another_key_than_the_turns_is_ignored(
        harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    ann, bob, phone = (client_digest(*who) for who in (("k1", "10.0.0.1", "ann"), ("k2", "10.0.0.1", ""),
                                                       ("k1", "10.0.0.9", "")))
    harness.tell(turn("t1", [user("hi")], "hello", client=ann), turn("t2", [user("x")], "y", client=ann))
    harness.tell(Feedback(feedback_id="f1", turn_id="t1", score=-1, client=bob))
    assert harness.sent() == {}
    assert "feedback f1 on turn t1 is ignored: it was given with another API key than the turn's" in caplog.messages
    harness.tell(Feedback(feedback_id="f2", turn_id="t1", score=1, client=phone))  # another address, no user field
    harness.tell(Feedback(feedback_id="f3", turn_id="t2", score=1, client=client_digest("", "10.0.0.1", "")))  # no key
    assert {turn_id: [given.feedback_id for given in state.feedback] for turn_id, state in harness.sent().items()} == {
        "t1": ["f2"], "t2": ["f3"]}
    # Before the turn is here nobody knows whose it is; then it does not count either.
    harness.tell(Feedback(feedback_id="f4", turn_id="t3", score=-1, client=bob))
    harness.tell(turn("t3", [user("z")], "!", client=ann))
    assert harness.states()["t3"] == "OPEN"


def test_a_file_of_an_earlier_release_is_brought_up_to_date(harness: Harness) -> None:
    harness.tell(turn("t1", [user("hi")], "hello"))
    with harness.store.transaction() as db:
        db.execute("DROP INDEX turns_conversation")
        db.execute("DROP INDEX turns_leaves")
        for column in ("client", "branch", "change", "instructions", "conversation", "trail"):
            db.execute(f"ALTER TABLE turns DROP COLUMN {column}")
    harness.restart()
    harness.tell(turn("t2", [*HELLO, user("thanks")], "welcome"))
    assert harness.sent()["t1"].next_turn_id == "t2"
    assert harness.turns()["t2"].parent_turn_id == "t1"
    assert harness.turns()["t2"].branch_id == "t2"
