"""Leases: who gets one, what it does, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from openclaw_rl.environment.pool.pool import Pool
from openclaw_rl.environment.tasks.task import Action
from openclaw_rl.mesh.errors import MeshError

from .fake import FakeKind, fake_pool, until

Code = grpc.StatusCode


def say(text: str) -> Action:
    return Action("say", {"text": text})


@pytest.fixture
async def pools() -> AsyncIterator[list[Pool]]:
    pools: list[Pool] = []
    yield pools
    for pool in pools:
        await pool.close()


async def test_a_lease_from_beginning_to_end(pools):
    pool, kind = fake_pool()
    pools.append(pool)
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
    await until(lambda: not any(one is lease.environment for one in kind.alive))
    with pytest.raises(MeshError, match="was given back") as caught:
        await pool.step("a", 3, say("too late"))
    assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "LEASE_ENDED")
    assert pool.counts() == {"leases": 1, "leases_expired": 0, "steps": 2, "sandboxes_lost": 0}
