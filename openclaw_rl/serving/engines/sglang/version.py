"""Policy versions as SGLang's `weight_version`, a string."""

from __future__ import annotations


def tag(version: int) -> str:
    """Format a version."""
    return str(version)


def parse(text: object) -> int:
    """Parse a version; -1 for anything else, such as SGLang's `default`."""
    return int(text) if isinstance(text, str) and text.isdecimal() else -1
