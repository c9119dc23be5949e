"""What a judge is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from openclaw_rl.v1 import turn_pb2

if TYPE_CHECKING:
    from openclaw_rl.models.api_calls import Budget  # with the API's client, which takes a second to import

#: A longer hint or rationale is cut: it is shown to a model or a person.
MAX_HINT = 2000
MAX_RATIONALE = 2000


class VoteError(Exception):
    """A vote failed. The text says why, for a person, and holds no secret.

    Attributes:
        outage: The judge as a whole may be unable to work (unreachable, wrong key, unknown model, rate limit), so
            that asking again later can help. False for an answer that can't be understood.
    """

    def __init__(self, message: str, *, outage: bool = False) -> None:
        super().__init__(message)
        self.outage = outage


@runtime_checkable
class Judge(Protocol):
    """Votes on transitions. One object serves all workers, so `vote` must be safe to run many times at once."""

    name: str
    """Goes into each vote; such as "rules" or "llm:glm-4-flash"."""

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        """One opinion: `score` +1, 0 or -1, a `hint` and a `rationale` where there are any, `certain` when the
        evidence leaves no doubt. The panel fills in `judge` (when empty) and `duration_ms`.

        Raises:
            VoteError: there is no opinion; any other exception is a failed vote too. The panel cancels a vote that
                takes longer than `vote_timeout`.
        """
        ...


@runtime_checkable
class BudgetedJudge(Judge, Protocol):
    """A judge that may only ask so often. What `admit` waits is no part of the vote's time."""

    budget: Budget
    """What it may ask for, and who waits for it."""

    async def admit(self, transition: turn_pb2.Transition) -> None:
        """Wait until the vote on a transition may be asked for. Called before each vote."""
        ...


@runtime_checkable
class InstantJudge(Judge, Protocol):
    """A judge that only computes, for well under a millisecond: it is asked in the middle of a batch, without a task
    and without a time-out of its own."""

    def vote_now(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        """As `vote`, at once."""
        ...
