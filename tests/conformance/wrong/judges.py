"""All wrong judges, by name."""

from __future__ import annotations

from . import judges_component, judges_onward, judges_ring  # noqa: F401
from .fault import FAULTS

__all__ = ["FAULTS"]
