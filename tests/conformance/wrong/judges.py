"""All wrong judges, by name."""

from __future__ import annotations

from tests.conformance.wrong import judges_component, judges_mesh, judges_onward, judges_ring  # noqa: F401
from tests.conformance.wrong.fault import FAULTS

__all__ = ["FAULTS"]
