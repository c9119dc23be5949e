"""Votes, majority, hints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from openclaw_rl.reward.interface import VoteError
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.reward.panel import Panel, conclude, most_specific
from openclaw_rl.v1 import turn_pb2
from tests.reward.factory import feedback, transition


class Scripted:
    """Answers with the next of its votes, or raises it."""

    name = "scripted"

    def __init__(self, *answers: turn_pb2.Vote | BaseException | Callable[[], object]) -> None:
        self.answers = list(answers)

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, turn_pb2.Vote) else await answer()  # type: ignore[misc]


def vote(score: int, hint: str = "", *, certain: bool = False, error: str = "") -> turn_pb2.Vote:
    return turn_pb2.Vote(score=score, hint=hint, certain=certain, error=error)


@pytest.mark.parametrize(("scores", "score"), [
    ([1], 1), ([-1], -1), ([0], 0), ([1, 1, -1], 1), ([-1, -1, 0], -1), ([1, -1], 0), ([1, 0], 0), ([1, 0, -1], 0),
    ([1, 1, -1, -1, 0], 0), ([0, 0, 1], 0)])
def test_majority(scores: list[int], score: int) -> None:
    assert conclude("t", [vote(s) for s in scores]).score == score


def test_failed_votes_do_not_count() -> None:
    judgement = conclude("t", [vote(0, error="late"), vote(0, error="late"), vote(-1)])
    assert (judgement.score, judgement.failed, len(judgement.votes)) == (-1, False, 3)


def test_all_failed_is_failed() -> None:
    assert conclude("t", [vote(1, error="late"), vote(1, error="late")]).failed
    assert conclude("t", []).failed


def test_certain_outranks() -> None:
    judgement = conclude("t", [vote(1, "a"), vote(1, "b"), vote(1, "c"), vote(-1, "d", certain=True)])
    assert (judgement.score, judgement.hint) == (-1, "d")


@pytest.mark.parametrize(("hints", "best"), [
    ([], ""), (["", ""], ""), (["be brief", "answer in one sentence", "brief"], "answer in one sentence"),
    (["long long long", "be brief now"], "be brief now"), (["简短", "用一句话回答"], "用一句话回答"),
    (["be very brief", "be so brief"], "be so brief"), (["ab cd", "cd ab"], "ab cd")])
def test_the_most_specific_hint(hints: list[str], best: str) -> None:
    assert most_specific(hints) == best


def test_hints_of_the_minority_are_left_out() -> None:
    judgement = conclude("t", [vote(-1, "short"), vote(-1), vote(1, "a very long and specific hint")])
    assert judgement.hint == "short"


async def test_votes_are_asked_at_once() -> None:
    gate = asyncio.Barrier(3)

    async def together() -> turn_pb2.Vote:
        await gate.wait()  # Passes only when all three are there.
        return vote(1)

    outcome = await asyncio.wait_for(Panel(Scripted(together, together, together), 3, 5).decide(transition()), 5)
    assert outcome.judgement.score == 1 and len(outcome.judgement.votes) == 3


async def test_a_late_vote_has_failed() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    outcome = await Panel(Scripted(never, vote(-1)), 2, 0.05).decide(transition())
    assert sorted(v.error for v in outcome.judgement.votes) == [
        "", "no answer within 0.05 s (components.prm_judge.vote_timeout)"]
    assert outcome.judgement.score == -1


async def test_cancelling_cancels_the_votes() -> None:
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    task = asyncio.create_task(Panel(Scripted(slow), 1, 60).decide(transition()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


@pytest.mark.parametrize(("answer", "error"), [
    (VoteError("no score"), "no score"), (RuntimeError("bug"), "RuntimeError: bug"),
    (vote(5), "the judge returned the score 5; allowed are -1, 0 and +1")])
async def test_a_judge_may_fail_in_any_way(answer: turn_pb2.Vote | Exception, error: str) -> None:
    outcome = await Panel(Scripted(answer), 1, 5).decide(transition())
    assert outcome.judgement.failed and not outcome.outage
    assert outcome.judgement.votes[0].error == error
    assert outcome.judgement.votes[0].judge == "scripted"


async def test_an_outage_is_told() -> None:
    outcome = await Panel(Scripted(VoteError("unreachable", outage=True), VoteError("x")), 2, 5).decide(transition())
    assert outcome.judgement.failed and outcome.outage


async def test_the_guard_counts_only_when_it_is_certain() -> None:
    bad = transition("", feedback=[feedback(-1.0)])
    outcome = await Panel(Scripted(vote(1), vote(1)), 2, 5, guard=RulesJudge()).decide(bad)
    assert outcome.judgement.score == -1 and [v.judge for v in outcome.judgement.votes][-1] == "rules"
    outcome = await Panel(Scripted(vote(1), vote(1)), 2, 5, guard=RulesJudge()).decide(transition("that's wrong"))
    assert outcome.judgement.score == 1 and len(outcome.judgement.votes) == 2


async def test_the_guard_saves_a_judgement_whose_votes_failed() -> None:
    panel = Panel(Scripted(VoteError("down", outage=True)), 1, 5, guard=RulesJudge())
    outcome = await panel.decide(transition("", feedback=[feedback(1.0)]))
    assert (outcome.judgement.score, outcome.judgement.failed, outcome.outage) == (1, False, False)
