"""Runs of episodes: what the policy is told, what it does, how an episode ends, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.privacy import Target
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.rpc.errors import CATALOGUE, MeshError, exhausted, unavailable
from openclaw_rl.storage.database import StorageError
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1.policy_pb2 import ChatRequest
from openclaw_rl.v1.turn_pb2 import (
    NEXT_STATE_KIND_CONTINUED,
    NEXT_STATE_KIND_EPISODE_ENDED,
    TURN_CLASS_SIDE,
    ChatMessage,
    SamplingParams,
)
from tests.rollouts.episodes.rig import Rig, call, say, steps
from tests.rollouts.leases.fake import FakeEnvironment
from tests.support.waiting import eventually


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_each_response_can_be_made_a_call(tmp_path: Path, choice: str) -> None:
    rig = Rig(tmp_path, tool_choice=choice)
    await rig.start()
    try:
        await rig.run()
        request = rig.policy.requests[0]
        required = choice == "required"
        assert request.tool_choice == ("required" if required else "")
        assert request.HasField("parallel_tool_calls") == required and not request.parallel_tool_calls
        assert ('{"name": "say", "arguments": {"text": "..."}}' in request.messages[-1].content) == required
    finally:
        await rig.stop()


async def test_an_episode_from_its_lease_to_its_outcome(rig: Rig) -> None:
    events = await rig.run(run_id="r", seed=1)
    assert [event.kind for event in events] == [
        pb.EPISODE_EVENT_KIND_STARTED, pb.EPISODE_EVENT_KIND_STEP, pb.EPISODE_EVENT_KIND_STEP,
        pb.EPISODE_EVENT_KIND_ENDED]
    assert [(event.ended, event.total) for event in events] == [(0, 1)] * 3 + [(1, 1)]
    assert json.loads(events[1].action_json) == {"name": "say", "arguments": {"text": "done"}}
    assert events[1].observation_text == "1: done"
    episode = events[-1].episode
    assert (episode.outcome, episode.error, episode.steps, episode.done) == (1.0, "", 2, True)
    assert episode.detail == "said 2" and episode.policy_version == 7 and episode.run_id == "r"
    assert rig.listed() == [episode]
    first, second = rig.policy.requests
    assert [(message.role, message.content.split("\n")[0]) for message in first.messages] == [
        ("system", "Say something."), ("user", "Say done, 0")]
    assert [tool.name for tool in first.tools] == ["say", "submit"]
    assert json.loads(first.tools[0].parameters_json)["required"] == ["text"]
    assert first.turn.background and first.turn.turn_type == "main" and first.turn.session_id == episode.session_id
    assert (first.turn.episode.step, second.turn.episode.step) == (1, 2)
    assert (first.sampling.temperature, first.sampling.max_tokens) == (1.0, 256)
    assert list(second.messages[-2:]) == [
        call("say", {"text": "done"}, "c1"), ChatMessage(role="tool", tool_call_id="c1", name="say", content="1: done")]
    one, two = rig.sent()
    assert one.next_state.kind == NEXT_STATE_KIND_CONTINUED and two.next_state.kind == NEXT_STATE_KIND_EPISODE_ENDED
    assert [message.tool_call_id for message in two.next_state.messages] == ["c2"]
    assert two.outcome.value == 1.0 and two.outcome.steps == 2 and one.turn.episode.group_id == episode.group_id
    await eventually(lambda: not rig.pool.leases())


async def test_groups_are_of_tasks_of_their_own_and_bounded_in_parallel(rig: Rig) -> None:
    events = await rig.run(task_ids=[], groups=4, group_size=3, parallel=2, seed=5)
    ended = [event.episode for event in events if event.kind == pb.EPISODE_EVENT_KIND_ENDED]
    assert len(ended) == 12 and events[-1].ended == events[-1].total == 12
    groups = Counter(episode.group_id for episode in ended)
    assert list(groups.values()) == [3] * 4
    assert {episode.task_id for episode in ended} == {"t0", "t1", "t2", "t3"}
    assert rig.policy.most_running <= 2 and rig.kind.most_alive <= rig.count
    assert len({request.turn.episode.group_id for request in rig.policy.requests}) == 4
    assert len(rig.listed(run_id=ended[0].run_id)) == 12


async def test_no_more_at_once_than_there_are_environments(rig: Rig) -> None:
    await rig.run(task_ids=[], groups=3, group_size=4, parallel=100)
    assert rig.policy.most_running <= rig.count


async def test_a_seed_repeats_the_drawing_and_the_sampling(rig: Rig) -> None:
    async def seeds() -> list[tuple[str, int]]:
        rig.policy.requests.clear()
        await rig.run(task_ids=[], groups=3, group_size=2, parallel=1, seed=11)
        return [(request.messages[1].content, request.sampling.seed) for request in rig.policy.requests]

    first = await seeds()
    assert first == await seeds() and len(set(first)) == len(first) == 12
    goals = {goal for goal, _ in first}
    assert len(goals) == 3  # the environment's seed, which the fake one shows, is the same for all of a group


async def test_held_out_tasks_are_never_trained_on(rig: Rig) -> None:
    episode = await rig.one(task_ids=[], split=pb.TASK_SPLIT_HELD_OUT)
    assert episode.task_id == "h0" and episode.no_train and episode.outcome == 1.0
    assert rig.sent() == []
    assert {summary.turn_class for summary in rig.harness.turns().values()} == {TURN_CLASS_SIDE}
    assert {event.episode.task_id for event in await rig.run(task_ids=[])} == {"t0", "t1", "t2", "t3"}
    assert {event.episode.task_id for event in await rig.run(task_ids=[], no_train=True)} == {
        "t0", "t1", "t2", "t3", "h0"}


@pytest.mark.parametrize(("fields", "text"), [
    ({"type": "nothing"}, "there is no environment 'nothing'"),
    ({"task_ids": ["t0", "unknown"]}, "there is no task 'unknown'"),
    ({"task_ids": ["bad"]}, r"task_ids\[0\].*is no check"),
    ({"groups": -1}, "groups: -1 is not allowed"),
    ({"group_size": 2000}, "group_size: 2000 is not allowed: must be from 0 to 1024"),
    ({"task_ids": [], "groups": 98, "group_size": 1024}, "group_size: '98 groups of 1024' is not allowed: must be "
                                                         "at most 100000 episodes"),
    ({"parallel": -2}, "parallel"), ({"max_steps": 100_000}, "max_steps"), ({"run_id": "a\n"}, "run_id"),
    ({"sampling": SamplingParams(temperature=3)}, "sampling.temperature: 3.0 is not allowed"),
    ({"sampling": SamplingParams(max_tokens=0)}, "sampling.max_tokens")])
async def test_bad_requests(rig: Rig, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(MeshError, match=text):
        await rig.run(**fields)
    assert rig.listed() == [] and rig.episodes.running == 0


async def test_a_run_is_run_once(rig: Rig) -> None:
    gate: asyncio.Future[ChatMessage] = asyncio.get_running_loop().create_future()
    rig.policy.script = lambda request: gate if request.turn.episode.step == 1 else call("submit")
    first = asyncio.create_task(rig.run(run_id="r"))
    await eventually(lambda: rig.policy.running)
    with pytest.raises(MeshError, match="there is a run 'r'"):
        await rig.run(run_id="r")
    gate.set_result(call("submit"))
    await first
    with pytest.raises(MeshError, match="there was a run 'r'"):
        await rig.run(run_id="r")
    assert len(rig.listed()) == 1


async def test_several_calls_of_one_response_are_done_in_order(rig: Rig) -> None:
    both = ChatMessage(role="assistant")
    for i in range(3):
        both.tool_calls.add(id=f"c{i}", name="say", arguments_json=json.dumps({"text": f"word {i}"}))
    both.tool_calls.add(id="c3", name="submit", arguments_json="{}")
    both.tool_calls.add(id="c4", name="say", arguments_json='{"text": "too late"}')
    rig.policy.script = steps(both)
    events = await rig.run()
    assert events[-1].episode.steps == 1
    assert [action["name"] for action in json.loads(events[1].action_json)] == ["say", "say", "say", "submit"]
    [last] = rig.sent()
    assert [message.content for message in last.next_state.messages] == [
        "1: word 0", "2: word 1", "3: word 2", "4:", "error: not done: the episode has ended"]


@pytest.mark.parametrize(("message", "text"), [
    (call("say", "{'text': 1}"), "error: the arguments of say are not valid JSON"),
    (call("say", "[1]"), "error: the arguments of say must be a JSON object"),
    (call("say", r'{"text": "half \ud800"}'), "error: the arguments of say are not valid JSON .*surrogate"),
    (call("say", '{"text": NaN}'), "error: the arguments of say are not valid JSON"),
    (call("say", '{"text": 18446744073709551616}'), "error: .*the integer 18446744073709551616 is beyond 64 bits"),
    (call("say", '{"text": -9223372036854775809}'), "error: .*beyond 64 bits"),
    (call("say", '{"text": ' + "[" * 300 + "]" * 300 + "}"), "error: .*in one another"),
    (call("fly", {"to": "moon"}), "error: .*fly"),
    (call("say", {"text": 5}), "error: .*text")])
async def test_what_is_no_action_is_told_to_the_policy(rig: Rig, message: ChatMessage, text: str) -> None:
    rig.policy.script = steps(message, call("say", {"text": "done"}), call("submit"))
    episode = await rig.one()
    assert episode.outcome == 1.0 and episode.steps == 3
    told = rig.policy.requests[1].messages[-1]
    assert told.role == "tool"
    assert re.match(text, told.content), told.content


async def test_a_response_without_a_call_is_the_answer(rig: Rig) -> None:
    rig.policy.script = steps(say("That is all."))
    events = await rig.run()
    assert json.loads(events[1].action_json) == {"name": "submit", "arguments": {}}
    assert events[-1].episode.outcome == 0.0 and events[-1].episode.HasField("outcome")
    [only] = rig.sent()
    assert only.outcome.HasField("value") and not only.next_state.messages


async def test_steps_are_bounded_and_then_evaluated(rig: Rig) -> None:
    rig.policy.script = steps(call("say", {"text": "done"}))
    assert (await rig.one(max_steps=3)).steps == 3
    episode = await rig.one()
    assert (episode.steps, episode.outcome) == (rig.settings.max_steps, 1.0)


async def test_a_conversation_too_long_for_the_model_is_evaluated(rig: Rig) -> None:
    too_long = MeshError(CATALOGUE["CONTEXT_TOO_LONG"][0], "CONTEXT_TOO_LONG", "5000 tokens")
    rig.policy.script = steps(call("say", {"text": "done"}), too_long)
    episode = await rig.one()
    assert episode.outcome == 1.0 and "too long for the model after 1 steps" in episode.detail
    assert rig.sent()[0].outcome.value == 1.0


async def test_a_sandbox_that_dies_ends_its_episode_and_no_other(rig: Rig) -> None:
    async def die(environment: FakeEnvironment, action: Action) -> None:
        if environment.said == [] and action.arguments.get("text") == "die":
            environment.problem = "ran out of memory"
            raise SandboxError("ran out of memory")

    rig.kind.on_step = die
    rig.policy.script = lambda request: (call("say", {"text": "die"}) if request.messages[1].content.startswith(
        "Say done, 1") else call("say", {"text": "done"}) if request.turn.episode.step == 1 else call("submit"))
    events = await rig.run(task_ids=["t0", "t1", "t2"], group_size=2)
    ended = [event.episode for event in events if event.kind == pb.EPISODE_EVENT_KIND_ENDED]
    assert len(ended) == 6
    for episode in ended:
        if episode.task_id == "t1":
            assert not episode.HasField("outcome") and "ran out of memory" in episode.error
        else:
            assert episode.outcome == 1.0 and not episode.error
    broken = [transition for transition in rig.sent() if transition.outcome.error]
    assert len(broken) == 2 and not any(transition.outcome.HasField("value") for transition in broken)
    await eventually(lambda: not rig.pool.leases())


async def test_a_policy_that_is_away_is_waited_for_where_it_comes_back(rig: Rig) -> None:
    tries: list[ChatRequest] = []

    def script(request: ChatRequest) -> ChatMessage | MeshError:
        tries.append(request)
        if len(tries) == 2:
            return exhausted("256 requests wait already", 0.01)
        if len(tries) == 3:
            return unavailable("the policy is getting ready", 0.01)
        return call("say", {"text": "done"}) if request.turn.episode.step == 1 else call("submit")

    rig.policy.script = script
    await rig.kill_policy()
    running = asyncio.create_task(rig.one())
    await eventually(lambda: rig.pool.leases())
    await rig.serve()  # at another address
    assert (await running).outcome == 1.0 and len(tries) == 4


async def test_a_request_that_the_policy_refuses_ends_the_episode(rig: Rig) -> None:
    rig.policy.script = steps(MeshError(CATALOGUE["INVALID_ARGUMENT"][0], "INVALID_ARGUMENT", "top_p: no"))
    episode = await rig.one()
    assert episode.error == "top_p: no" and not episode.HasField("outcome")


async def test_episodes_that_cannot_be_written_down_are_told_all_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise StorageError(*CATALOGUE["DISK_FULL"][:1], "DISK_FULL", "the disk is full")

    monkeypatch.setattr(rig.harness.tracker, "begin_episode", full)
    events = await rig.run(group_size=2)
    assert Counter(event.kind for event in events) == {
        pb.EPISODE_EVENT_KIND_STARTED: 2, pb.EPISODE_EVENT_KIND_ENDED: 2}
    assert events[-1].ended == events[-1].total == 2 and events[-1].episode.error == "the disk is full"
    assert rig.policy.requests == [] and not rig.pool.leases()


async def test_time_is_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, timeout=0.3)
    await rig.start()
    rig.policy.script = steps(call("say", {"text": "a"}), asyncio.get_running_loop().create_future())
    episode = await rig.one()
    assert "longer than 0.3 s" in episode.error and "waited for the policy's response 2" in episode.error
    assert rig.sent()[-1].outcome.error == episode.error
    await eventually(lambda: rig.policy.running == 0)  # the generation is cancelled
    await rig.stop()


async def test_who_goes_away_cancels_his_run(rig: Rig) -> None:
    forever: asyncio.Future[ChatMessage] = asyncio.get_running_loop().create_future()
    rig.policy.script = steps(call("say", {"text": "a"}), forever)
    request = pb.RunEpisodesRequest(type="fake", groups=4, group_size=2, run_id="r")
    async with aclosing(rig.episodes.run(request)) as events:  # type: ignore[type-var]
        async for event in events:
            if event.kind == pb.EPISODE_EVENT_KIND_STEP:
                break
        await eventually(lambda: rig.policy.running == rig.count)
    assert rig.episodes.running == 0 and not rig.pool.leases()
    assert {episode.error for episode in rig.listed(run_id="r")} == {"cancelled"}
    assert {transition.outcome.error for transition in rig.sent()} == {"cancelled"}
    await eventually(lambda: rig.policy.running == 0)


async def test_a_server_that_stops_says_so(rig: Rig) -> None:
    rig.policy.script = steps(asyncio.get_running_loop().create_future())
    running = asyncio.create_task(rig.run())
    await eventually(lambda: rig.policy.running)
    await rig.episodes.close()
    with pytest.raises(MeshError, match="the environment server ended"):
        await running
    assert [episode.error for episode in rig.listed()] == ["the environment server ended"]
    with pytest.raises(MeshError, match="is stopping"):
        await rig.run()


async def test_the_outcome_waits_for_records_that_come_late(rig: Rig) -> None:
    rig.policy.hold = True
    assert (await rig.one()).outcome == 1.0
    assert rig.sent() == []
    rig.harness.tell(*rig.policy.held)
    assert [transition.outcome.value for transition in rig.sent()] == [0.0, 1.0]


async def test_a_forgotten_session_ends_its_episode(rig: Rig) -> None:
    gate: asyncio.Future[ChatMessage] = asyncio.get_running_loop().create_future()
    rig.policy.script = steps(call("say", {"text": "a"}), gate)
    running = asyncio.create_task(rig.run())
    await eventually(lambda: rig.policy.running and len(rig.policy.requests) == 2)
    await rig.harness.tracker.forget(Target(rig.policy.requests[0].turn.session_id, time.time()))
    gate.set_result(call("say", {"text": "b"}))
    events = await running
    assert "was forgotten" in events[-1].episode.error and rig.listed() == []


async def test_a_page_of_episodes(rig: Rig) -> None:
    await rig.run(task_ids=["t0", "t1", "t2"])
    first = rig.episodes.page(pb.ListEpisodesRequest(page_size=2))
    rest = rig.episodes.page(pb.ListEpisodesRequest(page_size=2, page_token=first.next_page_token))
    listed = [episode.episode_id for episode in (*first.episodes, *rest.episodes)]
    assert len(listed) == 3 and listed == sorted(listed, reverse=True) and not rest.next_page_token
    assert not rig.episodes.page(pb.ListEpisodesRequest(type="other")).episodes
    with pytest.raises(MeshError, match="page_size"):
        rig.episodes.page(pb.ListEpisodesRequest(page_size=-1))
    with pytest.raises(MeshError, match="page_token"):
        rig.episodes.page(pb.ListEpisodesRequest(page_token="x"))
