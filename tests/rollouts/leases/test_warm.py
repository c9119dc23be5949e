"""Environments that are made ahead, and those that can't be made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from openclaw_rl.rollouts.leases import availability, status
from openclaw_rl.rollouts.leases import warm_pool as warm
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.v1.component_pb2 import ComponentStatus
from tests.rollouts.leases.fake import FakeType, fake_pool
from tests.support.waiting import eventually


@pytest.fixture
async def made() -> AsyncIterator[Any]:
    pools: list[tuple[LeasePool, FakeType]] = []

    def make(count: int = 2, **settings: Any) -> tuple[LeasePool, FakeType]:
        pools.append(fake_pool(count, **settings))
        return pools[-1]

    yield make
    for pool, kind in pools:
        await pool.close()
        assert not kind.alive


@pytest.mark.parametrize(("count", "warm", "wanted"), [(1, None, 1), (4, None, 1), (32, None, 4), (200, None, 8),
                                                        (4, 0, 0), (4, 3, 3), (4, 9, 4)])
async def test_how_many_are_kept_ready(made: Any, count: int, warm: int | None, wanted: int) -> None:
    pool, kind = made(count, warm=warm)
    await eventually(lambda: pool.warm_pool("fake").warm == wanted)
    assert pool.warm_pool("fake").wanted_warm == wanted == kind.made


async def test_a_default_environment_costs_nothing_until_it_is_used(made: Any) -> None:
    pool, kind = made(8, named=False)
    await asyncio.sleep(0.05)
    assert kind.made == kind.asked == 0
    await pool.acquire("fake", "a")
    await eventually(lambda: pool.warm_pool("fake").warm == 1)


async def test_ready_ones_are_made_anew_and_never_too_many(made: Any) -> None:
    pool, kind = made(4, warm=2)
    await eventually(lambda: pool.warm_pool("fake").warm == 2)
    for number in range(4):
        await pool.acquire("fake", f"l{number}")
    await asyncio.sleep(0.02)
    assert pool.warm_pool("fake").warm == 0 and kind.most_alive == 4
    await pool.release("l0")
    await eventually(lambda: pool.warm_pool("fake").warm == 1)
    assert kind.most_alive == 4


async def test_few_are_made_at_the_same_time(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "MAKING", 3)
    kind = FakeType()
    gate, making, most = asyncio.Event(), 0, 0

    async def slow() -> None:
        nonlocal making, most
        making += 1
        most = max(most, making)
        await gate.wait()
        await asyncio.sleep(0.001)
        making -= 1

    kind.on_make = slow
    pool, _ = made(20, kind=kind)
    asked = [asyncio.create_task(pool.acquire("fake", f"l{number}")) for number in range(20)]
    await eventually(lambda: making == 3)
    gate.set()
    await asyncio.gather(*asked)
    assert most == 3 and pool.warm_pool("fake").leased == 20


async def test_one_that_died_while_it_was_ready_is_given_to_nobody(made: Any) -> None:
    pool, kind = made(2, warm=1)
    await eventually(lambda: pool.warm_pool("fake").warm == 1)
    dead = next(iter(kind.alive))
    dead.problem = "killed"
    lease = await pool.acquire("fake", "a")
    assert lease.environment is not dead and pool.counts()["sandboxes_lost"] == 1
    await eventually(lambda: dead not in kind.alive)


async def test_one_that_can_t_be_made_is_tried_again(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "FIRST_PAUSE", 0.1)
    kind = FakeType()
    tries = 0

    async def fail() -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise SandboxError("no room for another one")

    kind.on_make = fail
    pool, _ = made(2, kind=kind, named=False)
    with pytest.raises(MeshError, match="no environment 'fake' can be made now: no room") as caught:
        await pool.acquire("fake", "a")  # which does not wait
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE and caught.value.retry_after
    with pytest.raises(MeshError, match="no room"):
        await pool.acquire("fake", "b")
    with pytest.raises(MeshError, match="no room"):
        await pool.acquire("fake", "b", wait=0.01)
    assert (await pool.acquire("fake", "c", wait=10)).id == "c"
    assert pool.warm_pool("fake").failure == "" and pool.warm_pool("fake").free == 1


async def test_one_that_takes_too_long(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "MAKE_SECONDS", 0.05)
    kind = FakeType()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass  # and is made all the same: it must not be left

    kind.on_make = stubborn
    pool, _ = made(1, kind=kind, named=False)
    with pytest.raises(MeshError, match=r"not ready after 0\.05 s"):
        await pool.acquire("fake", "a")
    await eventually(lambda: kind.made and not kind.alive)


async def test_one_that_is_not_closed_gives_its_slot_back(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "CLOSE_SECONDS", 0.05)
    pool, kind = made(1)

    async def hang(environment: object) -> None:
        await asyncio.Event().wait()

    kind.on_close = hang
    await pool.acquire("fake", "a")
    await pool.release("a")
    await pool.acquire("fake", "b", wait=5)
    kind.on_close = None


def alarms(pool: LeasePool) -> dict[str, str]:
    return dict(status.add_to_status(pool, ComponentStatus()))


async def test_an_environment_that_can_t_be_used(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "RECHECK_SECONDS", 0.0)
    kind = FakeType()
    kind.trouble = "bubblewrap is missing: apt-get install bubblewrap"
    pool, _ = made(1, kind=kind)
    for _ in range(2):
        with pytest.raises(MeshError, match="can't be used: bubblewrap is missing") as caught:
            await pool.acquire("fake", "a", wait=5)
        assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION,
                                                            "ENVIRONMENT_UNUSABLE")
    assert "bubblewrap is missing" in alarms(pool)["environment_unusable"] and not kind.made
    kind.trouble = ""
    await pool.acquire("fake", "a", wait=5)
    assert not alarms(pool)


async def test_it_is_looked_at_again_by_itself(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "MAINTENANCE_SECONDS", 0.02)
    kind = FakeType()
    kind.trouble = "no image"
    pool, _ = made(1, kind=kind)
    await eventually(lambda: pool.warm_pool("fake").problem)
    kind.trouble = ""
    await eventually(lambda: pool.warm_pool("fake").warm == 1)


async def test_waiters_are_told_when_it_can_t_be_used_any_more(made: Any) -> None:
    kind = FakeType()

    async def fail() -> None:
        kind.trouble = "the engine is gone"
        raise SandboxError("connection refused")

    kind.on_make = fail
    pool, _ = made(2, kind=kind, named=False)
    asked = [asyncio.create_task(pool.acquire("fake", f"l{number}", wait=10)) for number in range(2)]
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(answer, MeshError) and answer.reason == "ENVIRONMENT_UNUSABLE"
    assert not alarms(pool)  # a default one is nobody's concern


async def test_the_status(made: Any) -> None:
    pool, _ = made(3, warm=1, name="my_gui")
    await pool.acquire("my_gui", "a")
    await eventually(lambda: pool.warm_pool("my_gui").warm == 1)
    told = ComponentStatus()
    assert status.add_to_status(pool, told) == []
    assert dict(told.gauges) == {"env_my_gui_capacity": 3, "env_my_gui_leased": 1, "env_my_gui_warm": 1,
                                 "env_my_gui_starting": 0, "env_my_gui_waiting": 0}
    assert dict(told.counters) == {"leases": 1, "leases_expired": 0, "steps": 0, "sandboxes_lost": 0}


async def test_what_a_kind_warns_of_is_an_alarm(made: Any) -> None:
    pool, _ = made()
    pool.warm_pool("fake").configured.warnings.append("the server has changed the tool 'pay'")
    assert alarms(pool) == {"environment_warning": "environment 'fake': the server has changed the tool 'pay'"}
