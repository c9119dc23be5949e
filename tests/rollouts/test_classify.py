from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from openclaw_rl.config import SessionAwareness
from openclaw_rl.rollouts.classification.classify import MAIN, SIDE, UNKNOWN, Classifier
from openclaw_rl.v1.turn_pb2 import ChatMessage, ContentPart, Turn

PATTERNS = SessionAwareness(trainable_patterns=[".*main_response.*", ".*user_correction.*"],
                            auxiliary_patterns=[".*memory.*", ".*ping.*"])


def turn(text: str = "hello", role: str = "user", **fields: Any) -> Turn:
    return Turn(**{"turn_id": "t1", "api": "chat.completions", "messages": [ChatMessage(role=role, content=text)],
                   **fields})


@pytest.mark.parametrize(("given", "turn_class", "rule"), [
    (turn(declared_type="main"), MAIN, "declared type main"),
    (turn(declared_type=" Side "), SIDE, "declared type side"),
    (turn("save to memory", declared_type="main"), MAIN, "declared type main"),
    (turn(declared_type="memory_flush"), SIDE, "auxiliary pattern '.*memory.*' in the declared type"),
    (turn("ping", declared_type="main_response"), MAIN, "trainable pattern '.*main_response.*' in the declared type"),
    (turn("memory", metadata={"kind": "user_correction"}), MAIN,
     "trainable pattern '.*user_correction.*' in the metadata 'kind'"),
    (turn("please save this\nto memory now"), SIDE, "auxiliary pattern '.*memory.*' in the last message"),
    (turn("", messages=[ChatMessage(role="user", parts=[ContentPart(text="the memory")])]), SIDE,
     "auxiliary pattern '.*memory.*' in the last message"),
    (turn(declared_type="whatever"), MAIN, "the last message is of role user"),
    (turn("result", role="tool"), MAIN, "the last message is of role tool"),
    (turn("I am", role="assistant"), UNKNOWN, "the last message is of role assistant"),
    (turn(api="completions"), UNKNOWN, "completions has no conversation"),
    (turn(api="grpc.generate", messages=[]), UNKNOWN, "grpc.generate has no conversation"),
    (turn(messages=[]), UNKNOWN, "there are no messages"),
])
def test_the_first_rule_that_applies_decides(given: Turn, turn_class: int, rule: str) -> None:
    result = Classifier(PATTERNS).classify(given)
    assert (result.turn_class, result.rule) == (turn_class, rule)


def test_session_awareness_off_makes_untyped_turns_main() -> None:
    classifier = Classifier(PATTERNS.model_copy(update={"enabled": False}))
    assert classifier.classify(turn("memory")).turn_class == MAIN
    assert classifier.classify(turn(messages=[])).turn_class == MAIN
    assert classifier.classify(turn(declared_type="side")).turn_class == SIDE


def test_a_catastrophic_pattern_does_not_stall_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    classifier = Classifier(SessionAwareness(auxiliary_patterns=["(a|aa)+$", "never"]))
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING):
        results = [classifier.classify(turn("a" * 60 + "b")) for _ in range(3)]
    assert time.monotonic() - begin < 1
    assert {result.turn_class for result in results} == {UNKNOWN}
    assert results[0].rule == "auxiliary pattern '(a|aa)+$' took too long"
    assert len(caplog.records) == 1
