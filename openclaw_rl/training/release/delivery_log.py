"""Log of what further policy servers did with each version, kept in the trainer's state."""

from __future__ import annotations

import json
from typing import Any

from openclaw_rl.training.tables.state import StateTable

_KEEP = 200  # versions remembered of each policy server


class DeliveryLog:
    """One policy server's; see weights.transfer.replica.History.

    Args:
        state: the trainer's single values.
        address: of the policy server, HOST:PORT.
    """

    def __init__(self, state: StateTable, address: str) -> None:
        self._state = state
        self._name = f"deliveries:{address}"
        try:
            data: Any = json.loads(state.get(self._name) or "{}")
            self._activated = {int(version): float(at) for version, at in data.get("activated", {}).items()}
            self._refused = {int(version): str(reason) for version, reason in data.get("refused", {}).items()}
        except (ValueError, TypeError, AttributeError):  # edited by hand: what it says matters to readers only
            self._activated, self._refused = {}, {}

    def activated(self, version: int, at: float) -> None:
        """Note that a version answers since `at`, seconds since the epoch."""
        if version not in self._activated or version in self._refused:
            self._activated.setdefault(version, at)
            self._refused.pop(version, None)
            self._write()

    def refused(self, version: int, reason: str) -> None:
        """Note why a version is not taken."""
        if self._refused.get(version) != reason:
            self._refused[version] = reason
            self._write()

    def activated_at(self, version: int) -> float | None:
        """Return since when a version answered, seconds since the epoch; None: it never did."""
        return self._activated.get(version)

    def reason(self, version: int) -> str:
        """Return why a version is not taken; empty when it is."""
        return self._refused.get(version, "")

    def _write(self) -> None:
        for kept in (self._activated, self._refused):
            for version in sorted(kept)[:-_KEEP]:
                del kept[version]
        self._state.set(self._name, json.dumps({"activated": self._activated, "refused": self._refused}))
