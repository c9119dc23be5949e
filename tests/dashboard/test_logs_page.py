"""Logs in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.dashboard.pages_mesh import HOSTILE
from tests.dashboard.panel import SOON, Panel, harmless, panel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with panel(tmp_path_factory.mktemp("logs"), 4) as made:
        yield made


def test_filters_the_journal_and_a_component_that_is_down(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    watched = shown.open(browse, "/logs", width=360, dark=True)
    page = watched.page
    log = page.get_by_role("log", name="Logs")
    expect(log.locator(".l-line")).to_have_count(20, timeout=SOON)
    page.get_by_label("Minimum level").select_option("warning")
    page.get_by_label("Text").fill("SLOW")
    page.get_by_role("button", name="Find").click()
    expect(log.locator(".l-line")).to_have_count(4, timeout=SOON)
    assert "level=warning" in page.url
    page.goto(f"{shown.served.url}/logs?source=journal")
    expect(log).to_contain_text("NextState", timeout=SOON)
    data.journal.append('[2026-11-30 10:00:09] [SESSION: x] [VERSION: 1] [MAIN] Action: "' + HOSTILE.replace(
        "\0", "") + '"')
    expect(log).to_contain_text("<script>window.hacked=1</script>", timeout=SOON)
    harmless(watched)
    shown.mesh.stop("prm_judge")
    try:
        page.goto(f"{shown.served.url}/logs")
        expect(page.get_by_role("main").get_by_text("prm_judge does not respond")).to_be_visible(timeout=SOON)
        expect(log).to_contain_text("trainer")
        assert "Traceback (most" not in page.content()
    finally:
        shown.mesh.start("prm_judge")


def test_following_pausing_and_jumping(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    watched = shown.open(browse, "/logs?source=trainer")
    page = watched.page
    log = page.get_by_role("log", name="Logs")
    expect(log.locator(".l-line")).to_have_count(5, timeout=SOON)
    expect(log).to_contain_text("<script>window.hacked=1</script>")
    data.log.append("2026-11-30 10:01:00,000 INFO    fresh line")
    expect(log).to_contain_text("fresh line", timeout=SOON)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_have_attribute("aria-pressed", "true")
    data.log.extend(f"2026-11-30 10:02:00,000 INFO    many {number}" for number in range(1500))
    expect(page.get_by_text("paused; 1500 new lines")).to_be_visible(timeout=SOON)
    expect(log).not_to_contain_text("many")
    page.get_by_role("button", name="Resume").click()
    expect(log).to_contain_text("many 1499", timeout=SOON)
    expect(log.locator(".l-line")).to_have_count(1000)  # the browser keeps no more
    log.evaluate("(box) => { box.scrollTop = 0; }")
    data.log.append("2026-11-30 10:03:00,000 INFO    at the end")
    expect(log).to_contain_text("at the end", timeout=SOON)
    assert log.evaluate("(box) => box.scrollTop") < 100  # who reads elsewhere stays there
    page.get_by_role("button", name="Jump to newest").click()
    expect(log.get_by_text("at the end")).to_be_in_viewport()
    harmless(watched)
