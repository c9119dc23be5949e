"""Everything that is known of one turn: its fate, and the votes on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.client.facts import TurnFate, fates
from openclaw_rl.client.judge import JudgeServiceClient
from openclaw_rl.rpc.errors import MeshError, not_found
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.v1.turn_pb2 import Judgement


@dataclass(frozen=True)
class TurnStory:
    """A turn's fate and its judgement, which is None when there is none or the judge does not answer."""

    fate: TurnFate
    judgement: Judgement | None


def story(home: Home, turn_id: str) -> TurnStory:
    """Tell one turn.

    Raises:
        MeshError: the environment server does not answer, or knows no such turn.
    """
    with EnvironmentServiceClient(home=home) as env:
        found = env.list_turns(turn_ids=[turn_id], page_size=1).turns
    if not found:
        raise not_found("turn", turn_id, "`openclaw-rl turns` lists those that there are; one is listed when its "
                                         "answer is complete")
    try:
        with JudgeServiceClient(home=home) as judge:
            judgements = judge.list_judgements(turn_ids=[turn_id]).judgements
    except MeshError:
        judgements = []
    return TurnStory(next(fates(home, found)), judgements[0] if judgements else None)
