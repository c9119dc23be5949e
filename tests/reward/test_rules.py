"""The rules on labelled next states, and one by one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from openclaw_rl.config import PrmJudgeConfig
from openclaw_rl.reward.judges.rules import RulesJudge, make
from openclaw_rl.reward.judges.rules.hints import LIMIT
from openclaw_rl.reward.judges.rules.words import read
from openclaw_rl.reward.judges.text import asks_the_same, has_cjk
from openclaw_rl.v1 import turn_pb2
from tests.reward.factory import feedback, message, transition
from tests.reward.held_out import HELD_OUT
from tests.reward.next_states import CASES, HINTS, A, B, C, D

Case = tuple[str, str, str, int]


def figures(cases: list[Case]) -> dict[str, float]:
    """Accuracy; of the scores +1 and -1 the share that is right; of the labels +1 and -1 the share that was found."""
    pairs = [(label, read(said, request, answer).score) for request, answer, said, label in cases]
    result = {"cases": len(pairs), "accuracy": sum(a == b for a, b in pairs) / len(pairs),
              "opposite": sum(a * b == -1 for a, b in pairs)}
    for score in (1, -1):
        given = [label for label, found in pairs if found == score]
        wanted = [found for label, found in pairs if label == score]
        result[f"precision{score:+d}"] = sum(label == score for label in given) / len(given)
        result[f"recall{score:+d}"] = sum(found == score for found in wanted) / len(wanted)
    return result


@pytest.mark.parametrize(("request_", "answer", "said", "score"), CASES, ids=lambda value: str(value)[:40])
def test_labelled_next_states(request_: str, answer: str, said: str, score: int) -> None:
    evidence = read(said, request_, answer)
    assert evidence.score == score, evidence
    assert evidence.rationale


def test_held_out_next_states(record_property: Callable[[str, object], None]) -> None:
    """What the rules were not tuned on: they may miss, but what they do say must be right."""
    found = figures(HELD_OUT)
    record_property("held_out", found)
    print(found)
    assert found["accuracy"] >= 0.8, found
    assert found["precision-1"] >= 0.95 and found["precision+1"] >= 0.9, found
    assert found["opposite"] <= 2, found


@pytest.mark.parametrize(("said", "hint"), HINTS)
def test_hints_are_the_users_words(said: str, hint: str) -> None:
    assert read(said, C if has_cjk(said) else A, D if has_cjk(said) else B).hint == hint


def test_a_hint_is_bounded() -> None:
    said = " ".join(f"Don't use the word {chr(97 + i) * 20}." for i in range(26))
    assert 0 < len(read(said, A, B).hint) <= LIMIT


def test_long_and_hostile_messages_are_quick() -> None:
    for said in ("还是" * 100_000, "a," * 100_000, "写得" * 600, "so " * 50_000, '"' * 50_000, "so very " * 30 + "x",
                 "我觉得" * 400, "no " * 50_000, "not " * 300, "\n> " * 40_000):
        started = time.perf_counter()
        read(said, said, said)
        assert time.perf_counter() - started < 0.5, said[:20]


@pytest.mark.parametrize(("before", "now", "same"), [
    ("What is the capital of France?", "what's the capital of France", True),
    ("What is the capital of France?", "What is the capital of Spain?", False),
    ("Convert a string to an int", "Convert an int to a string", False),
    ("怎么用Python读取文件？", "怎样用python读取文件", True),
    ("北京到上海多远", "上海到北京多远", False),
    ("hi", "hi", False),
    ("", "", False),
])
def test_the_same_question(before: str, now: str, same: bool) -> None:
    assert asks_the_same(before, now) is same


# The whole judge.

def vote(**fields: object) -> turn_pb2.Vote:
    return RulesJudge().vote_now(transition(**fields))  # type: ignore[arg-type]


async def test_make_gives_the_judge() -> None:
    found = await make(PrmJudgeConfig()).vote(transition("thanks"))
    assert (found.judge, found.score, found.certain) == ("rules", 1, False)


@pytest.mark.parametrize(("kind", "words"), [
    (turn_pb2.NEXT_STATE_KIND_SESSION_ENDED, "the session ended without a word"),
    (turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT, "nothing came before the session timed out"),
])
def test_an_end_without_words_is_neutral(kind: int, words: str) -> None:
    found = vote(said="", kind=kind)
    assert (found.score, found.rationale) == (0, words)


@pytest.mark.parametrize(("given", "score", "hint"), [
    ([feedback(1.0)], 1, ""),
    ([feedback(-1.0)], -1, ""),
    ([feedback(0.1)], 0, ""),
    ([feedback(1.0), feedback(-0.5)], -1, ""),
    ([feedback(-1.0, "too long, answer in one sentence")], -1, "Answer in one sentence."),
    ([feedback(-1.0, "please mention the year")], -1, "Mention the year."),
    ([feedback(-1.0, "thanks anyway")], -1, ""),
    ([feedback(1.0, "great")], 1, ""),
])
def test_a_score_is_certain(given: list[turn_pb2.Feedback], score: int, hint: str) -> None:
    found = vote(said="", feedback=given, kind=turn_pb2.NEXT_STATE_KIND_FEEDBACK)
    assert (found.score, found.hint, found.certain) == (score, hint, True)


def test_a_comment_alone_is_read_as_words() -> None:
    found = vote(said="", feedback=[feedback(None, "太长了")], kind=turn_pb2.NEXT_STATE_KIND_FEEDBACK)
    assert (found.score, found.hint, found.certain) == (-1, "回答得更简短。", False)


def test_feedback_outranks_words() -> None:
    assert vote(said="that's wrong", feedback=[feedback(1.0)]).score == 1


def test_a_certain_tool_error_outranks_thanks_and_keeps_the_users_hint() -> None:
    failed = message("tool", '{"exit_code": 2, "stderr": "boom"}')
    assert vote(messages=[failed, message("user", "thanks")]).score == -1
    assert vote(messages=[failed, message("user", "use Python instead")]).hint == "Use Python instead."


def test_odd_json_of_a_tool() -> None:
    half = vote(messages=[message("tool", r'{"exit_code": 2, "stderr": "no \ud800"}')])
    assert half.score == -1 and "no \ufffd" in half.rationale
    assert vote(messages=[message("tool", '{"a":' * 30_000), message("user", "thanks")]).score == 1


def test_words_outrank_the_success_of_a_tool() -> None:
    ok = message("tool", '{"exit_code": 0}')
    assert vote(messages=[ok, message("user", "that's wrong")]).score == -1
    assert vote(messages=[ok]).score == 1


def test_the_agents_time_stamp_is_left_out() -> None:
    assert vote(said="[Mon 2026-03-16 15:30 GMT+1] thanks").score == 1


def test_parts_are_read() -> None:
    said = turn_pb2.ChatMessage(role="user", parts=[turn_pb2.ContentPart(text="that's wrong"),
                                                    turn_pb2.ContentPart(image_url="data:,x")])
    assert vote(messages=[said]).score == -1


def test_no_thumb_but_garbage_is_survived() -> None:
    assert RulesJudge().vote_now(turn_pb2.Transition()).score == 0
