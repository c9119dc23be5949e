"""The steps of episodes at the judge: tool results count as others', the outcome is no vote and goes on as it came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.reward.judges.rules import RulesJudge, judge
from openclaw_rl.v1 import common_pb2, turn_pb2
from tests.reward.factory import message, transition
from tests.reward.test_service import Desk

CALL = [turn_pb2.ToolCall(id="c", name="run", arguments_json='{"command": "make"}')]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.close()


def last(text: str, **outcome: object) -> turn_pb2.Transition:
    messages = [message("tool", text, tool_call_id="c")] if text else []
    found = transition(messages=messages, answer="", calls=CALL, kind=turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED)
    found.turn.episode.CopyFrom(turn_pb2.EpisodeStep(episode_id="e", group_id="g", group_size=2, step=1))
    found.outcome.CopyFrom(turn_pb2.EpisodeOutcome(**outcome))  # type: ignore[arg-type]
    found.step_reward = 0.25
    return found


@pytest.mark.parametrize(("text", "value", "score"), [
    ("exit code: 2", 1.0, -1), ("exit code: 0", 0.0, 0), ("error: the arguments of run are not valid JSON", 1.0, -1),
    ("", 1.0, 0)])
async def test_a_last_step_is_judged_by_what_its_call_gave(desk: Desk, text: str, value: float, score: int) -> None:
    service = desk.service(RulesJudge())
    given = last(text, value=value, steps=1)
    assert [ack.status for ack in await service.accept([given])] == [common_pb2.ACK_STATUS_ACCEPTED]
    [sample] = desk.sent()
    assert sample.judgement.score == score and not sample.judgement.failed
    assert sample.transition == given and sample.transition.outcome.value == value


def test_an_exit_code_is_worth_nothing_by_itself_in_an_episode() -> None:
    of_episode = last("exit code: 0", value=0.0, steps=1)
    of_user = turn_pb2.Transition()
    of_user.CopyFrom(of_episode)
    of_user.turn.ClearField("episode")
    assert (judge(of_episode).score, judge(of_user).score) == (0, 1)
    assert "says nothing of the task" in judge(of_episode).rationale


async def test_a_broken_off_episode_goes_on_too(desk: Desk) -> None:
    service = desk.service(RulesJudge())
    await service.accept([last("", error="the sandbox died", steps=1)])
    [sample] = desk.sent()
    assert sample.transition.outcome.error == "the sandbox died"
    assert "the episode ended without an observation" in sample.judgement.votes[0].rationale
