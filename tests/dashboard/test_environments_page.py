"""Environments, leases and episodes in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from openclaw_rl.v1 import environment_pb2
from tests.dashboard.panel import SOON, Panel, harmless, panel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with panel(tmp_path_factory.mktemp("environments"), 4) as made:
        yield made


def test_environments_live(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    watched = shown.open(browse, "/environments")
    page = watched.page
    kinds = page.get_by_role("table", name="Environments")
    expect(kinds).to_contain_text("2 of 64", timeout=SOON)
    expect(kinds).to_contain_text("no image desk: make it <script>")
    cards = page.locator("[data-card]")
    expect(cards).to_have_count(3)
    expect(cards.nth(0)).to_contain_text("README", timeout=SOON)
    expect(cards.nth(1).locator("img")).to_have_attribute("src", re.compile("^data:image/png"), timeout=SOON)
    data.views["lease/1"] = ("make test\r\nok", b"")
    expect(cards.nth(0)).to_contain_text("make test", timeout=SOON)
    data.kinds[0].leased = 64
    expect(kinds).to_contain_text("64 of 64", timeout=SOON)
    harmless(watched)
    assert sum(data.watched.values()) > 0
    page.close()  # with the tab the streams end, and with the key they would
    deadline = time.monotonic() + 40
    while any(data.watched.values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_only_cards_on_the_screen_are_looked_into(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    more = {f"many{number}": environment_pb2.Lease(lease_id=f"many{number}", type="terminal") for number in range(64)}
    data.leases.update(more)
    data.views.update((name, (f"screen of {name}", b"")) for name in more)
    try:
        watched = shown.open(browse, "/environments", width=390, height=800, dark=True)
        page = watched.page
        expect(page.locator("[data-card]")).to_have_count(67, timeout=SOON)
        expect(page.get_by_text("make test").or_(page.get_by_text("README")).first).to_be_visible(timeout=SOON)
        looked = [name for name, count in data.watched.items() if count]
        assert 0 < len(looked) <= 8
        assert "many63" not in looked
        page.locator("[data-card='many63']").scroll_into_view_if_needed()
        expect(page.get_by_text("screen of many63")).to_be_visible(timeout=SOON)
        assert sum(data.watched.values()) <= 10
        harmless(watched)
    finally:
        for name in more:
            del data.leases[name], data.views[name]
    expect(page.locator("[data-card]")).to_have_count(3, timeout=SOON)


def test_a_lease_live(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    watched = shown.open(browse, "/environments")
    page = watched.page
    data.views["lease/1"] = ("\x1b[31mred\x1b[0m $ <b>x</b>\u202e", b"")
    page.locator("[data-card='lease/1']").click(timeout=SOON)
    pane = page.get_by_role("region", name="Last lines of the terminal")
    expect(pane).to_have_text("red $ <b>x</b>⟨U+202E⟩", timeout=SOON)
    expect(page.get_by_role("log", name="Actions")).to_contain_text('run(command: "<script>')
    data.views["lease/1"] = ("y" * 1_000_000, b"")
    expect(pane).to_have_text(re.compile("^y{16000}$"), timeout=SOON)
    page.goto(f"{shown.served.url}/leases/lease2")
    expect(page.get_by_role("img", name="Screenshot")).to_have_attribute("src", re.compile("^data:"), timeout=SOON)
    expect(page.get_by_role("main")).to_contain_text("<script>window.hacked=1</script>")
    page.goto(f"{shown.served.url}/leases/nobody")
    expect(page.get_by_text("there is no lease")).to_be_visible(timeout=SOON)
    harmless(watched)


def test_episodes(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/episodes", width=360)
    page = watched.page
    tasks = page.get_by_role("table", name="Success by task")
    expect(tasks.get_by_role("row").filter(has_text="task1")).to_contain_text("1/3", timeout=SOON)
    expect(tasks).to_contain_text("<script>window.hacked=1</script>")
    episodes = page.get_by_role("table", name="Episodes")
    expect(episodes.get_by_role("row")).to_have_count(9)
    expect(episodes).to_contain_text("aborted")
    shown.mesh.data.turns["t2"].episode.episode_id = "e1"
    shown.mesh.data.turns["t2"].session_id = "ses1"
    episodes.get_by_role("row").nth(7).get_by_role("link", name="Turns").click()
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(2, timeout=SOON)
    harmless(watched)


def test_the_server_is_down_or_has_none(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    kinds, leases = list(data.kinds), dict(data.leases)
    data.kinds.clear()
    data.leases.clear()
    try:
        watched = shown.open(browse, "/environments", language="zh-CN")
        page = watched.page
        expect(page.get_by_text("未配置任何环境")).to_be_visible(timeout=SOON)
        expect(page.get_by_text("没有租用中的沙箱")).to_be_visible()
        shown.mesh.stop("env_server")
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("env_server", timeout=SOON)
    finally:
        data.kinds.extend(kinds)
        data.leases.update(leases)
        shown.mesh.start("env_server")
    expect(page.locator("[data-card]")).to_have_count(3, timeout=SOON)
    expect(page.get_by_role("main").get_by_role("alert")).to_have_count(0, timeout=SOON)
