"""Versions in a real browser: what there is, what changed, and acting with and without the key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from openclaw_rl.rpc.errors import failed_precondition
from tests.dashboard.pages_mesh import HOSTILE, version
from tests.dashboard.panel import SOON, Panel, harmless, panel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with panel(tmp_path_factory.mktemp("versions"), 8) as made:
        yield made


def test_what_there_is_and_what_changed(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/versions")
    page = watched.page
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(5, timeout=SOON)
    expect(rows.nth(1)).to_contain_text("failed the gate")
    expect(rows.nth(2)).to_contain_text("+0.20 of 9")
    expect(rows.nth(2)).to_contain_text("+0.10 of 9")
    page.get_by_role("link", name="version 2").click()
    main = page.get_by_role("main")
    for text in ("12.4 ms", "perplexity", "hi 1 <script>", "hi 2 <script>", "lr", "2e-5", "What is 2 plus 2?"):
        expect(main).to_contain_text(text, timeout=SOON)
    page.get_by_role("combobox", name="Version").select_option("3")
    page.get_by_role("button", name="Compare").click()
    expect(main).to_contain_text("hi 3 <script>", timeout=SOON)
    assert "other=3" in page.url
    page.get_by_role("button", name=re.compile("Colours")).click()
    expect(main).to_contain_text("hi 3 <script>", timeout=SOON)
    assert page.url.endswith("/versions/2?other=3")  # a switch keeps what is shown
    page.goto(f"{shown.served.url}/versions/9")
    expect(page.get_by_text("there is no version")).to_be_visible(timeout=SOON)
    page.goto(f"{shown.served.url}/versions/%3Cb%3E")
    expect(page.get_by_text("This is not a version number.")).to_be_visible(timeout=SOON)
    harmless(watched)


def test_without_the_key_nothing_can_be_changed(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/versions/1")
    page = watched.page
    button = page.get_by_role("button", name="Roll back to this version")
    expect(button).to_be_disabled(timeout=SOON)
    expect(button).to_have_accessible_description("This action requires an admin key. Sign in first.")
    assert not shown.mesh.data.done
    harmless(watched)


def test_rolling_back_and_pinning(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    watched = shown.open(browse, "/versions/1", admin=True)
    page = watched.page
    page.get_by_role("button", name="Roll back to this version").focus(timeout=SOON)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Version 1 replaces version 2 as the active version")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert not data.done
    data.fails = failed_precondition("PINNED", "another one is pinned " + HOSTILE.replace("\0", ""))
    page.get_by_role("button", name="Roll back to this version").click()
    dialog.get_by_label("Reason").fill("answers got vague")
    dialog.get_by_role("button", name="Roll back to this version").click()
    expect(dialog.get_by_role("alert")).to_contain_text("another one is pinned <script>", timeout=SOON)
    data.fails = None
    dialog.get_by_role("button", name="Roll back to this version").click()
    expect(page.get_by_text("Version 1 is active; decoding paused for 7 ms.")).to_be_visible(timeout=SOON)
    assert data.active == 1
    assert data.done[-1] == ("activate", 1, "answers got vague, by the operator, at the dashboard", None)
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Roll back to this version")).to_be_hidden(timeout=SOON)
    page.get_by_role("button", name="Pin", exact=True).click()
    dialog.get_by_role("button", name="Pin").click()
    expect(page.get_by_role("button", name="Unpin")).to_be_visible(timeout=SOON)
    assert data.pinned
    page.goto(f"{shown.served.url}/versions/2")
    expect(page.get_by_role("button", name="Activate")).to_be_disabled(timeout=SOON)
    expect(page.get_by_text("Another version is pinned: remove the pin first.")).to_be_visible()
    page.goto(f"{shown.served.url}/versions/3")
    expect(page.get_by_text("no longer keeps this version").first).to_be_visible(timeout=SOON)
    assert watched.sideways() <= 0
    assert page.evaluate("window.hacked") is None


def test_pausing_and_training(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    watched = shown.open(browse, "/versions", admin=True, width=390, dark=True)
    page = watched.page
    page.get_by_role("button", name="Train now").click(timeout=SOON)
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Train now").click()
    expect(page.get_by_text("a step on 3 samples begins <script>")).to_be_visible(timeout=SOON)
    page.get_by_role("button", name="Pause training").click()
    dialog.get_by_label("Reason").fill("lunch")
    dialog.get_by_role("button", name="Pause training").click()
    expect(page.get_by_text("training is paused", exact=True)).to_be_visible(timeout=SOON)
    assert (data.paused or "").startswith("lunch, by ")
    expect(page.get_by_role("button", name="Train now")).to_be_disabled()
    page.get_by_role("button", name="Resume training").click()
    dialog.get_by_role("button", name="Resume training").click()
    expect(page.get_by_role("button", name="Pause training")).to_be_visible(timeout=SOON)
    harmless(watched)


def test_who_types_into_a_dialog_is_not_disturbed(shown: Panel, browse: Any) -> None:
    data = shown.mesh.data
    watched = shown.open(browse, "/versions", admin=True)
    page = watched.page
    training = page.get_by_text("needs 2 more samples")
    told = training.text_content(timeout=SOON) or ""
    page.get_by_role("button", name="Pause training").click()
    reason = page.get_by_role("dialog").get_by_label("Reason")
    reason.type("lunch")
    updates = shown.mesh.status["trainer"].counters
    updates["updates"] += 1
    data.versions.append(version(4, 2))  # the table changes, and what the trainer waits for
    try:
        expect(training).not_to_have_text(told, timeout=SOON)
        expect(page.get_by_role("table").get_by_role("row")).to_have_count(5)
        reason.type(" time")
        expect(reason).to_have_value("lunch time")
        expect(reason).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("table").get_by_role("row")).to_have_count(6, timeout=SOON)
        # What has the focus keeps it when the table is made anew.
        page.get_by_role("link", name="version 1", exact=True).focus()
        data.versions[3].live.turns = 77
        updates["updates"] += 1
        expect(page.get_by_role("table")).to_contain_text("of 77", timeout=SOON)
        expect(page.get_by_role("link", name="version 1", exact=True)).to_be_focused()
        page.goto(f"{shown.served.url}/versions/4")
        expect(page.get_by_text("being sent to the policy server")).to_be_visible(timeout=SOON)
    finally:
        data.versions.pop()
    harmless(watched)


def test_a_disabled_button_that_is_pressed_all_the_same_is_refused(shown: Panel, browse: Any) -> None:
    before = list(shown.mesh.data.done)
    page = shown.open(browse, "/versions").page
    button = page.get_by_role("button", name="Pause training")
    expect(button).to_be_disabled(timeout=SOON)
    button.evaluate("(button) => { button.disabled = false; button.click(); }")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Pause training").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This action requires an admin key")
    assert shown.mesh.data.done == before
    assert shown.mesh.data.paused is None


def test_components_that_are_down(shown: Panel, browse: Any) -> None:
    shown.mesh.stop("trainer")
    try:
        watched = shown.open(browse, "/versions", admin=True)
        page = watched.page
        expect(page.get_by_text("trainer does not respond: information only it has")).to_be_visible(timeout=SOON)
        expect(page.get_by_role("button", name="Train now")).to_be_disabled()
        shown.mesh.stop("policy_server")
        page.reload()
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("neither responds", timeout=SOON)
        assert "Traceback" not in page.content()
        assert watched.sideways() <= 0
    finally:
        shown.mesh.start("trainer", "policy_server")
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(5, timeout=SOON)
