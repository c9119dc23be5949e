"""Validation of the setups and checks of tasks, shared by several environment types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.rollouts.environments.arguments import short
from openclaw_rl.rollouts.environments.interface import BadTask


def shell_text(key: str, value: Any) -> str:
    """Validate shell text; returns it, empty for None.

    Raises:
        BadTask: it is no shell text.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value or not 0 < len(value) <= 100_000:
        raise BadTask(f"`{key}`: {short(value)} is not allowed: shell text of 1 to 100,000 characters")
    return value


def known_keys(name: str, values: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """Check for unknown keys.

    Raises:
        BadTask: there is one.
    """
    for key in values:
        if key not in allowed:
            there = ", ".join(f"`{word}`" for word in allowed)
            raise BadTask(f"`{name}`: {short(key)} is no key; there are {there}")
