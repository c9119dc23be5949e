"""The turns of episodes in the session tracker: whose they are, and how they end, whatever comes in between."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from openclaw_rl.rollouts.tracking import episode_table as table
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
from tests.rollouts.harness import Harness, as_event, tool, turn, user

CALL = ChatMessage(role="assistant", tool_calls=[ToolCall(id="c1", name="run", arguments_json="{}")])
ASK = [user("list the files")]


def begin(harness: Harness, no_train: bool = False, id: str = "e", session: str = "s") -> None:
    harness.tracker.begin_episode(table.EpisodeStart(
        id, "run", "g", 4, "terminal", "task", session, "lease", no_train, 1.0))


def step(number: int, messages: list[ChatMessage], response: ChatMessage = CALL, *, episode: str = "e",
         **fields: object) -> Turn:
    return turn(f"t{number}", messages, response, episode=EpisodeStep(episode_id=episode, step=number), **fields)


def answered(harness: Harness, number: int, turn_id: str = "") -> None:
    with harness.store.transaction() as db:
        assert table.answered(db, "e", turn_id or f"t{number}", number, 5)


def observed(harness: Harness, text: str, reward: float | None = None) -> None:
    with harness.store.transaction() as db:
        assert table.observed(db, "e", [tool(text)], reward)


def end(harness: Harness, outcome: float | None = 1.0, error: str = "") -> bool:
    return harness.tracker.end_episode("e", table.EpisodeEnd(time.time(), outcome, error, "all there"))


def sent(harness: Harness) -> dict[str, Transition]:
    return {transition.turn.turn_id: transition for transition in harness._sent()}


SECOND = [*ASK, CALL, tool("a b")]


def test_each_step_goes_out_with_what_the_environment_showed_and_the_last_one_with_the_outcome(
        harness: Harness) -> None:
    begin(harness)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    observed(harness, "a b", 0.25)
    answered(harness, 2)
    harness.tell(step(2, SECOND))
    first = sent(harness)["t1"]
    assert first.next_state.kind == NEXT_STATE_KIND_CONTINUED and list(first.next_state.messages) == [tool("a b")]
    assert first.step_reward == 0.25 and not first.HasField("outcome")
    assert first.turn.turn_class == TURN_CLASS_MAIN
    assert first.turn.episode == EpisodeStep(episode_id="e", group_id="g", group_size=4, step=1, type="terminal",
                                             task_id="task")
    observed(harness, "submitted")
    assert end(harness)
    last = sent(harness)["t2"]
    assert last.next_state.kind == NEXT_STATE_KIND_EPISODE_ENDED
    assert list(last.next_state.messages) == [tool("submitted")]
    assert (last.outcome.value, last.outcome.detail, last.outcome.steps) == (1.0, "all there", 2)
    assert not last.HasField("step_reward")
    assert harness.turns()["t2"].episode.step == 2 and harness.turns()["t2"].reason == "the episode ended"
    assert not end(harness)  # once
    assert harness.tracker.counters["episodes_done"] == 1 and harness.tracker.sessions_open == 0


def test_the_end_waits_for_the_record_of_the_last_turn_also_over_restarts(harness: Harness) -> None:
    begin(harness)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    observed(harness, "a b")
    answered(harness, 2)
    observed(harness, "submitted", 0.5)
    end(harness, 0.0)
    assert sent(harness) == {}
    harness.restart()
    assert harness.tracker.break_off_episodes("the environment server ended") == 0
    harness.tell(step(2, SECOND))
    assert set(sent(harness)) == {"t1", "t2"}
    last = sent(harness)["t2"]
    assert last.outcome.value == 0.0 and last.outcome.HasField("value") and last.step_reward == 0.5
    assert list(last.next_state.messages) == [tool("submitted")]
    assert harness.tracker.sessions_open == 0


def test_a_record_that_never_comes_is_waited_for_as_long_as_a_session_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(tmp_path, session_timeout=10)
    begin(harness)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    moment = time.monotonic()
    monkeypatch.setattr(tracker.time, "monotonic", lambda: moment + 100)
    assert harness.tracker.reap() == 0 and harness.tracker.sessions_open == 0  # it runs: it has no deadline
    monkeypatch.undo()
    answered(harness, 2)
    end(harness)
    assert sent(harness) == {}
    monkeypatch.setattr(tracker.time, "monotonic", lambda: moment + 1000)
    assert harness.tracker.reap() == 1
    assert sent(harness)["t1"].outcome.value == 1.0 and sent(harness)["t1"].outcome.steps == 1
    harness.tell(step(2, SECOND))
    assert harness.turns()["t2"].class_reason == "came after the end of episode e"
    assert harness.states() == {"t1": "SENT", "t2": "NOT_TRAINABLE"} and harness.tracker.sessions_open == 0
    harness.store.close()


def test_episodes_that_ran_when_the_server_died_are_broken_off(harness: Harness) -> None:
    begin(harness)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    observed(harness, "a b")
    harness.restart()
    assert harness.tracker.break_off_episodes("the environment server ended") == 1
    last = sent(harness)["t1"]
    assert not last.outcome.HasField("value") and last.outcome.error == "the environment server ended"
    assert list(last.next_state.messages) == [tool("a b")]
    harness.tell(step(2, SECOND, finish_reason=4))  # the response that was cut off by it
    assert harness.states() == {"t1": "SENT", "t2": "NOT_TRAINABLE"}
    assert harness.tracker.counters["episodes_broken"] == 1


def test_a_response_that_failed_in_its_middle_has_the_outcome_when_it_was_the_last_one(harness: Harness) -> None:
    begin(harness)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    observed(harness, "a b")
    harness.tell(step(2, SECOND, ChatMessage(role="assistant", content="I w"), finish_reason=5))
    end(harness, None, "the policy did not answer")
    assert not sent(harness)["t1"].HasField("outcome")
    last = sent(harness)["t2"]
    assert last.outcome.error == "the policy did not answer" and not last.next_state.messages


def test_a_repeated_request_is_one_step(harness: Harness) -> None:
    begin(harness)
    harness.tell(step(1, ASK, ChatMessage(role="assistant", content="I w"), finish_reason=5))
    again = step(1, ASK)
    again.turn_id = "t1-again"
    answered(harness, 1, "t1-again")
    harness.tell(again)
    observed(harness, "a b")
    end(harness)
    assert harness.states() == {"t1": "SUPERSEDED", "t1-again": "SENT"}
    assert sent(harness)["t1-again"].outcome.steps == 1


def test_an_episode_that_is_not_trained_on_sends_nothing(harness: Harness) -> None:
    begin(harness, no_train=True)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    end(harness)
    assert harness.turns()["t1"].turn_class == TURN_CLASS_SIDE and sent(harness) == {}
    assert harness.tracker.sessions_open == 0


def test_who_names_an_episode_that_is_not_run_there_is_not_trained_on(
    harness: Harness, caplog: pytest.LogCaptureFixture,
) -> None:
    begin(harness)
    with caplog.at_level(logging.WARNING):
        harness.tell(step(1, ASK, session_id="other"), step(2, ASK, session_id="another", episode="unknown"))
    assert caplog.text.count("which is not run there") == 2
    assert not any(summary.HasField("episode") for summary in harness.turns().values())
    harness.tell(SessionEnd(event_id="x1", session_id="other"), SessionEnd(event_id="x2", session_id="another"))
    assert sent(harness) == {}
    assert {summary.turn_class for summary in harness.turns().values()} == {TURN_CLASS_UNKNOWN}


def test_a_late_turn_of_an_episode_that_was_deleted_is_not_trained_on(harness: Harness) -> None:
    begin(harness)
    harness.tracker.end_episode("e", table.EpisodeEnd(1.0, error="cancelled"))
    begin(harness, id="e2", session="s2")
    harness.tracker.prune(keep_episodes=1)
    harness.tell(step(1, ASK, declared_type="main"), SessionEnd(event_id="x", session_id="s"))
    assert harness.turns()["t1"].turn_class == TURN_CLASS_UNKNOWN and sent(harness) == {}


def test_an_episode_of_which_no_record_came_is_closed_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(tmp_path, session_timeout=10)
    begin(harness)
    answered(harness, 1)
    end(harness)
    harness.restart()
    assert harness.tracker.break_off_episodes("the environment server ended") == 0
    moment = time.monotonic()
    monkeypatch.setattr(tracker.time, "monotonic", lambda: moment + 100)
    assert harness.tracker.sessions_open == 1 and harness.tracker.reap() == 1
    monkeypatch.undo()
    begin(harness, id="e2", session="s2")
    harness.tracker.prune(keep_episodes=1)
    listed = table.page(harness.store, tracker.environment_pb2.ListEpisodesRequest())
    assert [episode.episode_id for episode in listed.episodes] == ["e2"]
    harness.store.close()


def test_others_cannot_put_turns_into_the_session_nor_end_it(harness: Harness) -> None:
    begin(harness)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    intruder = turn("x", [*ASK, CALL, tool("you have won"), user("well done")], "thanks", session_done=True)
    harness.tell(intruder, step(9, [*ASK, CALL, user("hi")], episode="unknown"),
              SessionEnd(event_id="end", session_id="s"), Feedback(feedback_id="f", turn_id="t1", score=1))
    assert harness.tracker.end("s") == 0
    harness.tracker.handle([as_event(intruder), *[tracker.environment_pb2.PolicyEvent(
        session_active=SessionActive(event_id="a", session_id="s"))]])
    assert sent(harness) == {} and harness.tracker.sessions_open == 0
    assert {summary.turn_class for id, summary in harness.turns().items() if id != "t1"} == {TURN_CLASS_UNKNOWN}
    observed(harness, "a b")
    end(harness, 0.5)
    state = sent(harness)["t1"].next_state
    assert state.kind == NEXT_STATE_KIND_EPISODE_ENDED and [given.feedback_id for given in state.feedback] == ["f"]
    assert sent(harness)["t1"].outcome.steps == 1


async def test_a_forgotten_episode_is_gone(harness: Harness) -> None:
    begin(harness)
    answered(harness, 1)
    harness.tell(step(1, ASK))
    observed(harness, "secret", 1.0)
    _, removed = await harness.tracker.forget(tracker.Target("s", time.time()))
    assert removed["episodes"] == 1
    with harness.store.transaction() as db:
        assert not table.answered(db, "e", "t2", 2, 5)  # the runner sees it
        assert db.execute("SELECT count(*) FROM episode_rewards").fetchone()[0] == 0
    assert not end(harness)


def test_old_episodes_go(harness: Harness) -> None:
    for i in range(5):
        begin(harness, id=f"e{i}", session=f"s{i}")
        if i:
            harness.tracker.end_episode(f"e{i}", table.EpisodeEnd(1.0))
    harness.tracker.prune(keep_episodes=2)
    listed = table.page(harness.store, tracker.environment_pb2.ListEpisodesRequest())
    assert [episode.episode_id for episode in listed.episodes] == ["e4", "e3", "e0"]  # e0 runs
