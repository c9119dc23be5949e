"""A judge that likes short answers: the smallest useful plug-in."""

from __future__ import annotations

import os

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.v1 import turn_pb2

#: Variable with the most words of a good answer.
LIMIT = "BREVITY_JUDGE_WORDS"


class BrevityJudge:
    """+1 for at most `limit` words, -1 for more than twice as many, else 0."""

    name = "brevity"

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def vote_now(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        """Having `vote_now` makes it an instant judge: it is asked in the middle of a batch, without a time-out. A
        judge that waits for anything (a model, a database, a file) has `vote` only."""
        words = len(transition.turn.response.content.split())
        score = 1 if words <= self.limit else -1 if words > 2 * self.limit else 0
        return turn_pb2.Vote(score=score, rationale=f"{words} words; at most {self.limit} are good",
                             hint=f"Answer in at most {self.limit} words." if score < 0 else "")

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        return self.vote_now(transition)


def make(config: PrmJudgeConfig) -> BrevityJudge:
    """What the entry point names. Settings of its own come from the environment, since `config` knows only ours.

    Raises:
        ConfigError: the text is what the operator reads when the judge does not start.
    """
    value = os.environ.get(LIMIT, "60")
    if not value.isdigit() or int(value) == 0:
        raise ConfigError(f"{LIMIT}: {value!r} is not allowed: must be a number of words from 1")
    return BrevityJudge(int(value))
