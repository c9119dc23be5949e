"""Housekeeping requests are told from people's, on requests that were written before the signals were weighed.

First measured, before anything was changed because of them: 57 of 62 requests of frameworks found, 1 of 77 of people
taken for one. A second set, written then and measured once: 23 of 30 found, none of 38 taken. What was missing in both
is in the patterns now, so that today's figures are a guard, no measurement.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path

import pytest

from openclaw_rl.rollouts.classification.housekeeping import SessionContext, weigh
from openclaw_rl.rollouts.classification.housekeeping_patterns import TASK_WORDS, TASKS
from openclaw_rl.v1.turn_pb2 import TURN_CLASS_MAIN, TURN_CLASS_SIDE, TURN_CLASS_UNKNOWN, ChatMessage, Turn
from tests.rollouts.harness import Harness, turn
from tests.rollouts.shapes import CONVERSATION, MAIN_SYSTEM, Request, requests


def classes(tmp_path: Path, name: str) -> Counter[int]:
    """Classes that a session tracker gives to the requests, each beside a conversation of its own."""
    found: Counter[int] = Counter()
    talk = [ChatMessage(role=role, content=text) for role, text in CONVERSATION]
    system = ChatMessage(role="system", content=MAIN_SYSTEM)
    harness = Harness(tmp_path / name)
    for number, request in enumerate(requests(name)):
        given = request.turn(number)
        given.session_id = f"s{number}"
        if request.where != "fresh":
            harness.tell(turn(f"a{number}", [system, talk[0]], talk[1], session_id=given.session_id),
                      turn(f"b{number}", [system, *talk[:3]], talk[3], session_id=given.session_id))
        harness.tell(given)
        found[harness.turns()[given.turn_id].turn_class] += 1
        harness.tracker.end(given.session_id)
    harness.store.close()
    return found


@pytest.mark.parametrize(("name", "recall"), [("framework_requests", 0.95), ("second_framework_requests", 0.9)])
def test_requests_of_frameworks_are_side_turns(tmp_path: Path, name: str, recall: float) -> None:
    found = classes(tmp_path, name)
    assert found[TURN_CLASS_SIDE] >= recall * found.total(), found


@pytest.mark.parametrize("name", ["people_requests", "second_people_requests"])
def test_requests_of_people_are_main_turns(tmp_path: Path, name: str) -> None:
    found = classes(tmp_path, name)
    assert found[TURN_CLASS_SIDE] == 0, found
    assert found[TURN_CLASS_UNKNOWN] <= 0.03 * found.total(), found


def test_no_single_sign_is_enough() -> None:
    for text in ("Summarize this conversation.", "Output only JSON.", "User: hi\nAssistant: hello",
                 "Give this conversation a title.", "reply HEARTBEAT_OK"):
        evidence = weigh(Request(text, "fresh").turn(0), SessionContext())
        assert evidence is None or not (evidence.side or evidence.doubtful), str(evidence)


def test_no_task_is_passed_over_for_want_of_its_words() -> None:
    for name in ("framework_requests", "second_framework_requests"):
        for request in requests(name):
            for text in (request.text, request.system):
                if any(signal.pattern.search(text) for signal in TASKS.values()):
                    assert any(word in text.lower() for word in TASK_WORDS), text


def test_a_conversation_may_go_on_under_new_instructions() -> None:
    asked = Request("Summarize our conversation so far in 5 bullets. Output only the bullets.", "inside").turn(0)
    evidence = weigh(asked, SessionContext(continues=True, others=True, same_instructions=False))
    assert evidence is not None
    assert not evidence.side, str(evidence)


TITLE = "Generate a title for this conversation, at most 5 words. Output only the title.\n\nUser: hi\nAssistant: hello"


def side(**fields: object) -> Turn:
    return turn("t", [ChatMessage(role="user", content=TITLE)], "Greeting", **fields)


def test_the_reason_names_the_evidence(harness: Harness) -> None:
    harness.tell(side())
    summary = harness.turns()["t"]
    assert (summary.turn_class, harness.states()["t"]) == (TURN_CLASS_SIDE, "NOT_TRAINABLE")
    assert summary.class_reason == (
        "housekeeping: title (1.25: asks to title the conversation, quotes a conversation, demands nothing but the "
        "result, limits the length)")


def test_debug_shows_all_evidence_with_its_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(tmp_path, debug=True)
    with caplog.at_level(logging.INFO):
        harness.tell(side(), turn("m", [ChatMessage(role="user", content="Summarize our conversation for me")], "ok"))
    harness.store.close()
    assert ("turn t of session s is SIDE: housekeeping: title; signs of housekeeping 1.25: asks to title the "
            "conversation +0.50, quotes a conversation +0.35, demands nothing but the result +0.25, limits the length "
            "+0.15") in caplog.messages
    assert any(line.startswith("turn m of session s is MAIN: the last message is of role user; signs of housekeeping")
               and "speaks of the one who asks -0.40" in line for line in caplog.messages)


@pytest.mark.parametrize(("fields", "turn_class"), [
    ({"declared_type": "main"}, TURN_CLASS_MAIN), ({"declared_type": "chat"}, TURN_CLASS_MAIN),
    ({"metadata": {"kind": "wanted"}}, TURN_CLASS_MAIN), ({}, TURN_CLASS_SIDE)])
def test_declared_types_and_patterns_come_first(tmp_path: Path, fields: dict[str, object], turn_class: int) -> None:
    harness = Harness(tmp_path, trainable_patterns=["wanted"])
    harness.tell(side(**fields))
    assert harness.turns()["t"].turn_class == turn_class
    harness.store.close()


def test_hostile_texts_take_no_long_time() -> None:
    texts = ["a " * 50_000, "title " * 9000, "### x\n" * 9000, "\n" * 90_000, "<chat>" * 9000, "user:\n" * 9000,
             '[{"role": "user"' * 5000, "previous summary:\n" * 3000, "conversation title " * 3000, "用户可能" * 9000]
    begin = time.monotonic()
    for text in texts:
        messages = [ChatMessage(role="system", content=text), ChatMessage(role="user", content=text)]
        weigh(Turn(messages=messages), SessionContext())
    assert time.monotonic() - begin < 1.0 * len(texts)
