"""Detection of traffic without any trainable request."""

from __future__ import annotations

import logging
from collections import Counter

from openclaw_rl.rollouts.classification.classify import MAIN, Classification
from openclaw_rl.v1.turn_pb2 import TurnClass

logger = logging.getLogger(__name__)

#: Consecutive untrainable requests that are worth a warning: after the start, when nothing shows yet that the
#: configuration fits the client ...
ENOUGH = 20
#: ... and later, when a framework may be busy with its own affairs for a while.
ENOUGH_LATER = 100


class Trainability:
    """Counts requests by class and rule since the last trainable one."""

    def __init__(self) -> None:
        self._rules: Counter[tuple[TurnClass.ValueType, str]] = Counter()
        self._enough = ENOUGH
        self._warned = False

    def record(self, classified: Classification) -> None:
        """Count a request; logs the problem once when it arises."""
        if classified.turn_class == MAIN:
            self._enough, self._warned = ENOUGH_LATER, False
            self._rules.clear()
            return
        self._rules[classified.turn_class, classified.rule] += 1
        if not self._warned and (problem := self.problem):
            self._warned = True
            logger.warning("%s", problem)

    @property
    def problem(self) -> str:
        """Message for the operator; empty if all is well."""
        seen = self._rules.total()
        if seen < self._enough:
            return ""
        rules = ", ".join(f"{count} {TurnClass.Name(of).removeprefix('TURN_CLASS_').lower()} by rule '{rule}'"
                          for (of, rule), count in self._rules.most_common(3))
        more = f", {len(self._rules) - 3} more rules" if len(self._rules) > 3 else ""
        since = "the start" if self._enough == ENOUGH else "the last trainable one"
        return (f"none of the {seen} requests since {since} is trainable ({rules}{more}): check session_awareness "
                "in the configuration, and the X-Turn-Type that the client sends")
