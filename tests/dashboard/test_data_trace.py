"""A trace as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from openclaw_rl.client.traces import Node
from openclaw_rl.dashboard.data import trace
from openclaw_rl.launch import jaeger
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.runtime.home import Home
from tests.dashboard.pages_mesh import trace as write_trace


def span(name: str, start: int, end: int, **fields: Any) -> dict[str, Any]:
    return {"trace": "t", "span": name, "parent": "", "service": "s", "name": name, "kind": 1, "start": start,
            "end": end, "status": "ok", "message": "", "attributes": {}, "events": [], "links": [], **fields}


def test_bars() -> None:
    child = Node(span("child", 150, 200, status="error", message="it broke\x1b[0m"))
    after = Node(span("after", 300, 500, attributes={"openclaw.policy.version.trained": 4}))
    found = trace.waterfall([Node(span("top", 100, 300), [child]), after])
    assert [(bar.name, bar.depth, bar.children) for bar in found.bars] == [("top", 0, 1), ("child", 1, 0),
                                                                          ("after", 0, 0)]
    assert [(bar.left, bar.width) for bar in found.bars] == [(0, 0.5), (0.125, 0.125), (0.5, 0.5)]
    assert found.took == 400
    assert found.bars[1].error == "it broke␛[0m"
    assert found.bars[2].facts == [("trained version 4", "trained")]


def test_a_deep_and_a_backward_trace() -> None:
    node = Node(span("end", 50, 40))
    for number in range(3000):
        node = Node(span(f"n{number}", 10, 60), [node])
    found = trace.waterfall([node])
    assert len(found.bars) == trace.SHOWN
    assert found.left_out == 2001
    assert trace.waterfall([Node(span("x", 9, 5))]).bars[0].width == 0
    assert trace.waterfall([]).bars == []


@pytest.fixture
def mesh(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[MeshData]:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(home.root))
    yield MeshData(home)


async def test_of_a_turn(mesh: MeshData, home: Home) -> None:
    assert "no spans of turn t0" in (await trace.of_turn(mesh, "t0")).problems[0]
    write_trace(home, "t0", 30)
    found = await trace.of_turn(mesh, "t0")
    assert len(found.bars) == 30
    assert not found.problems
    assert not found.jaeger
    [failed] = [bar for bar in found.bars if bar.error]
    assert failed.name == "vote 2"
    assert ("openclaw.turn.id", "t0") in failed.details
    jaeger.write(home, jaeger.Jaeger("jaeger", 16686, 1, 2, 3, 4))
    assert (await trace.of_turn(mesh, "t0")).jaeger == f"http://127.0.0.1:16686/trace/{'a' * 32}"
