"""Turns, sessions and a turn's story in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from openclaw_rl.v1 import trainer_pb2, turn_pb2
from tests.dashboard.pages_mesh import at, trace, turn
from tests.dashboard.panel import SOON, Panel, harmless, panel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with panel(tmp_path_factory.mktemp("turns")) as made:
        yield made


def test_searching_paging_and_going_back(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/turns")
    page = watched.page
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(51, timeout=SOON)
    expect(rows.nth(1)).to_contain_text("<script>window.hacked=1</script><img src=x onerror=")
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(22, timeout=SOON)
    assert "from=50" in page.url
    page.go_back()
    expect(rows).to_have_count(51, timeout=SOON)
    page.get_by_label("Class").select_option("side")
    page.get_by_label("Version").fill("2")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(6, timeout=SOON)
    assert page.url.endswith("/turns?class=side&version=2")  # nothing of the fields that say nothing
    page.get_by_role("link", name="Remove filter Version: 2").click()
    expect(rows).to_have_count(18, timeout=SOON)
    data = shown.mesh.data
    page.goto(f"{shown.served.url}/turns?class=main")
    expect(rows).to_have_count(51, timeout=SOON)
    late = turn(68, turn_id="late", session_id="slow", request_text="a slow one", finished_at=at(68.5))
    data.turns["late"] = late  # it ended before the newest and is told after it
    try:
        expect(rows.filter(has_text="a slow one")).to_be_visible(timeout=SOON)
        expect(rows.nth(3)).to_contain_text("a slow one")
    finally:
        del data.turns["late"]
    page.goto(f"{shown.served.url}/turns?score=bad&fate=trained")
    expect(page.get_by_text("4 of 71 turns searched")).to_be_visible(timeout=SOON)
    expect(rows).to_have_count(5)
    page.goto(f"{shown.served.url}/turns?text=nowhere")
    expect(page.get_by_text("No turn matches these filters")).to_be_visible(timeout=SOON)
    harmless(watched)


def test_new_turns_come_without_losing_the_place(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/turns?session=live")
    page, data = watched.page, shown.mesh.data
    expect(page.get_by_text("No turn matches these filters")).to_be_visible(timeout=SOON)
    data.turns.update({f"n{number}": turn(1000 + 4 * number, turn_id=f"n{number}", session_id="live", parent_turn_id="")
                       for number in range(30)})
    link = page.get_by_role("link", name="What is 1004 plus 1004?")
    link.scroll_into_view_if_needed(timeout=SOON)
    page.mouse.wheel(0, 300)
    link.focus()
    before = link.bounding_box()
    data.turns["later"] = turn(2000, turn_id="later", session_id="live")
    expect(page.get_by_role("link", name="What is 2000 plus 2000?")).to_be_attached(timeout=SOON)
    after = link.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(before["y"] - after["y"]) < 30
    assert page.evaluate("document.activeElement.textContent") == "What is 1004 plus 1004?"
    row = page.get_by_role("row").filter(has_text="What is 2000 plus 2000?")
    expect(row).to_contain_text("pending")
    data.judgements["later"] = turn_pb2.Judgement(turn_id="later", score=1)
    data.samples["later"] = trainer_pb2.SampleStatus(turn_id="later", fate=trainer_pb2.SAMPLE_FATE_TRAINED, version=2,
                                                     score=1)
    expect(row).to_contain_text("trained", timeout=SOON)
    expect(row).to_contain_text("+1")
    harmless(watched)


@pytest.mark.parametrize(("width", "dark", "language"), [(1280, False, "en-US"), (360, True, "zh-CN")])
def test_a_turn_s_story(shown: Panel, browse: Any, width: int, dark: bool, language: str) -> None:
    watched = shown.open(browse, "/turns/bad", width=width, dark=dark, language=language)
    page = watched.page
    for text in ("<script>window.hacked=1</script>", "⟨U+202E⟩", "ses<i>"):
        expect(page.get_by_role("main")).to_contain_text(text, timeout=SOON)
    expect(page.get_by_role("main")).to_contain_text("failed" if language == "en-US" else "失败")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x00]", page.get_by_role("main").text_content() or "")
    harmless(watched)


def test_a_trace_is_walked_through_from_the_keyboard(shown: Panel, browse: Any) -> None:
    trace(shown.mesh.home, "t0", 400)
    watched = shown.open(browse, "/turns/t0")
    page = watched.page
    expect(page.get_by_text("And a lot more, which only the journal has.")).to_be_visible(timeout=SOON)
    tree = page.get_by_role("tree", name="Trace")
    expect(tree.get_by_role("treeitem")).to_have_count(400, timeout=SOON)
    expect(tree.locator("[tabindex='0']")).to_have_count(1)  # one stop for the tab key
    tree.get_by_role("treeitem").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    details = page.get_by_role("region", name="Span details")
    expect(details).to_contain_text("vote 1")
    page.keyboard.press("ArrowLeft")
    expect(details.get_by_role("heading")).to_have_text("chat")
    failed = tree.get_by_role("treeitem", name="vote 2, prm_judge")
    failed.hover()
    expect(details).to_contain_text("<script>window.hacked=1</script>")
    expect(failed).to_have_attribute("aria-label", re.compile("error: <script>"))
    boxes = [box for box in (tree.get_by_role("treeitem").nth(n).locator(".w-bar").bounding_box() for n in (0, 1))
             if box is not None]
    assert boxes[0]["x"] < boxes[1]["x"]
    harmless(watched)


def test_sessions(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/sessions")
    page = watched.page
    page.get_by_role("link", name="What is 3 plus 3?").click(timeout=SOON)
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(3, timeout=SOON)
    expect(page.get_by_role("main")).to_contain_text("ses1")
    page.goto(f"{shown.served.url}/sessions/nobody")
    expect(page.get_by_text("there is no session")).to_be_visible(timeout=SOON)
    page.goto(f"{shown.served.url}/turns/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    expect(page.get_by_text("there is no turn '<script>")).to_be_visible(timeout=SOON)
    harmless(watched)


def test_components_that_are_down(shown: Panel, browse: Any) -> None:
    shown.mesh.stop("env_server", "trainer")
    try:
        watched = shown.open(browse, "/turns")
        page = watched.page
        told = page.get_by_role("main").get_by_role("alert")
        expect(told).to_contain_text("env_server has not answered since", timeout=SOON)
        expect(told).to_contain_text("Versions, other logs and the overview still work")
        assert "Traceback" not in page.content()
        shown.mesh.start("env_server")
        expect(page.get_by_role("table").get_by_role("row")).to_have_count(51, timeout=SOON)
        expect(page.get_by_text("No answer from: the trainer.")).to_be_visible(timeout=SOON)
    finally:
        shown.mesh.start("trainer")
    expect(page.get_by_text("No answer from: the trainer.")).to_be_hidden(timeout=SOON)
    assert watched.sideways() <= 0
