"""Interface of judges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from openclaw_rl.v1 import turn_pb2

if TYPE_CHECKING:
    from openclaw_rl.models.api_calls import Budget  # with the API's client, which takes a second to import

#: A longer hint or rationale is cut: it is shown to a model or a person.
MAX_HINT = 2000
MAX_RATIONALE = 2000


class VoteError(Exception):
    """A vote failed. The text says why, for a person, and contains no secret.

    Attributes:
        outage: the judge as a whole may be unable to work (unreachable, wrong key, unknown model, rate limit), so
            that a later retry can help. False for an answer that can't be understood.
    """

    def __init__(self, message: str, *, outage: bool = False) -> None:
        super().__init__(message)
        self.outage = outage


@runtime_checkable
class Judge(Protocol):
    """Votes on transitions. One object serves all workers, so `vote` must be safe to call concurrently."""

    name: str
    """Recorded in each vote, such as "rules" or "llm:glm-4-flash"."""

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        """Return one vote: `score` +1, 0 or -1, optionally a `hint` and a `rationale`, `certain` if the evidence leaves
        no doubt. The panel fills in `judge` (if empty) and `duration_ms`.

        Raises:
            VoteError: no vote was possible; any other exception is a failed vote too. The panel cancels a vote that
                takes longer than `vote_timeout`.
        """
        ...


@runtime_checkable
class BudgetedJudge(Judge, Protocol):
    """A judge with a limited request rate. The wait in `admit` does not count as the vote's time."""

    budget: Budget
    """Its request rate, and who waits for it."""

    async def admit(self, transition: turn_pb2.Transition) -> None:
        """Wait until a vote on the transition is permitted. Called before each vote."""
        ...


@runtime_checkable
class InstantJudge(Judge, Protocol):
    """A judge that only computes, for well under a millisecond: it is called within a batch, without a task or timeout
    of its own."""

    def vote_now(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        """Like `vote`, synchronously."""
        ...
