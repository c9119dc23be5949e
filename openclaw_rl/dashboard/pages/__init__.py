"""The dashboard's pages. A module here with `PAGES: list[Page]` is a part of it: add its name to MODULES."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        path: such as "/turns" or "/turns/{turn_id}".
        key: of its title, `nav.KEY` in locale/.
        build: makes its content inside the frame; gets the path's parameters by keyword.
        icon: of Material Icons, shown in the navigation.
        nav: it stands in the navigation. One that doesn't shows the one whose key it has there.
        words: it tells what users said, so on another host than ours it needs the admin key.
    """

    path: str
    key: str
    build: Callable[..., Awaitable[None] | None]
    icon: str = ""
    nav: bool = True
    words: bool = False


#: In the order of the navigation.
MODULES = ("overview", "turns", "turn", "sessions", "learning", "versions", "version", "environments", "lease",
           "episodes", "logs")


def all_pages() -> list[Page]:
    """Every page, in the order of the navigation."""
    found: list[Page] = []
    for name in MODULES:
        module: Any = importlib.import_module(f"{__name__}.{name}")
        found += module.PAGES
    return found
