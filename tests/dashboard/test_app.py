"""The application around the pages."""

from __future__ import annotations

import asyncio
import logging
import socket

import httpx
import pytest

from openclaw_rl.config import Config
from openclaw_rl.dashboard.app import _inert, make_app
from openclaw_rl.dashboard.pages import Page
from openclaw_rl.dashboard.server import Listener, build
from openclaw_rl.runtime.home import Home


def test_what_a_browser_lets_it_log_does_nothing_to_the_terminal() -> None:
    record = logging.LogRecord("nicegui", logging.ERROR, "", 1, "%s \x1b]0;title\x07\n2026 INFO forged", ("x",), None)
    assert _inert(record)
    assert record.getMessage().isprintable()
    assert "\x1b" not in record.getMessage()


async def test_a_page_that_cannot_be_made_says_so(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("the secret of the mesh")

    monkeypatch.setattr("openclaw_rl.dashboard.app.all_pages", lambda: [Page("/broken", "logs", broken)])
    monkeypatch.setattr("nicegui.core.loop", asyncio.get_running_loop())  # as it is once the dashboard serves
    with socket.socket() as bound:
        listener = Listener(bound, "127.0.0.1", 30080, None)
        dashboard = build(Config(), home, listener)
    guard = make_app(dashboard, port=30080)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard, client=("127.0.0.1", 5)),
                                 base_url="http://127.0.0.1:30080", trust_env=False) as http:
        answer = await http.get("/broken")
    dashboard.history.close()
    assert answer.status_code == 200 and "This page could not be rendered" in answer.text
    assert "Traceback" not in answer.text and "secret" not in answer.text
