"""Logs are followed, once for all who read them."""

from __future__ import annotations

import pytest

from openclaw_rl.dashboard.data import logs
from openclaw_rl.monitoring.mesh import MeshData
from tests.dashboard.pages_mesh import PagesMesh
from tests.support.waiting import eventually


async def test_lines_come_once(clients: MeshData, pages: PagesMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_AGAIN", 0.05)
    shared = logs.shared_logs(clients)
    source = shared.open("trainer")
    assert shared.open("trainer") is source
    await eventually(lambda: len(source.lines) == 5)
    assert [line.level for line in source.lines] == ["info", "warning", "error", "error", "error"]
    assert source.lines[3].at == source.lines[2].at == "2026-11-30 10:00:03,000"
    assert len(source.lines[4].text) < 5000
    assert "␛[31m" in source.lines[2].text
    pages.stop("trainer")
    await eventually(lambda: bool(source.problem))
    pages.data.log.append("2026-11-30 10:00:09,000 INFO    back")
    pages.start("trainer")
    await eventually(lambda: len(source.lines) == 6)
    assert [line.number for line in source.after(4)] == [5, 6]
    assert not source.problem
    shared.close("trainer")
    shared.close("trainer")
    assert shared.open("trainer") is not source
    shared.close("trainer")


async def test_the_journal(clients: MeshData) -> None:
    source = logs.shared_logs(clients).open(logs.JOURNAL)
    await eventually(lambda: len(source.lines) == 4)
    assert [line.level for line in source.lines] == ["info", "info", "info", "warning"]
    logs.shared_logs(clients).close(logs.JOURNAL)


@pytest.mark.parametrize(("text", "level", "fits"), [
    ("", "", True), ("SLOW", "", True), ("fast", "", False), ("", "warning", True), ("", "error", False)])
def test_filters(text: str, level: str, fits: bool) -> None:
    assert logs.matches(logs.Line(1, "it is slow", "warning"), text, level) == fits
