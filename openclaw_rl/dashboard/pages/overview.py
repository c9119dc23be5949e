"""The first screen."""

from __future__ import annotations

from nicegui import ui

from ..context import dash
from ..layout import heading, tag
from . import Page


async def build() -> None:
    """Make the page."""
    heading("Overview")
    labels = {seen.name: tag("p") for seen in dash().mesh.all()}

    def show() -> None:
        for seen in dash().mesh.all():
            labels[seen.name].text = f"{seen.name} {seen.state}"

    show()
    ui.timer(1.0, show)


PAGES = [Page("/", "overview", build, "dashboard")]
