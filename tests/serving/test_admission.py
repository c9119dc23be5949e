"""Background requests in the queue before the engine; for live clients see tests/serving/entrypoints/test_limits.py."""

from __future__ import annotations

import asyncio

import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.admission import FairQueue


class Rig:
    """Requests by name: `e` and a number is of the background, any other of the live client that is its first letter.
    """

    def __init__(self, slots: int, waiting: int = 100) -> None:
        self.clock = 0.0
        self.queue = FairQueue(slots, waiting, lambda: self.clock)
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def _request(self, name: str) -> None:
        async with self.queue.slot(name[0], background=name[0] == "e"):
            self.running.append(name)
            self._ends[name] = asyncio.Event()
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)

    async def come(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._request(name))
            await asyncio.sleep(0)
        await self.settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self.tasks[name]
        await self.settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_the_background_alone_has_all_slots() -> None:
    rig = Rig(4)
    await rig.come("e1", "e2", "e3", "e4", "e5")
    assert rig.running == ["e1", "e2", "e3", "e4"]
    assert rig.queue.background_waiting == 1 and rig.queue.waiting == 0


async def test_live_requests_come_before_those_of_the_background_that_wait_longer() -> None:
    rig = Rig(2)
    await rig.come("e1", "e2", "e3", "e4", "a1", "b1")
    assert rig.running == ["e1", "e2"]
    await rig.end("e1")
    assert rig.running == ["e2", "a1"]
    await rig.end("e2")
    assert rig.running == ["a1", "b1"]
    await rig.end("a1")
    assert rig.running == ["b1", "e3"]


async def test_a_quarter_is_kept_while_a_live_client_is_about() -> None:
    rig = Rig(8)
    await rig.come("a1")
    await rig.end("a1")
    await rig.come(*(f"e{i}" for i in range(9)))
    assert len(rig.running) == 6  # a request of `a` would start at once
    await rig.come("a2")
    assert "a2" in rig.running
    rig.clock = 59.0
    await rig.end("e0")
    assert len(rig.running) == 7
    rig.clock = 61.0  # nobody but for a2, whose response is still being made
    await rig.end("e1")
    assert sorted(rig.running) == ["a2", *(f"e{i}" for i in range(2, 8))]
    await rig.end("a2")
    assert rig.running == [f"e{i}" for i in range(2, 9)]


async def test_live_clients_may_have_every_slot_and_the_background_waits() -> None:
    rig = Rig(4)
    await rig.come("a1", "b1", "a2", "b2", "e1")
    assert len(rig.running) == 4 and "e1" not in rig.running
    await rig.end("a1")
    assert "e1" in rig.running


async def test_each_waits_in_a_room_of_its_own() -> None:
    rig = Rig(1, waiting=2)
    await rig.come("a1", "a2", "a3", "e1", "e2")
    assert rig.queue.waiting == rig.queue.background_waiting == 2
    for name in ("a4", "e3"):
        with pytest.raises(MeshError, match="wait already"):
            await rig._request(name)
    for name in ("a1", "a2", "a3", "e1", "e2"):
        assert rig.running == [name]
        await rig.end(name)


async def test_a_live_request_that_gives_up_holds_nothing_back() -> None:
    rig = Rig(4)
    await rig.come("b1", "a1", "a2", "a3", "a4", "e1")  # a4 is beyond a's share, and e1 behind it
    assert sorted(rig.running) == ["a1", "a2", "a3", "b1"] and rig.queue.waiting == 1
    await rig.end("b1")
    assert sorted(rig.running) == ["a1", "a2", "a3"]  # a's share is used up, and e1 comes behind a4
    await rig.cancel("a4")
    assert "e1" in rig.running


async def test_slots_are_given_back_whoever_is_cancelled() -> None:
    rig = Rig(2)
    await rig.come("e1", "e2", "e3", "a1", "a2")
    for name in ("a1", "e1", "e3", "a2", "e2"):
        await rig.cancel(name)
    rig.clock = 61.0
    await rig.come("e4", "e5")
    assert rig.running == ["e4", "e5"]
