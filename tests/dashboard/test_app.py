"""The application around the pages."""

from __future__ import annotations

import logging

from openclaw_rl.dashboard.app import _inert


def test_what_a_browser_lets_it_log_does_nothing_to_the_terminal() -> None:
    record = logging.LogRecord("nicegui", logging.ERROR, "", 1, "%s \x1b]0;title\x07\n2026 INFO forged", ("x",), None)
    assert _inert(record)
    assert record.getMessage().isprintable()
    assert "\x1b" not in record.getMessage()
