"""Tells systemd when a component is ready and when it ends: units of Type=notify (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state, such as READY=1 or STOPPING=1. Without systemd (NOTIFY_SOCKET is unset) nothing happens."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
    except OSError as error:
        log.warning("systemd was not told %s: %s", state, error)
