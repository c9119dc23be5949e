"""All wrong policy servers, by name."""

from __future__ import annotations

from tests.conformance.wrong_weights import chat_faults, stream_faults  # noqa: F401
from tests.conformance.wrong_weights.fault import FAULTS, Fixed, Tokens

__all__ = ["FAULTS", "Fixed", "Tokens"]
