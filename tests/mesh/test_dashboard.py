"""The dashboard beside the real mesh: live, through the kill of each component, and after its own restart."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from openclaw_rl.runtime.home import COMPONENTS
from tests.dashboard.rig import Served, browse  # noqa: F401
from tests.mesh.mesh import Mesh
from tests.support.browser import chromium  # noqa: F401
from tests.support.waiting import until

NAMES = {"policy_server": "Policy server", "env_server": "Environment server", "prm_judge": "Judge",
         "trainer": "Trainer"}


@pytest.fixture
def expect() -> Any:
    return pytest.importorskip("playwright.sync_api").expect


def test_the_dashboard_during_a_kill_of_each_component(mesh: Mesh, browse: Any, expect: Any) -> None:  # noqa: F811
    until(mesh.all_running, 120, "the mesh runs")
    served = Served(mesh.home)
    try:
        watched = browse(served.url)
        page = watched.page
        components = page.get_by_role("region", name="Components").get_by_role("listitem")
        for name in NAMES.values():
            expect(components.filter(has_text=name)).to_contain_text("running", timeout=30_000)
        mesh.session("dashboard", "What is a heron?", "That is wrong, please say it again.", "Thank you!", done=True)
        tiles = page.get_by_role("region", name="Now")
        expect(tiles).not_to_contain_text("p95 – · p99 –", timeout=30_000)  # latency and first token are told
        scores = page.get_by_role("region", name="Judge: Scores per minute")
        expect(scores).not_to_contain_text("No data", timeout=60_000)
        for component in COMPONENTS:
            line = components.filter(has_text=NAMES[component])
            os.kill(mesh.record(component).pid, signal.SIGKILL)
            expect(line).to_contain_text("down", timeout=30_000)
            expect(page.get_by_role("status")).to_contain_text(f"{component} has not answered since")
            expect(line).to_contain_text("running", timeout=120_000)
            expect(page.get_by_role("status")).not_to_contain_text(component, timeout=30_000)
        happened = page.get_by_role("region", name="Events")
        expect(happened).to_contain_text("Trainer: down → ")
        assert served.process.poll() is None and watched.hosts == {f"127.0.0.1:{served.port}"}
    finally:
        assert served.stop() == 0, "".join(served.errors)
    again = Served(mesh.home)
    try:
        page = browse(again.url).page
        expect(page.get_by_role("region", name="Events")).to_contain_text("Judge: running → down")
        page.get_by_role("button", name="Requests: show as table").click()
        rows = page.get_by_role("dialog", name="Requests").get_by_role("row")
        expect(rows.nth(4)).to_be_visible(timeout=20_000)  # more than the restarted one can have seen itself
    finally:
        again.stop()
