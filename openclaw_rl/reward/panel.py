"""Panel of votes and the judgement that follows from them.

Majority: the most frequent score among the votes that count; a tie of the two most frequent is 0. If any vote is
certain, only certain ones count. A failed vote never counts, and a judgement without a counting vote has failed.

Hint: the most specific one among the counting votes with the majority's score. The most specific hint is the one with
the most distinct words (a Chinese character is a word); among equals the shorter text, then the earlier vote, so that
the choice does not depend on the order of arrival.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.reward.interface import MAX_HINT, MAX_RATIONALE, BudgetedJudge, InstantJudge, Judge, VoteError
from openclaw_rl.reward.judges.text import words
from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import turn_pb2


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judgement, and whether it failed for a reason that may pass."""

    judgement: turn_pb2.Judgement
    outage: bool = False


class Panel:
    """Asks one judge for `votes` concurrent votes, and `guard` for one more that counts only if it is certain."""

    def __init__(self, judge: Judge, votes: int, timeout: float, guard: InstantJudge | None = None) -> None:
        """`timeout`: seconds after which a vote has failed."""
        self.judge, self.votes, self.timeout, self.guard = judge, votes, timeout, guard
        #: Its composition, recorded with each judgement.
        self.description = (judge.name if votes == 1 else f"{votes} x {judge.name}") + (
            f", guarded by {guard.name}" if guard is not None else "")
        self.instant = isinstance(judge, InstantJudge)  #: `decide_now` may be called.

    async def decide(self, transition: turn_pb2.Transition) -> Outcome:
        """Judge a transition. Never raises for a failing judge; cancelling it cancels the votes."""
        if self.instant:
            return self.decide_now(transition)
        results = await asyncio.gather(*(self.vote(transition) for _ in range(self.votes)))
        votes = [vote for vote, _ in results]
        judgement = self._conclude(transition, self._guarded(transition, votes))
        return Outcome(judgement, judgement.failed and any(outage for _, outage in results))

    def decide_now(self, transition: turn_pb2.Transition) -> Outcome:
        """`decide` for an instant judge."""
        votes = [_now(self.judge, transition) for _ in range(self.votes)]
        return Outcome(self._conclude(transition, votes))

    def give_up(self, transition: turn_pb2.Transition, reason: str) -> turn_pb2.Judgement:
        """Judge without the judge, for a `reason`: the judgement has failed, unless the guard is certain."""
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
        """Get one vote, a failed one rather than an exception, and whether it failed for a reason that may pass."""
        if isinstance(self.judge, BudgetedJudge):
            await self.judge.admit(transition)
        started = time.perf_counter()
        outage = False
        try:
            async with asyncio.timeout(self.timeout):
                vote = _checked(await self.judge.vote(transition))
        except TimeoutError:
            message = f"no answer within {self.timeout:g} s (components.prm_judge.vote_timeout)"
            vote, outage = turn_pb2.Vote(error=message), True
        except Exception as error:  # a plug-in may raise anything: its vote has failed, the others continue
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
    """Derive the judgement from votes; the module's docstring has the rules."""
    judgement = turn_pb2.Judgement(turn_id=turn_id, votes=votes)
    judgement.judged_at.CopyFrom(now())
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
    """The hint with the most distinct words, see the module's docstring; empty if there is none."""
    return max((hint for hint in hints if hint), key=lambda hint: (len(set(words(hint))), -len(hint)), default="")
