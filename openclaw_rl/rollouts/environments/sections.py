"""What the set-ups and checks of several kinds' tasks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openclaw_rl.rollouts.environments.arguments import short
from openclaw_rl.rollouts.environments.interface import BadTask


def shell_text(key: str, value: Any) -> str:
    """The value of a key that is shell text; empty without one.

    Raises:
        BadTask: it is none.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value or not 0 < len(value) <= 100_000:
        raise BadTask(f"`{key}`: {short(value)} is not allowed: shell text of 1 to 100,000 characters")
    return value


def known_keys(name: str, values: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """Look for keys that nobody knows.

    Raises:
        BadTask: there is one.
    """
    for key in values:
        if key not in allowed:
            there = ", ".join(f"`{word}`" for word in allowed)
            raise BadTask(f"`{name}`: {short(key)} is no key; there are {there}")
