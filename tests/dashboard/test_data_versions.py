"""Versions as a tree, and what may be done to them."""

from __future__ import annotations

import pytest

from openclaw_rl.client.facts import Version
from openclaw_rl.dashboard.data import versions
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.rpc.errors import MeshError, failed_precondition
from tests.dashboard.pages_mesh import PagesMesh


def known(*parents: int | None) -> list[Version]:
    return [Version(number, parent, "", "", None, False, [], {}) for number, parent in enumerate(parents)]


@pytest.mark.parametrize(("parents", "active", "depths"), [
    ((None, 0, 1), 2, [0, 0, 0]), ((None, 0, 1, 0), 3, [0, 1, 1, 0]), ((None, 0, 1, 1, 3), 2, [0, 0, 0, 1, 1]),
    ((None, 0, 0, 2, 2), 1, [0, 0, 1, 1, 2]), ((None, 7), None, [0, 0]), ((1, 0), 0, [0, 0]), ((), None, [])])
def test_tree(parents: tuple[int | None, ...], active: int | None, depths: list[int]) -> None:
    found = versions.tree(known(*parents), active)
    assert [one.version.version for one in found] == list(reversed(range(len(parents))))
    assert [one.depth for one in reversed(found)] == depths


async def test_every_version(clients: MeshData, pages: PagesMesh) -> None:
    found = await versions.every(clients)
    assert (found.active, found.pinned, found.kept, found.paused, found.down) == (2, False, {0, 1, 2}, False, [])
    assert [(one.version.version, one.depth, one.gate) for one in found.rows] == [
        (3, 1, "failed"), (2, 0, "passed"), (1, 0, "passed"), (0, 0, "")]
    assert found.rows[1].parent_live == {"turns": 9, "mean": pytest.approx(0.1)}
    pages.data.paused = "lunch"
    assert (await versions.every(clients)).paused
    pages.stop("policy_server")
    without = await versions.every(clients)
    assert without.down == ["policy_server"]
    assert len(without.rows) == 4
    pages.stop("trainer")
    with pytest.raises(MeshError):
        await versions.every(clients)


async def test_stories_and_differences(clients: MeshData) -> None:
    told = await versions.story(clients, 1)
    assert [turn.turn for turn in told.turns] == ["t0", "t1"]
    diff = await versions.diff(clients, 1, 2)
    assert diff.settings == {"lr": ("1e-5", "2e-5")}
    assert diff.answers[0]["old"] is not None
    assert diff.answers[0]["new"] is not None
    with pytest.raises(MeshError, match="there is no version"):
        await versions.story(clients, 9)


async def test_acting(clients: MeshData, pages: PagesMesh) -> None:
    assert await versions.activate(clients, 1, "vague") == (1, 7)
    assert await versions.pin(clients, None, "show", True) == 1
    assert pages.data.pinned
    assert await versions.pin(clients, None, "", False) == 1
    await versions.pause(clients, "lunch")
    assert pages.data.paused == "lunch"
    await versions.resume(clients)
    assert (await versions.train_now(clients))[0] == 3
    assert pages.data.done == [("activate", 1, "vague", None), ("activate", None, "show", True),
                               ("activate", None, "", False), ("pause", "lunch"), ("resume",), ("train",)]
    with pytest.raises(MeshError, match="it isn't kept"):
        await versions.activate(clients, 3, "")
    pages.data.fails = failed_precondition("PAUSED", "training is paused")
    with pytest.raises(MeshError, match="training is paused"):
        await versions.train_now(clients)


async def test_versions_are_asked_for_again_when_something_changed(clients: MeshData, pages: PagesMesh) -> None:
    for _ in range(5):
        await versions.every(clients)
    assert pages.data.asked["versions"] == 1
    pages.status["trainer"].counters["updates"] = 1
    await versions.every(clients)
    assert pages.data.asked["versions"] == 2


async def test_a_pause_is_told_by_the_trainer_s_gauge_and_not_by_its_words(clients: MeshData, pages: PagesMesh) -> None:
    pages.status["trainer"].detail = "paused for thought"
    assert not (await versions.every(clients)).paused
    pages.data.paused = ""
    found = await versions.every(clients)
    assert found.paused and not found.trainer.startswith("paused")
