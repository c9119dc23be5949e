"""Learning: figures that follow from the judgements, and the page that shows them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from openclaw_rl.dashboard.data import learning
from openclaw_rl.dashboard.data.learning import Judged, Share, better, periods
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.v1 import turn_pb2
from tests.dashboard.pages_mesh import PagesMesh
from tests.dashboard.panel import SOON, Panel, harmless, panel


def test_wilson_s_interval() -> None:
    """Values of the formula as published: 10 of 100, and the borders."""
    assert Share(100, 10).interval == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert Share(10, 0).interval == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert Share(10, 10).interval == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert Share().interval == (0.0, 1.0) and Share().rate == 0


def test_what_can_be_told() -> None:
    assert better(Share(100, 60), Share(100, 20)) is True
    assert better(Share(100, 20), Share(100, 60)) is False
    assert better(Share(10, 6), Share(10, 2)) is None
    assert better(Share(), Share(100, 1)) is None


def test_periods() -> None:
    noon = time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, -1))
    hourly, found = periods([Judged(0, noon + 60 * i, -1 if i % 2 else 1) for i in range(120)])
    assert hourly and found == [(noon + 3600, Share(60, 30, 30)), (noon, Share(60, 30, 30))]
    hourly, found = periods([Judged(0, noon + 86400 * i, 0) for i in range(30)])
    assert not hourly and len(found) == 14 and all(share == Share(1) for _, share in found)
    assert all(time.localtime(begin).tm_hour in (0, 1, 23) for begin, _ in found)  # a clock may change meanwhile
    assert periods([]) == (False, [])


async def test_of_a_mesh(clients: MeshData, pages: PagesMesh) -> None:
    main = [one for one in pages.data.turns.values() if one.turn_class == turn_pb2.TURN_CLASS_MAIN]
    pages.data.turns["t0"].episode.episode_id = "e1"
    failed = pages.data.judgements["t1"]
    failed.failed = True
    scores = {name: found.score for name, found in pages.data.judgements.items() if name not in ("t0", "t1")}
    found = await learning.learning(clients)
    assert (found.looked_at, found.judged) == (len(main) - 1, len(scores)) and not found.more
    assert [one.version for one in found.versions] == [2, 1, 0]
    of_two = [score for name, score in scores.items() if pages.data.turns[name].policy_version == 2]
    assert found.versions[0].share == Share(len(of_two), of_two.count(-1), of_two.count(1))
    assert found.active == found.versions[0] and found.versions[0].learned == 4 and found.versions[0].parent == 1
    assert sum(share.judged for _, share in found.periods) == len(scores)


async def test_without_the_versions_the_turns_are_there(clients: MeshData, pages: PagesMesh,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(mesh: Any) -> None:
        raise unavailable("nobody answers")

    monkeypatch.setattr(learning.versions, "every", gone)
    found = await learning.learning(clients)
    assert found.judged and found.active is None and {one.learned for one in found.versions} == {None}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with panel(tmp_path_factory.mktemp("learning"), 30) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_page(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/learning")
    page = watched.page
    by_version, over_time = page.get_by_role("table").nth(0), page.get_by_role("table").nth(1)
    expect(by_version.get_by_role("row")).to_have_count(4, timeout=SOON)
    expect(by_version.get_by_role("row").nth(1)).to_contain_text("active")
    expect(page.get_by_role("main")).to_contain_text("Version 2 gets more complaints than the base model: 100 %")
    expect(over_time.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("link", name="Learning")).to_have_attribute("aria-current", "page")
    by_version.get_by_role("link", name="compare with version 1").click()
    expect(page).to_have_url(re.compile(r"/versions/2\?other=1$"), timeout=SOON)
    harmless(watched)
