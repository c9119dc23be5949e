"""Consequences of events that apply only once their transaction is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from openclaw_rl.rollouts.classification.classify import Classification


@dataclass
class Effects:
    """Collected while events are handled, applied by the tracker after the commit."""

    counts: Counter[str] = field(default_factory=Counter)
    alive: dict[str, bool] = field(default_factory=dict)  #: by session: active (else ended); the last entry counts
    classifications: list[Classification] = field(default_factory=list)
    journal: list[Callable[[], None]] = field(default_factory=list)
    version: int = 0  #: the newest that a turn came from
