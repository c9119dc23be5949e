"""Samples of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.v1 import common_pb2, turn_pb2
from tests.training.fakes import encode, make_sample


def step_of(episode: str, step: int = 1, *, group: str = "g", size: int = 2, votes: Sequence[int] = (0,),
            outcome: float | None = None, error: str = "", steps: int | None = None, task: str = "t",
            response: str = "an action", words: str = "hello you", version: int = 0, turn_id: str = "",
            failed: bool = False) -> turn_pb2.Sample:
    """A judged step; with an outcome or an error it is the episode's last one."""
    sample = make_sample(turn_id or f"{episode}-{step}", max(min(sum(votes), 1), -1), words=words, response=response,
                         version=version, session=f"ses-{episode}")
    sample.transition.turn.episode.CopyFrom(turn_pb2.EpisodeStep(
        episode_id=episode, group_id=group, group_size=size, step=step, type="terminal", task_id=task))
    if outcome is not None or error:
        sample.transition.outcome.CopyFrom(turn_pb2.EpisodeOutcome(value=outcome, error=error, steps=steps or step))
    sample.judgement.failed = failed
    for score in votes:
        sample.judgement.votes.add(judge="rules", score=score)
    return sample


def goes_on(sample: turn_pb2.Sample, words: str, response: str) -> turn_pb2.Sample:
    """The next step of a sample's episode, whose prompt is that of before, the response, and more words."""
    before = sample.transition.turn
    more = turn_pb2.Sample()
    more.CopyFrom(sample)
    turn = more.transition.turn
    turn.episode.step += 1
    turn.turn_id = more.judgement.turn_id = f"{turn.episode.episode_id}-{turn.episode.step}"
    ids = encode(response)
    turn.tokens.CopyFrom(turn_pb2.TokenRecord(
        prompt_ids=[*before.tokens.prompt_ids, *before.tokens.response_ids, *encode(words)], response_ids=ids,
        logprobs=[-3.0] * len(ids), model_logprobs=[-4.0] * len(ids),
        spans=[common_pb2.VersionSpan(version=0, begin=0, end=len(ids))]))
    return more
