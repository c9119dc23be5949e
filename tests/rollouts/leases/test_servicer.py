"""Leases over gRPC, as a client in another process sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.client.component import AsyncComponentServiceClient
from openclaw_rl.client.environment import AsyncEnvironmentServiceClient
from openclaw_rl.config import Config
from openclaw_rl.rollouts import server
from openclaw_rl.rollouts.environments import factory as make
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.v1 import component_pb2
from openclaw_rl.v1 import environment_pb2 as pb
from tests.rollouts.leases.fake import FakeEnvironment, FakeType
from tests.support.waiting import eventually

Code = grpc.StatusCode


def seconds(number: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(number * 1e9))
    return duration


def say(text: str) -> str:
    return json.dumps({"name": "say", "arguments": {"text": text}})


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> FakeType:
    """The type of all environments."""
    kind = FakeType()
    monkeypatch.setattr(make, "load_type", lambda name, key: lambda config, context: kind)
    return kind


@asynccontextmanager
async def serving(folder: Path, tasks: Path | None = None, **settings: Any) -> AsyncIterator[
        AsyncEnvironmentServiceClient]:
    home = Home(folder).create()
    environments = {"fake": {"count": 2, "tasks": str(tasks) if tasks else None}}
    config = Config.model_validate({"components": {
        "env_server": {"port": 0, "environments": environments, **settings}, "prm_judge": {"address": "127.0.0.1:1"}}})
    running = asyncio.create_task(server.run(config, home))
    try:
        await eventually(lambda: running.done() or read_record(home, server.NAME))
        assert not running.done(), running.result()
        async with AsyncEnvironmentServiceClient(home=home) as client:
            yield client
    finally:
        async with AsyncComponentServiceClient(home=home, component="env_server") as component:
            await component.drain()
        await asyncio.wait_for(running, 10)


async def status(folder: Path) -> component_pb2.ComponentStatus:
    async with AsyncComponentServiceClient(home=Home(folder), component="env_server") as component:
        return (await component.get_status()).status


async def test_the_whole_way(tmp_path: Path, kind: FakeType) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "some.yaml").write_text("- {id: one, goal: Say it., tags: [easy], max_steps: 3}\n"
                                     "- {id: two, goal: Keep it., split: held_out}\n- {id: three}\n")
    async with serving(tmp_path / "home", tasks) as client:
        info = (await client.list_environments()).environments[0]
        assert (info.type, info.kind, info.capacity, info.tasks, info.problem) == ("fake", "fake", 2, 3, "")
        assert json.loads(info.action_schema_json) == kind.action_schema
        listed = (await client.list_tasks(type="fake")).tasks
        assert [(task.task_id, task.split, task.max_steps, list(task.tags)) for task in listed] == [
            ("one", pb.TASK_SPLIT_TRAIN, 3, ["easy"]), ("three", pb.TASK_SPLIT_TRAIN, 0, []),
            ("two", pb.TASK_SPLIT_HELD_OUT, 0, [])]
        assert "`goal` is missing" in listed[1].problem
        held_out = (await client.list_tasks(type="fake", split=pb.TASK_SPLIT_HELD_OUT)).tasks
        assert [task.task_id for task in held_out] == ["two"]

        given = await client.acquire(lease_id="a", type="fake", ttl=seconds(60))
        assert given.sandbox == "nothing at all" and json.loads(given.action_schema_json) == kind.action_schema
        opening = await client.reset(lease_id="a", task_id="one", seed=5)
        assert (opening.goal, opening.instructions) == ("Say it.", "Say something.")
        assert [tool.name for tool in opening.tools] == ["say", "submit"]
        assert json.loads(opening.tools[0].parameters_json)["required"] == ["text"]
        answer = await client.step(lease_id="a", step=1, action_json=say("done"))
        assert json.loads(answer.observation.json) == {"text": "1: done"} and not answer.HasField("reward")
        assert (await client.evaluate(lease_id="a")).outcome == 1
        assert (await client.renew(lease_id="a")).expires_at.ToSeconds() >= given.expires_at.ToSeconds()
        lease = (await client.list_leases()).leases[0]
        assert (lease.lease_id, lease.type, lease.task_id, lease.steps) == ("a", "fake", "one", 1)
        assert lease.holder == "ipv4:127.0.0.1"  # it has named none; the port is another for each connection
        found = await status(tmp_path / "home")
        assert (found.gauges["env_fake_capacity"], found.gauges["env_fake_leased"]) == (2, 1)
        assert found.counters["steps"] == 1
        for _ in range(2):
            await client.release(lease_id="a")
        await client.release(lease_id="never there")
        assert not (await client.list_leases(type="fake")).leases
    assert not kind.alive


@pytest.mark.parametrize(("call", "fields", "words"), [
    ("acquire", {"lease_id": "", "type": "fake"}, "lease_id"),
    ("acquire", {"lease_id": "a" * 200, "type": "fake"}, "lease_id"),
    ("acquire", {"lease_id": "b", "type": "fake", "wait": seconds(-1)}, "wait: '-1 s' is not allowed"),
    ("acquire", {"lease_id": "b", "type": "fake", "wait": Duration(seconds=10**11)}, "wait"),
    ("acquire", {"lease_id": "b", "type": "fake", "ttl": seconds(0)}, "ttl"),
    ("acquire", {"lease_id": "b", "type": "fake", "ttl": seconds(10**6)}, "ttl"),
    ("acquire", {"lease_id": "b", "type": "fake", "holder": "h" * 300}, "holder"),
    ("step", {"lease_id": "a", "step": 0, "action_json": say("x")}, "step: 0 is not allowed"),
    ("step", {"lease_id": "a", "step": -3, "action_json": say("x")}, "step"),
    ("step", {"lease_id": "a", "step": 1, "action_json": ""}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": "{"}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": "[1]"}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": '{"name": 1, "arguments": {}}'}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": '{"name": "say", "arguments": []}'}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": '{"name": "say", "arguments": {"text": NaN}}'}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": '{"name": "say", "more": 1}'}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": "[" * 100_000}, "action_json"),
    ("step", {"lease_id": "a", "step": 1, "action_json": say("x" * 2**20)}, "at most 1,048,576 bytes"),
    ("step", {"lease_id": "a", "step": 1, "action_json": say(3)}, "arguments.text: 3 is not of type"),  # type: ignore
    ("step", {"lease_id": "a", "step": 1, "action_json": say("x"), "timeout": seconds(0)}, "timeout"),
    ("step", {"lease_id": "a", "step": 1, "action_json": say("x"), "timeout": seconds(10**6)}, "timeout"),
])
async def test_bad_fields_are_named(tmp_path: Path, kind: FakeType, call: str, fields: Any, words: str) -> None:
    async with serving(tmp_path) as client:
        await client.acquire(lease_id="a", type="fake")
        await client.reset(lease_id="a")
        with pytest.raises(MeshError, match=words) as caught:
            message = {"acquire": pb.AcquireRequest, "step": pb.StepRequest}[call]
            await getattr(client, call)(message(**fields))
        assert caught.value.code is Code.INVALID_ARGUMENT and caught.value.violations
        await client.step(lease_id="a", step=1, action_json=say("all is well"))


async def test_what_is_not_there(tmp_path: Path, kind: FakeType) -> None:
    async with serving(tmp_path) as client:
        await client.acquire(lease_id="a", type="fake")
        for call, fields, words in (
                ("acquire", {"lease_id": "b", "type": "gone"}, "there is no environment 'gone'; there are: fake"),
                ("list_tasks", {"type": "gone"}, "no environment"), ("list_leases", {"type": "gone"}, "no environment"),
                ("reset", {"lease_id": "a", "task_id": "gone"}, "there is no task 'gone'"),
                ("reset", {"lease_id": "gone"}, "acquire another one"), ("renew", {"lease_id": ""}, "no lease"),
                ("step", {"lease_id": "gone", "step": 1, "action_json": say("x")}, "no lease"),
                ("evaluate", {"lease_id": "x" * 10_000}, "no lease 'xxxx")):
            with pytest.raises(MeshError, match=words) as caught:
                await getattr(client, call)(**fields)
            assert caught.value.code is Code.NOT_FOUND and len(caught.value.message) < 1000
        with pytest.raises(MeshError, match="no lease"):
            await anext(client.watch_lease(lease_id="gone"))


async def test_a_client_that_is_killed_while_it_waits(tmp_path: Path, kind: FakeType) -> None:
    async with serving(tmp_path) as client:
        for lease_id in "ab":
            await client.acquire(lease_id=lease_id, type="fake")
        waiting = asyncio.create_task(client.acquire(lease_id="c", type="fake", wait=seconds(60)))

        async def waits() -> int:
            return (await client.list_environments()).environments[0].waiting

        while await waits() != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        waiting.cancel()
        while await waits():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(MeshError) as caught:
            await client.acquire(lease_id="c", type="fake")
        assert caught.value.code is Code.RESOURCE_EXHAUSTED and caught.value.retry_after


async def test_a_restart_ends_all_leases(tmp_path: Path, kind: FakeType) -> None:
    async with serving(tmp_path) as client:
        await client.acquire(lease_id="a", type="fake")
    assert not kind.alive
    async with serving(tmp_path) as client:
        with pytest.raises(MeshError, match="started anew since") as caught:
            await client.renew(lease_id="a")
        assert caught.value.reason == "LEASE_LOST"
        await client.acquire(lease_id="a", type="fake")


async def test_an_environment_that_can_t_be_used_is_an_alarm(tmp_path: Path, kind: FakeType) -> None:
    kind.trouble = "bubblewrap is not installed: apt-get install bubblewrap"
    async with serving(tmp_path) as client:
        assert "apt-get install" in (await client.list_environments()).environments[0].problem
        found = await status(tmp_path)
        assert found.state == component_pb2.COMPONENT_STATE_DEGRADED
        assert [alarm.name for alarm in found.alarms] == ["environment_unusable"]
        assert "environment 'fake' can't be used: bubblewrap is not installed" in found.detail


async def test_watching(tmp_path: Path, kind: FakeType) -> None:
    async with serving(tmp_path) as client:
        await client.acquire(lease_id="a", type="fake")
        await client.reset(lease_id="a")
        watching = client.watch_lease(lease_id="a", interval=seconds(0.1))
        seen = await anext(watching)
        assert (seen.lease.lease_id, seen.action_json, json.loads(seen.view.json)) == ("a", "", {"text": ""})
        for number in range(1, 4):
            await client.step(lease_id="a", step=number, action_json=say(f"w{number}"))
        seen = await anext(watching)
        while seen.lease.steps < 3:
            seen = await anext(watching)
        assert json.loads(seen.action_json) == {"name": "say", "arguments": {"text": "w3"}}
        assert json.loads(seen.view.json) == {"text": "w1\nw2\nw3"}
        await client.release(lease_id="a")
        last = [answer async for answer in watching][-1]
        assert last.ended and last.lease.steps == 3


async def test_a_slow_watcher_holds_nobody_up(tmp_path: Path, kind: FakeType) -> None:
    environments: list[FakeEnvironment] = []
    async with serving(tmp_path) as client:
        await client.acquire(lease_id="a", type="fake")
        environments += [one for one in kind.alive]
        await client.reset(lease_id="a")
        watching = [client.watch_lease(lease_id="a", interval=seconds(0.1)) for _ in range(5)]
        for one in watching:
            await anext(one)  # and nobody reads on
        for number in range(1, 101):
            await client.step(lease_id="a", step=number, action_json=say("x" * 1000))
        assert sum(environment.views for environment in environments) < 60
        for one in watching:
            await one.aclose()  # type: ignore[attr-defined]
    with pytest.raises(MeshError):
        async with serving(tmp_path) as client:
            await anext(client.watch_lease(lease_id="a", interval=seconds(0)))


async def test_watching_does_not_renew(tmp_path: Path, kind: FakeType) -> None:
    async with serving(tmp_path) as client:
        await client.acquire(lease_id="a", type="fake", ttl=seconds(1))
        seen = [answer async for answer in client.watch_lease(lease_id="a", interval=seconds(0.1))]
        assert seen[-1].ended and (await status(tmp_path)).counters["leases_expired"] == 1
