"""The command line with all its commands, which register themselves when they are imported."""

from __future__ import annotations

from openclaw_rl.cli import (
    backup,  # noqa: F401
    certs,  # noqa: F401
    chat,  # noqa: F401
    conformance,  # noqa: F401
    dashboard,  # noqa: F401
    distributed,  # noqa: F401
    docs,  # noqa: F401
    doctor,  # noqa: F401
    environments,  # noqa: F401
    episodes,  # noqa: F401
    forget,  # noqa: F401
    keys,  # noqa: F401
    logs,  # noqa: F401
    mesh,  # noqa: F401
    metrics,  # noqa: F401
    models,  # noqa: F401
    pin,  # noqa: F401
    set_aside,  # noqa: F401
    trace,  # noqa: F401
    training,  # noqa: F401
    turns,  # noqa: F401
    versions,  # noqa: F401
)
from openclaw_rl.cli.app import app

__all__ = ["app"]
