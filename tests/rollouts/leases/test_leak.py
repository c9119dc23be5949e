"""A slot never leaks, whatever becomes of those who asked for it."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from openclaw_rl.rollouts.environments.interface import BadAction
from openclaw_rl.rollouts.leases import warm_pool as warm_pools
from openclaw_rl.rollouts.sandboxes.interface import SandboxError
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.rpc.errors import MeshError
from tests.rollouts.leases.fake import FakeEnvironment, FakeType, fake_pool
from tests.support.waiting import eventually

LEASES = 10_000
CAPACITY = 16
CLIENTS = 24


async def test_ten_thousand_leases_whose_clients_go_away_at_any_moment(monkeypatch: pytest.MonkeyPatch,
                                                                       caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")
    monkeypatch.setattr(warm_pools, "FIRST_PAUSE", 0.001)
    dice = random.Random(7)
    kind = FakeType()

    async def make() -> None:
        await asyncio.sleep(0)
        if dice.random() < 0.01:
            raise SandboxError("no room")

    async def step(environment: FakeEnvironment, action: Action) -> None:
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
        luck = dice.random()
        if luck < 0.01:
            raise SandboxError("killed")
        if luck < 0.02:
            environment.problem = "died by itself"
        if luck < 0.03:
            raise BadAction("name: no")

    kind.on_make, kind.on_step = make, step
    pool, _ = fake_pool(CAPACITY, kind=kind, ttl=0.02, max_waiting=CLIENTS)
    warm_pool = pool.warm_pool("fake")
    numbers = itertools.count()

    async def live(lease_id: str) -> None:
        """All of a client's life; whoever cancels it kills the client."""
        await pool.acquire("fake", lease_id, holder=str(dice.randrange(5)), wait=dice.choice([None, 0.001, *[5] * 8]))
        await pool.reset(lease_id, "", 1)
        for number in range(1, dice.randrange(1, 4)):
            await pool.step(lease_id, number, Action("say", {"text": "x"}))
        await pool.evaluate(lease_id)
        await pool.release(lease_id)

    async def client() -> None:
        while pool.counts()["leases"] < LEASES:
            number = next(numbers)
            life = asyncio.create_task(live(f"l{number}"))
            if dice.random() < 0.5:
                for _ in range(dice.randrange(40)):
                    await asyncio.sleep(0)
                life.cancel()
            try:
                await life
            except (asyncio.CancelledError, MeshError):
                if dice.random() < 0.5:  # the others just go, and their leases expire
                    await pool.release(f"l{number}")
            assert warm_pool.leased + warm_pool.warm + warm_pool.starting <= CAPACITY

    async with asyncio.timeout(90):
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        await eventually(lambda: not pool.leases() and not pool._pending)
    assert warm_pool.free == CAPACITY and warm_pool.leased == warm_pool.waiting == 0 and kind.most_alive <= CAPACITY
    counts = pool.counts()
    assert counts["leases_expired"] > 100 and counts["sandboxes_lost"] > 10
    for number in range(CAPACITY):  # and all can be had
        await pool.acquire("fake", f"last{number}", wait=10, ttl=60)
    await pool.close()
    assert not kind.alive and not pool._timers
