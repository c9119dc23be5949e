"""Ports for servers that others have to know before they start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
