"""A judge that likes short answers: the smallest useful plug-in."""

from __future__ import annotations

import os

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.v1 import turn_pb2

#: Environment variable: most words of a good answer.
LIMIT = "BREVITY_JUDGE_WORDS"


class BrevityJudge:
    """+1 for at most `limit` words, -1 for more than twice as many, else 0."""

    name = "brevity"

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def vote_now(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        """Vote synchronously. This method makes it an instant judge: it is called within a batch, without a timeout. A
        judge that waits for anything (a model, a database, a file) has `vote` only."""
        words = len(transition.turn.response.content.split())
        score = 1 if words <= self.limit else -1 if words > 2 * self.limit else 0
        return turn_pb2.Vote(score=score, rationale=f"{words} words; at most {self.limit} are good",
                             hint=f"Answer in at most {self.limit} words." if score < 0 else "")

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        return self.vote_now(transition)


def make(config: PrmJudgeConfig) -> BrevityJudge:
    """Make the judge; the entry point names this function. Its own settings come from the environment, since `config`
    has only those of OpenClaw-RL.

    Raises:
        ConfigError: the operator reads its text if the judge does not start.
    """
    value = os.environ.get(LIMIT, "60")
    if not value.isdigit() or int(value) == 0:
        raise ConfigError(f"{LIMIT}: {value!r} is not allowed: must be a number of words from 1")
    return BrevityJudge(int(value))
