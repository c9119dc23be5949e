"""Random traffic: retries, choices, branches, side turns, feedback, ends, resends, restarts, any order of arrival."""

from __future__ import annotations

import random

import pytest

from openclaw_rl.v1.turn_pb2 import NEXT_STATE_KIND_CONTINUED, ChatMessage, Feedback, SessionEnd, Turn
from tests.rollouts.harness import Harness, answer, turn, user


def traffic(rng: random.Random) -> tuple[list[Turn | Feedback | SessionEnd], dict[str, str]]:
    """Events in the order in which they happened, and the request that each main turn answers."""
    events: list[Turn | Feedback | SessionEnd] = []
    requests: dict[str, str] = {}
    count = 0
    for session in ("a", "b"):
        branches: list[list[ChatMessage]] = [[]]
        for step in range(12):
            history = rng.choice(branches)
            messages = [*history, user(f"{session} asks {step}")]
            if rng.random() < 0.2:
                events.append(turn(f"side{count}", [*history, user("make a title")], "A title", session_id=session,
                                   declared_type="side"))
                count += 1
            attempts = rng.choice([1, 1, 1, 2, 3])
            choices = rng.choice([1, 1, 2])
            answers = []
            for _ in range(attempts):
                first = turn(f"turn{count}", messages, "", session_id=session)
                for choice in range(choices):
                    made = Turn()
                    made.CopyFrom(first)
                    made.turn_id, made.choice_index = f"turn{count}", choice
                    made.response.CopyFrom(answer(f"answer {rng.choice('xyz')} of {step}"))
                    requests[made.turn_id] = f"{session}{step}"
                    answers.append(made.response)
                    events.append(made)
                    count += 1
            if rng.random() < 0.2:
                events.append(Feedback(feedback_id=f"f{count}", session_id=session, score=1,
                                       turn_id=rng.choice([events[-1].turn_id, ""])))
            if rng.random() < 0.1:
                events.append(SessionEnd(event_id=f"e{count}", session_id=session))
            branches.append([*messages, rng.choice(answers)])
            if rng.random() < 0.3:
                branches.remove(history) if len(branches) > 1 else None
    return events, requests


@pytest.mark.parametrize("seed", range(12))
def test_every_request_reaches_the_judge_once(harness: Harness, seed: int) -> None:
    rng = random.Random(seed)
    events, requests = traffic(rng)
    if seed % 2:  # some arrive a little early or late
        events = [event for _, event in sorted(enumerate(events), key=lambda pair: pair[0] + rng.uniform(0, 6))]
    puts: list[str] = []
    watch(harness, puts)
    position = 0
    while position < len(events):
        size = rng.choice([1, 2, 5])
        harness.tell(*events[max(0, position - rng.choice([0, 0, 3])):position + size])  # some come again
        position += size
        if rng.random() < 0.1:
            harness.restart()
            watch(harness, puts)
    harness.tracker.end("a")
    harness.tracker.end("b")
    assert len(puts) == len(set(puts)), "a turn was sent twice"
    answered = [requests[turn_id] for turn_id in puts]
    assert set(answered) == set(requests.values()), "a request was lost"
    assert not [summary for summary in harness.turns().values() if summary.state == 1], "a turn is still open"
    if seed % 2 == 0:
        repeated = {request for request in answered if answered.count(request) > 1}
        assert not repeated, "attempts at one request were judged apart"
    for turn_id, state in harness.sent().items():
        words = [message.content for message in state.messages]
        assert bool(words) == (state.kind == NEXT_STATE_KIND_CONTINUED), turn_id
        assert all("asks" in text for text in words), "a side turn's words are no next state"


def watch(harness: Harness, puts: list[str]) -> None:
    put = harness.outbox.put

    def noting(id: str, payload: bytes, db: object = None) -> None:
        puts.append(id)
        put(id, payload, db)  # type: ignore[arg-type]

    harness.outbox.put = noting  # type: ignore[method-assign]
