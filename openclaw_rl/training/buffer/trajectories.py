"""Trajectories: turns of an episode of which each continues the one before token by token, as one text.

The prompt of a later turn often is exactly the prompt and the response of an earlier one, and new messages. A causal
model reads a token the same whatever comes behind it, so one pass over the last text gives the log-probabilities of all
responses in it: an episode of T turns costs one text rather than T of growing length. Where the tokens differ (a chat
template that renders a response otherwise than it was sampled, tokens that merge at the seam) the turns stay apart:
what is trained is what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.buffer.turns import chosen
from openclaw_rl.v1 import turn_pb2


def trajectories(steps: Sequence[tuple[turn_pb2.Sample, float]]) -> list[Example]:
    """Return the trajectories of some steps.

    Args:
        steps: samples of episodes and their advantages; those of one episode one after the other, in order.
    """
    found: list[Example] = []
    open_: list[Example] = []  # texts of this episode, which may go on
    episode = ""
    for sample, advantage in steps:
        turn = sample.transition.turn
        if turn.episode.episode_id != episode:
            found += open_
            open_, episode = [], turn.episode.episode_id
        alone = _alone(sample, advantage)
        for place, text in enumerate(open_):
            if (joined := _joined(text, alone)) is not None:
                open_[place] = joined
                break
        else:
            open_.append(alone)
    return found + open_


def tokens(texts: Sequence[Example]) -> int:
    """Count the tokens that go through the model: prompts, responses and what stands between them."""
    return sum(len(text.prompt_ids) + len(text.response_ids) + sum(len(ids) for _, ids in text.gaps)
               for text in texts)


def _alone(sample: turn_pb2.Sample, advantage: float) -> Example:
    turn, record = sample.transition.turn, sample.transition.turn.tokens
    response, behaviour, versions, gaps = chosen(record)
    return Example(turn.turn_id, list(record.prompt_ids), response, behaviour, versions, sample.judgement.score, "",
                   None, [advantage] * len(versions), gaps=gaps)


def _joined(text: Example, more: Example) -> Example | None:
    """Return both as one text; None when `more` does not continue it."""
    so_far, _ = text.text()
    if len(more.prompt_ids) <= len(so_far) or more.prompt_ids[:len(so_far)] != so_far:
        return None
    return Example(
        text.turn_id, text.prompt_ids, text.response_ids + more.response_ids, text.behaviour + more.behaviour,
        text.versions + more.versions, text.score + more.score, "", None,
        [*(text.advantages or []), *(more.advantages or [])], text.turns + more.turns,
        [*text.gaps, (len(text.response_ids), more.prompt_ids[len(so_far):]),
         *((len(text.response_ids) + at, ids) for at, ids in more.gaps)])
