"""Votes on a transition and what follows from them.

Majority: the score that most of the votes that count have; a tie of the two most frequent is 0. When votes are
certain, only those count. A failed vote never counts, and a judgement without a vote that counts has failed.

Hint: the most specific one among the votes with the majority's score, provided that they count. The most specific hint
is the one with the most different words (a Chinese character is a word); among equals the shorter text, then the
earlier vote, so that the choice does not depend on which vote came in first.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.reward.interface import MAX_HINT, MAX_RATIONALE, BudgetedJudge, InstantJudge, Judge, VoteError
from openclaw_rl.reward.judges.text import words
from openclaw_rl.v1 import turn_pb2


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judgement, and whether it failed for a reason that may pass."""

    judgement: turn_pb2.Judgement
    outage: bool = False


class Panel:
    """Asks one judge for `votes` votes at once, and `guard` for one more that counts only when it is certain."""

    def __init__(self, judge: Judge, votes: int, timeout: float, guard: InstantJudge | None = None) -> None:
        """`timeout`: seconds after which a vote has failed."""
        self.judge, self.votes, self.timeout, self.guard = judge, votes, timeout, guard
        #: How it is made up, for those who ask what a version was trained on.
        self.description = (judge.name if votes == 1 else f"{votes} x {judge.name}") + (
            f", guarded by {guard.name}" if guard is not None else "")
        self.instant = isinstance(judge, InstantJudge)  #: All is computed at once: `decide_now` may be called.

    async def decide(self, transition: turn_pb2.Transition) -> Outcome:
        """Judge a transition. Never raises for a failing judge; cancelling it cancels the votes."""
        if self.instant:
            return self.decide_now(transition)
        results = await asyncio.gather(*(self.vote(transition) for _ in range(self.votes)))
        votes = [vote for vote, _ in results]
        judgement = self._conclude(transition, self._guarded(transition, votes))
        return Outcome(judgement, judgement.failed and any(outage for _, outage in results))

    def decide_now(self, transition: turn_pb2.Transition) -> Outcome:
        """`decide` of an instant judge."""
        votes = [_now(self.judge, transition) for _ in range(self.votes)]
        return Outcome(self._conclude(transition, votes))

    def give_up(self, transition: turn_pb2.Transition, reason: str) -> turn_pb2.Judgement:
        """The judgement without asking the judge, for a `reason`: it has failed, unless the guard is certain."""
        failed = turn_pb2.Vote(judge=self.judge.name, error=reason)
        return self._conclude(transition, self._guarded(transition, [failed]))

    def _conclude(self, transition: turn_pb2.Transition, votes: Sequence[turn_pb2.Vote]) -> turn_pb2.Judgement:
        judgement = conclude(transition.turn.turn_id, votes)
        judgement.panel = self.description
        return judgement

    def _guarded(self, transition: turn_pb2.Transition, votes: list[turn_pb2.Vote]) -> list[turn_pb2.Vote]:
        if self.guard is not None and (vote := _now(self.guard, transition)).certain:
            votes.append(vote)
        return votes

    async def vote(self, transition: turn_pb2.Transition) -> tuple[turn_pb2.Vote, bool]:
        """One vote of the judge, failed rather than raising, and whether it failed for a reason that may pass."""
        if isinstance(self.judge, BudgetedJudge):
            await self.judge.admit(transition)
        started = time.perf_counter()
        outage = False
        try:
            async with asyncio.timeout(self.timeout):
                vote = _checked(await self.judge.vote(transition))
        except TimeoutError:
            said = f"no answer within {self.timeout:g} s (components.prm_judge.vote_timeout)"
            vote, outage = turn_pb2.Vote(error=said), True
        except Exception as error:  # A plug-in may raise anything; its vote has failed, the others go on.
            vote, outage = _failed(error)
        return _signed(vote, self.judge, started), outage


def _now(judge: Judge, transition: turn_pb2.Transition) -> turn_pb2.Vote:
    started = time.perf_counter()
    try:
        vote = _checked(judge.vote_now(transition))  # type: ignore[attr-defined]
    except Exception as error:
        vote, _ = _failed(error)
    return _signed(vote, judge, started)


def _failed(error: Exception) -> tuple[turn_pb2.Vote, bool]:
    if isinstance(error, VoteError):
        return turn_pb2.Vote(error=str(error) or "failed"), error.outage
    return turn_pb2.Vote(error=f"{type(error).__name__}: {error}"[:MAX_RATIONALE]), False


def _checked(vote: turn_pb2.Vote) -> turn_pb2.Vote:
    if not isinstance(vote, turn_pb2.Vote):
        raise VoteError(f"the judge returned a {type(vote).__name__} instead of a Vote")
    if vote.score not in (-1, 0, 1):
        raise VoteError(f"the judge returned the score {vote.score}; allowed are -1, 0 and +1")
    return vote


def _signed(vote: turn_pb2.Vote, judge: Judge, started: float) -> turn_pb2.Vote:
    vote.judge = vote.judge or judge.name
    vote.duration_ms = (time.perf_counter() - started) * 1000
    vote.hint = vote.hint[:MAX_HINT].strip()
    vote.rationale = vote.rationale[:MAX_RATIONALE]
    return vote


def conclude(turn_id: str, votes: Sequence[turn_pb2.Vote]) -> turn_pb2.Judgement:
    """The judgement that follows from votes; see the module's text for the rules."""
    judgement = turn_pb2.Judgement(turn_id=turn_id, votes=votes)
    judgement.judged_at.GetCurrentTime()
    counting = [vote for vote in votes if not vote.error]
    counting = [vote for vote in counting if vote.certain] or counting
    if not counting:
        judgement.failed = True
        return judgement
    ranked = Counter(vote.score for vote in counting).most_common(2)
    tie = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
    judgement.score = 0 if tie else ranked[0][0]
    judgement.hint = most_specific([vote.hint for vote in counting if vote.score == judgement.score])
    return judgement


def most_specific(hints: Sequence[str]) -> str:
    """The hint with the most different words, see the module's text; empty when there is none."""
    return max((hint for hint in hints if hint), key=lambda hint: (len(set(words(hint))), -len(hint)), default="")
