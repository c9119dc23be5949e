"""All wrong policy servers, by name."""

from __future__ import annotations

from . import chat_faults, stream_faults  # noqa: F401
from .fault import FAULTS, Fixed, Tokens

__all__ = ["FAULTS", "Fixed", "Tokens"]
