"""The turns of episodes in the book of sessions: whose they are, and how they end, whatever comes in between."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from openclaw_rl.rollouts.episodes import table
from openclaw_rl.rollouts.tracking import tracker
from openclaw_rl.v1.turn_pb2 import (
    NEXT_STATE_KIND_CONTINUED,
    NEXT_STATE_KIND_EPISODE_ENDED,
    TURN_CLASS_MAIN,
    TURN_CLASS_SIDE,
    TURN_CLASS_UNKNOWN,
    ChatMessage,
    EpisodeStep,
    Feedback,
    SessionActive,
    SessionEnd,
    ToolCall,
    Transition,
    Turn,
)
from tests.rollouts.talk import Desk, as_event, tool, turn, user

CALL = ChatMessage(role="assistant", tool_calls=[ToolCall(id="c1", name="run", arguments_json="{}")])
ASK = [user("list the files")]


def begin(desk: Desk, no_train: bool = False, id: str = "e", session: str = "s") -> None:
    desk.book.begin_episode(table.Begun(id, "run", "g", 4, "terminal", "task", session, "lease", no_train, 1.0))


def step(number: int, messages: list[ChatMessage], response: ChatMessage = CALL, *, episode: str = "e",
         **fields: object) -> Turn:
    return turn(f"t{number}", messages, response, episode=EpisodeStep(episode_id=episode, step=number), **fields)


def answered(desk: Desk, number: int, turn_id: str = "") -> None:
    with desk.store.transaction() as db:
        assert table.answered(db, "e", turn_id or f"t{number}", number, 5)


def observed(desk: Desk, text: str, reward: float | None = None) -> None:
    with desk.store.transaction() as db:
        assert table.observed(db, "e", [tool(text)], reward)


def end(desk: Desk, outcome: float | None = 1.0, error: str = "") -> bool:
    return desk.book.end_episode("e", table.Ended(time.time(), outcome, error, "all there"))


def sent(desk: Desk) -> dict[str, Transition]:
    return {transition.turn.turn_id: transition for transition in desk._sent()}


SECOND = [*ASK, CALL, tool("a b")]


def test_each_step_goes_out_with_what_the_environment_showed_and_the_last_one_with_the_outcome(desk: Desk) -> None:
    begin(desk)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    observed(desk, "a b", 0.25)
    answered(desk, 2)
    desk.tell(step(2, SECOND))
    first = sent(desk)["t1"]
    assert first.next_state.kind == NEXT_STATE_KIND_CONTINUED and list(first.next_state.messages) == [tool("a b")]
    assert first.step_reward == 0.25 and not first.HasField("outcome")
    assert first.turn.turn_class == TURN_CLASS_MAIN
    assert first.turn.episode == EpisodeStep(episode_id="e", group_id="g", group_size=4, step=1, type="terminal",
                                             task_id="task")
    observed(desk, "submitted")
    assert end(desk)
    last = sent(desk)["t2"]
    assert last.next_state.kind == NEXT_STATE_KIND_EPISODE_ENDED
    assert list(last.next_state.messages) == [tool("submitted")]
    assert (last.outcome.value, last.outcome.detail, last.outcome.steps) == (1.0, "all there", 2)
    assert not last.HasField("step_reward")
    assert desk.turns()["t2"].episode.step == 2 and desk.turns()["t2"].reason == "the episode ended"
    assert not end(desk)  # once
    assert desk.book.counters["episodes_done"] == 1 and desk.book.sessions_open == 0


def test_the_end_waits_for_the_record_of_the_last_turn_also_over_restarts(desk: Desk) -> None:
    begin(desk)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    observed(desk, "a b")
    answered(desk, 2)
    observed(desk, "submitted", 0.5)
    end(desk, 0.0)
    assert sent(desk) == {}
    desk.restart()
    assert desk.book.break_off_episodes("the environment server ended") == 0
    desk.tell(step(2, SECOND))
    assert set(sent(desk)) == {"t1", "t2"}
    last = sent(desk)["t2"]
    assert last.outcome.value == 0.0 and last.outcome.HasField("value") and last.step_reward == 0.5
    assert list(last.next_state.messages) == [tool("submitted")]
    assert desk.book.sessions_open == 0


def test_a_record_that_never_comes_is_waited_for_as_long_as_a_session_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(tmp_path, session_timeout=10)
    begin(desk)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    moment = time.monotonic()
    monkeypatch.setattr(tracker.time, "monotonic", lambda: moment + 100)
    assert desk.book.reap() == 0 and desk.book.sessions_open == 0  # it runs: it has no deadline
    monkeypatch.undo()
    answered(desk, 2)
    end(desk)
    assert sent(desk) == {}
    monkeypatch.setattr(tracker.time, "monotonic", lambda: moment + 1000)
    assert desk.book.reap() == 1
    assert sent(desk)["t1"].outcome.value == 1.0 and sent(desk)["t1"].outcome.steps == 1
    desk.tell(step(2, SECOND))
    assert desk.turns()["t2"].class_reason == "came after the end of episode e"
    assert desk.states() == {"t1": "SENT", "t2": "NOT_TRAINABLE"} and desk.book.sessions_open == 0
    desk.store.close()


def test_episodes_that_ran_when_the_server_died_are_broken_off(desk: Desk) -> None:
    begin(desk)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    observed(desk, "a b")
    desk.restart()
    assert desk.book.break_off_episodes("the environment server ended") == 1
    last = sent(desk)["t1"]
    assert not last.outcome.HasField("value") and last.outcome.error == "the environment server ended"
    assert list(last.next_state.messages) == [tool("a b")]
    desk.tell(step(2, SECOND, finish_reason=4))  # the response that was cut off by it
    assert desk.states() == {"t1": "SENT", "t2": "NOT_TRAINABLE"}
    assert desk.book.counters["episodes_broken"] == 1


def test_a_response_that_failed_in_its_middle_has_the_outcome_when_it_was_the_last_one(desk: Desk) -> None:
    begin(desk)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    observed(desk, "a b")
    desk.tell(step(2, SECOND, ChatMessage(role="assistant", content="I w"), finish_reason=5))
    end(desk, None, "the policy did not answer")
    assert not sent(desk)["t1"].HasField("outcome")
    assert sent(desk)["t2"].outcome.error == "the policy did not answer" and not sent(desk)["t2"].next_state.messages


def test_a_repeated_request_is_one_step(desk: Desk) -> None:
    begin(desk)
    desk.tell(step(1, ASK, ChatMessage(role="assistant", content="I w"), finish_reason=5))
    again = step(1, ASK)
    again.turn_id = "t1-again"
    answered(desk, 1, "t1-again")
    desk.tell(again)
    observed(desk, "a b")
    end(desk)
    assert desk.states() == {"t1": "SUPERSEDED", "t1-again": "SENT"}
    assert sent(desk)["t1-again"].outcome.steps == 1


def test_an_episode_that_is_not_trained_on_sends_nothing(desk: Desk) -> None:
    begin(desk, no_train=True)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    end(desk)
    assert desk.turns()["t1"].turn_class == TURN_CLASS_SIDE and sent(desk) == {}
    assert desk.book.sessions_open == 0


def test_who_names_an_episode_that_is_not_run_there_is_not_trained_on(
    desk: Desk, caplog: pytest.LogCaptureFixture,
) -> None:
    begin(desk)
    with caplog.at_level(logging.WARNING):
        desk.tell(step(1, ASK, session_id="other"), step(2, ASK, session_id="another", episode="unknown"))
    assert caplog.text.count("which is not run there") == 2
    assert not any(summary.HasField("episode") for summary in desk.turns().values())
    desk.tell(SessionEnd(event_id="x1", session_id="other"), SessionEnd(event_id="x2", session_id="another"))
    assert sent(desk) == {}
    assert {summary.turn_class for summary in desk.turns().values()} == {TURN_CLASS_UNKNOWN}


def test_a_late_turn_of_an_episode_that_was_deleted_is_not_trained_on(desk: Desk) -> None:
    begin(desk)
    desk.book.end_episode("e", table.Ended(1.0, error="cancelled"))
    begin(desk, id="e2", session="s2")
    desk.book.prune(keep_episodes=1)
    desk.tell(step(1, ASK, declared_type="main"), SessionEnd(event_id="x", session_id="s"))
    assert desk.turns()["t1"].turn_class == TURN_CLASS_UNKNOWN and sent(desk) == {}


def test_an_episode_of_which_no_record_came_is_closed_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(tmp_path, session_timeout=10)
    begin(desk)
    answered(desk, 1)
    end(desk)
    desk.restart()
    assert desk.book.break_off_episodes("the environment server ended") == 0
    moment = time.monotonic()
    monkeypatch.setattr(tracker.time, "monotonic", lambda: moment + 100)
    assert desk.book.sessions_open == 1 and desk.book.reap() == 1
    monkeypatch.undo()
    begin(desk, id="e2", session="s2")
    desk.book.prune(keep_episodes=1)
    listed = table.page(desk.store, tracker.environment_pb2.ListEpisodesRequest())
    assert [episode.episode_id for episode in listed.episodes] == ["e2"]
    desk.store.close()


def test_others_cannot_put_turns_into_the_session_nor_end_it(desk: Desk) -> None:
    begin(desk)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    intruder = turn("x", [*ASK, CALL, tool("you have won"), user("well done")], "thanks", session_done=True)
    desk.tell(intruder, step(9, [*ASK, CALL, user("hi")], episode="unknown"),
              SessionEnd(event_id="end", session_id="s"), Feedback(feedback_id="f", turn_id="t1", score=1))
    assert desk.book.end("s") == 0
    desk.book.handle([as_event(intruder), *[tracker.environment_pb2.PolicyEvent(
        session_active=SessionActive(event_id="a", session_id="s"))]])
    assert sent(desk) == {} and desk.book.sessions_open == 0
    assert {summary.turn_class for id, summary in desk.turns().items() if id != "t1"} == {TURN_CLASS_UNKNOWN}
    observed(desk, "a b")
    end(desk, 0.5)
    state = sent(desk)["t1"].next_state
    assert state.kind == NEXT_STATE_KIND_EPISODE_ENDED and [given.feedback_id for given in state.feedback] == ["f"]
    assert sent(desk)["t1"].outcome.steps == 1


async def test_a_forgotten_episode_is_gone(desk: Desk) -> None:
    begin(desk)
    answered(desk, 1)
    desk.tell(step(1, ASK))
    observed(desk, "secret", 1.0)
    _, removed = await desk.book.forget(tracker.Target("s", time.time()))
    assert removed["episodes"] == 1
    with desk.store.transaction() as db:
        assert not table.answered(db, "e", "t2", 2, 5)  # the runner sees it
        assert db.execute("SELECT count(*) FROM episode_rewards").fetchone()[0] == 0
    assert not end(desk)


def test_old_episodes_go(desk: Desk) -> None:
    for i in range(5):
        begin(desk, id=f"e{i}", session=f"s{i}")
        if i:
            desk.book.end_episode(f"e{i}", table.Ended(1.0))
    desk.book.prune(keep_episodes=2)
    listed = table.page(desk.store, tracker.environment_pb2.ListEpisodesRequest())
    assert [episode.episode_id for episode in listed.episodes] == ["e4", "e3", "e0"]  # e0 runs
