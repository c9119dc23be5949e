"""Notifications to systemd, for units of Type=notify (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Send a state, such as READY=1 or STOPPING=1. Does nothing without systemd (NOTIFY_SOCKET is unset)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
    except OSError as error:
        logger.warning("systemd was not told %s: %s", state, error)
