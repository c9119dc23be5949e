"""The stand-ins for the mesh."""

from __future__ import annotations

from tests.dashboard.conftest import home, mesh  # noqa: F401
