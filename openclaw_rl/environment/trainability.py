"""Notices that requests come and none of them is there to learn from."""

from __future__ import annotations

import logging
from collections import Counter

from openclaw_rl.environment.classify import MAIN, Classified

log = logging.getLogger(__name__)

#: Requests without a trainable one among them that are worth a warning.
ENOUGH = 20


class Trainability:
    """Counts requests by the rule that classed them, until the first trainable one."""

    def __init__(self) -> None:
        self._rules: Counter[str] = Counter()
        self._trainable = False
        self._warned = False

    def saw(self, classified: Classified) -> None:
        """A request was classed; says so in the log, once, when it is time for it."""
        if self._trainable:
            return
        if classified.turn_class == MAIN:
            self._trainable = True
            self._rules.clear()
            return
        self._rules[classified.rule] += 1
        if not self._warned and (problem := self.problem):
            self._warned = True
            log.warning("%s", problem)

    @property
    def problem(self) -> str:
        """What an operator should know; empty when all is well."""
        seen = self._rules.total()
        if seen < ENOUGH:
            return ""
        rules = ", ".join(f"{count} by rule '{rule}'" for rule, count in self._rules.most_common(3))
        more = f", {len(self._rules) - 3} more rules" if len(self._rules) > 3 else ""
        return (f"none of the {seen} requests since the start is trainable ({rules}{more}): check session_awareness "
                "in the configuration, and the X-Turn-Type that the client sends")
