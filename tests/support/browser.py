"""A real browser, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.required import left_out

CHROMIUM = "/usr/bin/chromium"
#: Names under .test are this machine, so that pages can be of sites of their own.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP *.test 127.0.0.1"]


@pytest.fixture(scope="module")  # Playwright's event loop runs until it ends, and no other can in this thread
def chromium() -> Iterator[Any]:
    """A running Chromium; without one its tests are left out, or fail when nothing may be."""
    if not Path(CHROMIUM).exists():
        left_out("chromium is missing; tools/outside-tools installs it")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)  # the machine may be busy with other things
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
