"""A dashboard of stand-ins with data, for tests with a browser: one for the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from openclaw_rl.runtime.home import Home
from tests.dashboard.pages_mesh import PagesMesh
from tests.dashboard.rig import Served, Watched, serving

#: Milliseconds for what a loaded machine shows.
SOON = 20_000


@dataclass
class Panel:
    """The stand-ins and the dashboard that shows them."""

    mesh: PagesMesh
    served: Served

    def open(self, browse: Callable[..., Watched], path: str, *, admin: bool = False, **how: Any) -> Watched:
        """A page in a browser of its own; `admin`: signed in by the start link."""
        watched = browse(f"{self.served.url}/login#{self.served.token}" if admin else self.served.url + path, **how)
        if admin:
            watched.page.wait_for_url(f"{self.served.url}/", timeout=SOON)
            watched.page.goto(self.served.url + path)
        return watched


@contextmanager
def panel(folder: Path, turns: int = 70) -> Iterator[Panel]:
    """Start both."""
    with PagesMesh(Home(folder / "home").create(), turns) as mesh:
        mesh.start()
        with serving(mesh.home) as served:
            yield Panel(mesh, served)


def harmless(watched: Watched) -> None:
    """Nothing of what the stand-ins say ran, nothing went wrong, and the page fits its window."""
    page: Page = watched.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img[onerror], main svg[onload], main a[href^='javascript']").count() == 0
    assert watched.sideways() <= 0
    assert watched.problems == []
