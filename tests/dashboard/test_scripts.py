"""A script in every text that the mesh tells: no page runs it, or makes an element of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from openclaw_rl.dashboard.pages import all_pages
from openclaw_rl.runtime.home import Home
from tests.dashboard.pages_mesh import PagesMesh, trace
from tests.dashboard.panel import SOON, Panel
from tests.dashboard.poison import SCRIPT, poison, poisoned_id
from tests.dashboard.rig import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Elements that only a text of the mesh could have made.
MADE = ("main script, main img[onerror], main img[src='x'], main svg[onload], main [onmouseover], main [onfocus], "
        "main a[href^='javascript'], main textarea ~ title")


@pytest.fixture
def shown(tmp_path: Any) -> Iterator[Panel]:
    mesh = PagesMesh(Home(tmp_path / "home").create())
    data: Any = mesh.data
    with mesh:
        for many in (data.turns, data.judgements, data.samples, data.leases):
            for message in many.values():
                poison(message)
        for message in (*data.feedback, *data.versions, *data.kinds, *data.episodes):
            poison(message)
        for name in ("turns", "judgements", "samples", "leases", "views"):
            setattr(data, name, {poisoned_id(key): value for key, value in getattr(data, name).items()})
        data.views = {key: (text + SCRIPT, image) for key, (text, image) in data.views.items()}
        data.log = [line + SCRIPT for line in data.log]
        data.journal = [f"{line}{SCRIPT}" for line in data.journal]
        for status in mesh.status.values():
            status.alarms.add(name="a", message="b")
            poison(status)
        mesh.start()
        trace(mesh.home, poisoned_id("bad"), 9)
        with serving(mesh.home) as served:
            mesh.tell("VERSION_REFUSED", SCRIPT, version=13)
            yield Panel(mesh, served)


def addresses() -> list[str]:
    """One of each page, and of those that show a thing one of each sort."""
    values = {"{turn_id:path}": ["bad", "t0", "t3"], "{session_id:path}": ["ses<i>", "ses0"],
              "{number}": ["1", "2", "3"], "{lease_id:path}": ["lease/1", "lease2", "lease3"]}
    found = []
    for page in all_pages():
        start, brace, rest = page.path.partition("{")
        found += [start + (value if brace + rest == "{number}" else quote(poisoned_id(value), safe=""))
                  for value in values[brace + rest]] if brace else [start]
    return [*found, f"/turns?text={quote(SCRIPT)}&class={quote(SCRIPT)}", f"/episodes?run={quote(SCRIPT)}",
            f"/turns/{quote(SCRIPT, safe='')}", f"/logs?component={quote(SCRIPT)}"]


def test_no_page_runs_what_the_mesh_tells(shown: Panel, browse: Any) -> None:
    watched = shown.open(browse, "/", admin=True)
    page = watched.page
    page.on("dialog", lambda dialog: watched.problems.append(f"dialog: {dialog.message}"))
    seen = 0
    for address in addresses():
        response = page.goto(shown.served.url + address)
        policy = response.headers["content-security-policy"]
        scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert "'unsafe-inline'" not in scripts and "'nonce-" in scripts
        page.locator("main .d-page, main").first.wait_for(timeout=SOON)
        page.wait_for_load_state("networkidle", timeout=SOON)
        for opener in page.locator("main summary, main .q-expansion-item__container > .q-item").all():
            opener.click(timeout=SOON)
        assert page.evaluate("window.hacked") is None, address
        assert page.locator(MADE).count() == 0, address
        assert "This page could not be rendered" not in page.content(), address
        seen += "window.hacked=1</script>" in page.locator("body").inner_text()
        assert watched.problems == [], (address, watched.problems)
    assert seen >= 10  # the texts were there to see
    assert watched.hosts == {shown.served.url.partition("//")[2]}
