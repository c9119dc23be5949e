"""Tasks and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Action:
    """An action in an environment: a call of one of its functions."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A goal in words, a setup and a check."""

    id: str  #: unique among those of its environment: letters, digits, `-`, `_` and `.`
    type_name: str  #: of its environment type
    goal: str
    split: Literal["train", "held_out"] = "train"
    tags: Sequence[str] = ()
    max_steps: int | None = None
    setup: Mapping[str, Any] = field(default_factory=dict)  #: follows the environment type's own schema
    check: Mapping[str, Any] = field(default_factory=dict)  #: follows the environment type's own schema
    solution: Sequence[Action] = ()  #: actions that reach the goal; for tests, never shown to a policy
    source: str = ""  #: its file
    problem: str = ""  #: why it can't be used; empty if it can
