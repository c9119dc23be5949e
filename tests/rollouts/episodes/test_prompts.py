from __future__ import annotations

import json

import pytest

from openclaw_rl.rollouts.environments.interface import Observation, Opening, Tool
from openclaw_rl.rollouts.episodes import prompts
from openclaw_rl.rollouts.episodes.task_draw import draw_episodes
from openclaw_rl.rollouts.leases.actions import to_json
from openclaw_rl.rollouts.tasks.task import Action, Task
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.v1.environment_pb2 import RunEpisodesRequest
from openclaw_rl.v1.turn_pb2 import ToolCall

ANSWER = Tool("submit", "Ends it.", {"type": "object", "properties": {"answer": {"type": "string"}}})


def test_long_observations_are_cut_in_their_middle() -> None:
    text = prompts.observation_text(Observation({"text": "a" * 5000 + "b" * 5000}))
    assert text.startswith("aaa") and text.endswith("bbb") and "6000 characters left out" in text
    assert len(text) < prompts.MOST_SHOWN + 100


def test_pictures_are_told_by_their_size() -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (1280).to_bytes(4, "big") + (800).to_bytes(4, "big") + b"\x08"
    assert prompts.observation_text(Observation({"text": "a window"}, png)) == "a window\n(screenshot 1280x800)"
    assert prompts.observation_text(Observation({}, b"no png")) == "(screenshot)"


def test_an_error_is_told_once() -> None:
    assert prompts.observation_text(Observation({"text": "out"}), "too long") == "error: too long\nout"
    assert prompts.observation_text(Observation({"text": "it was too long"}), "too long") == "it was too long"


def test_without_instructions_there_is_no_system_message() -> None:
    [message] = prompts.opening_messages(Opening(Observation({}), "Do it."))
    assert (message.role, message.content) == ("user", "Do it.")


def test_the_form_of_each_call_can_be_shown_behind_the_goal() -> None:
    tool = Tool("run", "", {"properties": {"command": {}, "timeout": {}}, "required": ["command"]})
    [message] = prompts.opening_messages(Opening(Observation({"text": "seen"}), "Do it.", tools=[tool]), forms=True)
    assert message.content == ('Do it.\n\nseen\n\nCall one of these:\n{"name": "run", "arguments": {"command": "..."}}')
    [message] = prompts.opening_messages(Opening(Observation({}), "Do it."), forms=True)
    assert message.content == "Do it."


def test_a_text_is_submitted_as_the_answer_where_one_is_taken() -> None:
    assert prompts.submission([ANSWER], "42") == Action("submit", {"answer": "42"})
    assert prompts.submission([Tool("submit", "", {"type": "object"})], "42") == Action("submit", {})
    assert prompts.submission([Tool("run", "", {})], "42") is None


def test_arguments_nested_without_end_are_no_action() -> None:
    with pytest.raises(prompts.BadCall):
        prompts.action(ToolCall(name="run", arguments_json="[" * 100_000))
    assert prompts.action(ToolCall(name="run")) == Action("run", {})


def test_what_is_an_action_can_be_written_again() -> None:
    action = prompts.action(ToolCall(name="run", arguments_json='{"n": [18446744073709551615, -9223372036854775808], '
                                                              '"digits": "123456789012345678901234567890"}'))
    assert action.arguments["n"] == [2**64 - 1, -2**63] and len(action.arguments["digits"]) == 30
    assert json.loads(to_json(action))["arguments"] == action.arguments


def test_actions_for_those_who_watch() -> None:
    assert prompts.as_json([]) == ""
    assert json.loads(prompts.as_json([Action("a", {"b": "ü"})])) == {"name": "a", "arguments": {"b": "ü"}}
    assert [action["name"] for action in json.loads(prompts.as_json([Action("a", {}), Action("b", {})]))] == ["a", "b"]


def test_more_groups_than_tasks_have_all_again_in_another_order() -> None:
    tasks = [Task(f"t{i}", "k", "") for i in range(20)]
    request = RunEpisodesRequest(type="k", groups=40, group_size=1, seed=3)
    drawn = [plan.task.id for plan in draw_episodes(request, tasks)[0]]
    assert sorted(drawn[:20]) == sorted(drawn[20:]) and drawn[:20] != drawn[20:]


def test_none_of_the_tasks_can_be_used() -> None:
    with pytest.raises(MeshError, match="has no train task that can be used, of 1, 1 of them with a problem"):
        draw_episodes(RunEpisodesRequest(type="k"), [Task("t", "k", "", problem="no")])
