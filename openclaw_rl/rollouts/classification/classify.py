"""Classification of turns as main, side or unknown: by declaration, then by pattern, then by inference."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import regex

from openclaw_rl.config import SessionAwareness
from openclaw_rl.rollouts.classification.housekeeping import Evidence, SessionContext, weigh
from openclaw_rl.sessions.dialects import restore
from openclaw_rl.sessions.fingerprint import text_of
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.turn_pb2 import TurnClass

logger = logging.getLogger(__name__)

MAIN, SIDE, UNKNOWN = turn_pb2.TURN_CLASS_MAIN, turn_pb2.TURN_CLASS_SIDE, turn_pb2.TURN_CLASS_UNKNOWN
_DECLARED = {"main": MAIN, "side": SIDE}
_RAW_APIS = frozenset({"completions", "grpc.generate"})
#: Strongest signs named in a class's reason.
_SIGNS_NAMED = 4
#: Seconds for all patterns on one turn.
SEARCH_BUDGET = 0.05


@dataclass(frozen=True, slots=True)
class Classification:
    """A turn's class, and the rule that decided it, for a person."""

    turn_class: TurnClass.ValueType
    rule: str
    signs: Evidence | None = None  #: of housekeeping, if any were found

    @property
    def reason(self) -> str:
        """The rule, with the strongest signs if it is about signs."""
        if self.signs is None or self.turn_class == MAIN:
            return self.rule
        strongest = sorted(self.signs.signs, key=lambda sign: -sign[1])[:_SIGNS_NAMED]
        return f"{self.rule} ({self.signs.total:.2f}: {', '.join(name for name, _ in strongest)})"

    @property
    def evidence(self) -> str:
        """The rule with all signs and their weights, even if they were not enough."""
        return self.rule if self.signs is None else f"{self.rule}; signs of housekeeping {self.signs}"


class Classifier:
    """Classifies turns by `session_awareness` of the configuration.

    The first of these that applies decides: the declared type `main` or `side`; a trainable, then an auxiliary
    pattern found in any other declared type, in a metadata value or in the text of the last message; evidence of a
    framework's own request (see housekeeping.py); inference.
    A turn on which the patterns take longer than `SEARCH_BUDGET` is `unknown`: what may be a side turn is not
    trained on.
    """

    def __init__(self, config: SessionAwareness) -> None:
        self._enabled = config.enabled
        lists = [(MAIN, "trainable", config.trainable_patterns), (SIDE, "auxiliary", config.auxiliary_patterns)]
        self._patterns = [(turn_class, f"{word} pattern {text!r}", regex.compile(text))
                          for turn_class, word, texts in lists for text in texts] if config.enabled else []
        self._slow: set[str] = set()

    def classify(self, turn: turn_pb2.Turn,
                 session_context: Callable[[], SessionContext] = SessionContext) -> Classification:
        """Classify `turn`.

        Args:
            session_context: what the session knows; called only if nothing simpler decides.
        """
        declared = turn.declared_type.strip()
        explicit = _DECLARED.get(declared.lower())
        if explicit is not None:
            return Classification(explicit, f"declared type {declared.lower()}")
        if not self._enabled:
            return Classification(MAIN, "session_awareness is off")
        return self._by_pattern(turn) or _infer(turn, session_context)

    def _by_pattern(self, turn: turn_pb2.Turn) -> Classification | None:
        deadline = time.monotonic() + SEARCH_BUDGET
        for turn_class, name, pattern in self._patterns:
            for place, text in _places(turn):
                try:
                    found = pattern.search(text, timeout=max(deadline - time.monotonic(), 0.001))
                except TimeoutError:
                    if name not in self._slow:
                        self._slow.add(name)
                        logger.warning("the %s takes longer than %g s on the %s of turn %s (%d characters); "
                                       "simplify it: such turns are not trained on",
                                       name, SEARCH_BUDGET, place, turn.turn_id, len(text))
                    return Classification(UNKNOWN, f"{name} took too long")
                if found:
                    return Classification(turn_class, f"{name} in the {place}")
        return None


def _places(turn: turn_pb2.Turn) -> Iterator[tuple[str, str]]:
    if turn.declared_type:
        yield "declared type", turn.declared_type
    for key, value in turn.metadata.items():
        yield f"metadata {key!r}", value
    if turn.messages:
        yield "last message", text_of(turn.messages[-1])


def _infer(turn: turn_pb2.Turn, session_context: Callable[[], SessionContext]) -> Classification:
    if turn.api in _RAW_APIS:
        return Classification(UNKNOWN, f"{turn.api} has no conversation")
    if not turn.messages:
        return Classification(UNKNOWN, "there are no messages")
    role = restore(turn.messages[-1:])[-1].role
    signs = weigh(turn, session_context()) if role == "user" and not turn.declared_type else None
    if signs is not None and signs.side:
        return Classification(SIDE, f"housekeeping: {signs.task}", signs)
    if signs is not None and signs.doubtful:
        return Classification(UNKNOWN, f"perhaps housekeeping: {signs.task}", signs)
    if role in ("user", "tool"):
        return Classification(MAIN, f"the last message is of role {role}", signs)
    return Classification(UNKNOWN, f"the last message is of role {role or 'none'}")
