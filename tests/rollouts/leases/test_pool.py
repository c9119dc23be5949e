"""Leases: who gets one, what it does, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from openclaw_rl.rollouts.environments.interface import Observation
from openclaw_rl.rollouts.leases import lease as leases
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.rpc.errors import MeshError
from tests.rollouts.leases.fake import FakeEnvironment, FakeType, fake_pool
from tests.support.waiting import eventually

Code = grpc.StatusCode


def say(text: str) -> Action:
    return Action("say", {"text": text})


@pytest.fixture
async def made() -> AsyncIterator[Any]:
    """Makes pools that are closed in the end, with nothing left of them."""
    pools: list[tuple[LeasePool, FakeType]] = []

    def make(count: int = 2, **settings: Any) -> tuple[LeasePool, FakeType]:
        pools.append(fake_pool(count, **settings))
        return pools[-1]

    yield make
    for pool, kind in pools:
        await pool.close()
        assert not kind.alive and kind.closed


async def test_a_lease_from_beginning_to_end(made: Any) -> None:
    pool, kind = made()
    lease = await pool.acquire("fake", "a", holder="me")
    opening = await pool.reset("a", "", 3)
    assert opening.observation.text == "seed 3" and [tool.name for tool in opening.tools] == ["say", "submit"]
    assert (await pool.step("a", 1, say("hello"))).observation.text == "1: hello"
    assert (await pool.evaluate("a")).value == 0
    assert (await pool.step("a", 2, say("done"))).observation.text == "2: done"
    assert (await pool.evaluate("a")).value == 1
    assert (lease.steps, lease.holder, lease.type) == (2, "me", "fake")
    await pool.release("a")
    await pool.release("a")
    await pool.release("never there")
    await eventually(lambda: lease.environment not in kind.alive)
    with pytest.raises(MeshError, match="was given back") as caught:
        await pool.step("a", 3, say("too late"))
    assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "LEASE_ENDED")
    with pytest.raises(MeshError, match="id of its own"):
        await pool.acquire("fake", "a")  # the retry of a client that has given it back meanwhile
    with pytest.raises(MeshError, match="started anew") as caught:
        await pool.step("b", 1, say("?"))
    assert (caught.value.code, caught.value.reason) == (Code.NOT_FOUND, "LEASE_LOST")
    assert pool.counts() == {"leases": 1, "leases_expired": 0, "steps": 2, "sandboxes_lost": 0}


@pytest.mark.parametrize("lease_id", ["", "x" * 129, "a b", "a\n", "ä", "../a"])
async def test_an_id_that_is_none(made: Any, lease_id: str) -> None:
    pool, _ = made()
    with pytest.raises(MeshError, match="lease_id") as caught:
        await pool.acquire("fake", lease_id)
    assert caught.value.code is Code.INVALID_ARGUMENT


async def test_a_repeated_acquire_gives_the_same_lease(made: Any) -> None:
    pool, kind = made(1)
    gate = asyncio.Event()
    kind.on_make = gate.wait
    calls = [asyncio.create_task(pool.acquire("fake", "a", wait=5)) for _ in range(3)]
    calls.append(asyncio.create_task(pool.acquire("fake", "a")))
    await eventually(lambda: pool.warm_pool("fake").starting == 1)
    calls[0].cancel()
    gate.set()
    first, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError) and len({id(lease) for lease in others}) == 1
    assert await pool.acquire("fake", "a") is others[0] and pool.counts()["leases"] == 1


async def test_the_id_of_a_lease_of_another_environment(made: Any) -> None:
    pool, _ = made()
    await pool.acquire("fake", "a")
    other, _ = made(name="other")
    pool._warm_pools["other"] = other.warm_pool("other")
    with pytest.raises(MeshError, match="type: 'other' is not allowed: must be 'fake'"):
        await pool.acquire("other", "a")
    with pytest.raises(MeshError, match="there is no environment 'third'; there are: fake, other"):
        await pool.acquire("third", "b")


async def test_full(made: Any) -> None:
    pool, _ = made(2)
    await pool.acquire("fake", "a")
    await pool.acquire("fake", "b")
    with pytest.raises(MeshError, match="all 2 environments 'fake' are leased") as caught:
        await pool.acquire("fake", "c")
    assert caught.value.code is Code.RESOURCE_EXHAUSTED and caught.value.retry_after
    with pytest.raises(MeshError, match="are leased") as caught:
        await pool.acquire("fake", "c", wait=0.01)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED and caught.value.retry_after
    assert pool.warm_pool("fake").waiting == 0 and pool.warm_pool("fake").free == 0
    await pool.release("a")
    await pool.acquire("fake", "c")  # at once: that the old one is still being closed is no reason to refuse


async def test_too_many_wait(made: Any) -> None:
    pool, _ = made(1, max_waiting=2)
    await pool.acquire("fake", "a")
    waiting = [asyncio.create_task(pool.acquire("fake", f"w{i}", wait=10)) for i in range(2)]
    await eventually(lambda: pool.warm_pool("fake").waiting == 2)
    with pytest.raises(MeshError, match="2 requests wait") as caught:
        await pool.acquire("fake", "c", wait=10)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED and caught.value.retry_after
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert pool.warm_pool("fake").waiting == 0


async def test_holders_are_served_in_turn(made: Any) -> None:
    pool, _ = made(1)
    await pool.acquire("fake", "first", holder="z")
    order: list[str] = []

    async def use(lease_id: str, holder: str) -> None:
        await pool.acquire("fake", lease_id, holder=holder, wait=10)
        order.append(lease_id)
        await pool.release(lease_id)

    asked = [asyncio.create_task(use(f"greedy{i}", "greedy")) for i in range(4)]
    await eventually(lambda: pool.warm_pool("fake").waiting == 4)
    asked += [asyncio.create_task(use(f"late{i}", "late")) for i in range(2)]
    await eventually(lambda: pool.warm_pool("fake").waiting == 6)
    await pool.release("first")
    await asyncio.gather(*asked)
    assert order == ["greedy0", "late0", "greedy1", "late1", "greedy2", "greedy3"]


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_request_leaves_no_trace(made: Any, turns: Any) -> None:
    pool, kind = made(1)
    await pool.acquire("fake", "a")
    waiting = [asyncio.create_task(pool.acquire("fake", lease_id, wait=10)) for lease_id in "bc"]
    await eventually(lambda: pool.warm_pool("fake").waiting == 2)
    waiting[0].cancel()
    await eventually(lambda: pool.warm_pool("fake").waiting == 1)
    await pool.release("a")
    for _ in range(turns):  # in each turn of the loop from its release until the other one has it
        await asyncio.sleep(0)
    waiting[1].cancel()
    given = (await asyncio.gather(*waiting, return_exceptions=True))[1]
    assert isinstance(given, asyncio.CancelledError) == (given not in pool.leases())
    await pool.release("c")
    await eventually(lambda: not pool._pending and pool.warm_pool("fake").leased == 0)
    assert pool.warm_pool("fake").free == 1 and not pool.leases() and not pool._timers and kind.most_alive == 1


async def test_a_release_of_what_is_still_waited_for(made: Any) -> None:
    pool, _ = made(1)
    await pool.acquire("fake", "a")
    waiting = asyncio.create_task(pool.acquire("fake", "b", wait=10))
    await eventually(lambda: pool.warm_pool("fake").waiting == 1)
    await pool.release("b")
    with pytest.raises(MeshError, match="before it was there"):
        await waiting
    assert pool.warm_pool("fake").waiting == 0


async def test_a_lease_that_nobody_renews(made: Any) -> None:
    pool, kind = made(1)
    lease = await pool.acquire("fake", "a", ttl=0.15)
    for _ in range(5):
        await asyncio.sleep(0.05)
        pool.renew("a")
    assert pool.leases() == [lease]
    await eventually(lambda: not pool.leases())
    assert pool.counts()["leases_expired"] == 1
    with pytest.raises(MeshError, match=r"nobody used or renewed it for 0\.15 s") as caught:
        pool.renew("a")
    assert caught.value.reason == "LEASE_ENDED"
    await eventually(lambda: lease.environment not in kind.alive)
    await pool.acquire("fake", "b")


async def test_what_is_being_used_does_not_expire(made: Any) -> None:
    pool, kind = made(1)
    gate = asyncio.Event()

    async def slow(environment: FakeEnvironment, action: Action) -> None:
        await gate.wait()

    kind.on_step = slow
    lease = await pool.acquire("fake", "a", ttl=0.1)
    await pool.reset("a")
    step = asyncio.create_task(pool.step("a", 1, say("x")))
    await asyncio.sleep(0.3)
    assert pool.leases() == [lease]
    gate.set()
    await step
    await eventually(lambda: not pool.leases())


async def test_steps_by_number(made: Any) -> None:
    pool, _ = made()
    lease = await pool.acquire("fake", "a")
    with pytest.raises(MeshError, match="has not been reset") as caught:
        await pool.step("a", 1, say("x"))
    assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "NOT_RESET")
    with pytest.raises(MeshError, match="has not been reset"):
        await pool.evaluate("a")
    await pool.reset("a")
    answer = await pool.step("a", 1, say("x"))
    assert await pool.step("a", 1, say("x")) is answer and lease.environment.said == ["x"]
    with pytest.raises(MeshError, match="done with another action"):
        await pool.step("a", 1, say("y"))
    await pool.step("a", 2, say("y"))
    for number, words in ((1, "only the last one can be repeated"), (4, "the next one is 3")):
        with pytest.raises(MeshError, match=words) as caught:
            await pool.step("a", number, say("x"))
        assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "STEP_OUT_OF_ORDER")
    await pool.step("a", 3, Action("submit", {}))
    with pytest.raises(MeshError, match="was over with step 3") as caught:
        await pool.step("a", 4, say("z"))
    assert caught.value.reason == "EPISODE_OVER"
    assert (await pool.step("a", 3, Action("submit", {}))).done
    await pool.reset("a")
    assert (await pool.step("a", 1, say("again"))).observation.text == "1: again"


async def test_an_action_that_is_none(made: Any) -> None:
    pool, _ = made()
    lease = await pool.acquire("fake", "a")
    await pool.reset("a")
    for action, words in ((Action("dance", {}), "name: 'dance' is not allowed: must be one of say, submit"),
                          (Action("say", {"text": 3}), "arguments.text: 3 is not of type 'string'"),
                          (Action("say", {}), "arguments: 'text' is a required property"),
                          (Action("submit", {"x": 1}), "Additional properties are not allowed")):
        with pytest.raises(MeshError, match=words) as caught:
            await pool.step("a", 1, action)
        assert caught.value.code is Code.INVALID_ARGUMENT and caught.value.violations[0][0] == "action_json"
    assert lease.environment.said == [] and (await pool.step("a", 1, say("x"))).observation.text == "1: x"


async def test_a_step_whose_caller_goes_away_is_done_once(made: Any) -> None:
    pool, kind = made()
    gate = asyncio.Event()

    async def slow(environment: FakeEnvironment, action: Action) -> None:
        await gate.wait()

    kind.on_step = slow
    lease = await pool.acquire("fake", "a")
    await pool.reset("a")
    gone = asyncio.create_task(pool.step("a", 1, say("x")))
    await eventually(lambda: lease.calls == 1)
    gone.cancel()
    again = [asyncio.create_task(pool.step("a", 1, say("x"))) for _ in range(3)]
    await eventually(lambda: lease.calls == 4)
    gate.set()
    assert {answer.observation.text for answer in await asyncio.gather(*again)} == {"1: x"}
    assert lease.environment.said == ["x"] and pool.counts()["steps"] == 1


async def test_one_thing_at_a_time(made: Any) -> None:
    pool, kind = made()
    running = most = 0
    gate = asyncio.Event()

    async def slow(environment: FakeEnvironment, action: Action) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    kind.on_step = slow
    lease = await pool.acquire("fake", "a")
    await pool.reset("a")
    steps = [asyncio.create_task(pool.step("a", number, say("x"))) for number in range(1, leases.MOST_CALLS + 1)]
    await eventually(lambda: lease.calls == leases.MOST_CALLS)
    with pytest.raises(MeshError, match="do one thing at a time") as caught:
        await pool.step("a", 100, say("x"))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    gate.set()
    await asyncio.gather(*steps)
    assert most == 1 and lease.calls == 0


async def test_a_release_stops_what_is_being_done(made: Any) -> None:
    pool, kind = made(1)

    async def hang(environment: FakeEnvironment, action: Action) -> None:
        await asyncio.Event().wait()

    kind.on_step = hang
    lease = await pool.acquire("fake", "a")
    await pool.reset("a")
    steps = [asyncio.create_task(pool.step("a", number, say("x"))) for number in (1, 2)]
    await eventually(lambda: lease.calls == 2)
    await pool.release("a")
    for step in steps:
        with pytest.raises(MeshError, match="was given back"):
            await step
    await eventually(lambda: lease.environment not in kind.alive)
    await pool.acquire("fake", "b")


async def test_an_environment_that_does_not_answer_is_lost(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "STEP_GRACE", 0.05)
    pool, kind = made(1)

    async def hang(environment: FakeEnvironment, action: Action) -> None:
        await asyncio.Event().wait()

    kind.on_step = hang
    lease = await pool.acquire("fake", "a")
    await pool.reset("a")
    with pytest.raises(MeshError, match=r"step 1 \('say'\) was not over") as caught:
        await pool.step("a", 1, say("x"), 0.05)
    assert (caught.value.code, caught.value.reason) == (Code.UNAVAILABLE, "SANDBOX_LOST")
    assert "not over" in lease.problem and pool.counts()["sandboxes_lost"] == 1


@pytest.mark.parametrize("how", ["raises", "dies", "fault"])
async def test_a_sandbox_that_dies(made: Any, how: str) -> None:
    pool, kind = made(1)

    async def die(environment: FakeEnvironment, action: Action) -> None:
        if how == "raises":
            raise SandboxError("killed for its memory")
        raise ZeroDivisionError("division by zero")

    lease = await pool.acquire("fake", "a")
    await pool.reset("a")
    if how == "dies":
        lease.environment.problem = "killed for its memory"
    else:
        kind.on_step = die
    for _ in range(2):
        with pytest.raises(MeshError, match=r"killed for its memory|a fault in the kind: ZeroDivisionError") as caught:
            await pool.step("a", 1, say("x"))
        assert (caught.value.code, caught.value.reason) == (Code.UNAVAILABLE, "SANDBOX_LOST")
    await eventually(lambda: lease.environment not in kind.alive)  # before anybody gives it back
    assert pool.leases() == [lease] and lease.problem and pool.warm_pool("fake").free == 0
    assert pool.counts()["sandboxes_lost"] == 1
    await pool.release("a")
    await pool.acquire("fake", "b")


async def test_each_lease_has_a_fresh_environment(made: Any) -> None:
    pool, kind = made(2)
    seen = set()
    for number in range(6):
        lease = await pool.acquire("fake", f"l{number}")
        await pool.reset(lease.id)
        assert lease.environment.said == [] and lease.environment not in seen
        seen.add(lease.environment)
        await pool.step(lease.id, 1, say("secret"))
        await pool.release(lease.id)
    await eventually(lambda: all(environment.closed for environment in seen))
    assert kind.most_alive <= 2


async def test_waiters_are_told_when_the_server_stops(made: Any) -> None:
    pool, kind = made(1)
    await pool.acquire("fake", "a")
    waiting = asyncio.create_task(pool.acquire("fake", "b", wait=10))
    await eventually(lambda: pool.warm_pool("fake").waiting == 1)
    await pool.close()
    with pytest.raises(MeshError, match="stopping") as caught:
        await waiting
    assert caught.value.code is Code.UNAVAILABLE and not kind.alive
    with pytest.raises(MeshError, match="stopping"):
        await pool.acquire("fake", "c")


async def test_what_is_remembered_of_ended_leases_is_bounded(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_rl.rollouts.leases.pool.REMEMBERED", 3)
    pool, _ = made(2)
    for number in range(5):
        await pool.acquire("fake", f"l{number}")
        await pool.release(f"l{number}")
    assert list(pool._ended) == ["l2", "l3", "l4"] and not pool._timers and not pool._pending


async def test_observations_are_cut(made: Any) -> None:
    pool, _ = made()
    lease = await pool.acquire("fake", "a")
    huge = Observation({"text": "x" * 1_000_000, "more": ["y" * 100_000] * 20, "odd": "\ud800"}, b"p" * 10_000_000)
    lease.environment.view = lambda: _give(huge)
    view = await lease.view(0)
    assert view is not None and len(view.text) <= 2**16 and view.text.endswith("[cut]")
    assert not view.image_png and "more" not in view.data


async def _give(observation: Observation) -> Observation:
    return observation
