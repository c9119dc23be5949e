"""Turns of episodes: whether a turn is a step of one, and the next state and outcome of the last one."""

from __future__ import annotations

import logging
import sqlite3

from google.protobuf.message import DecodeError

from openclaw_rl.rollouts.classification.classify import MAIN, SIDE, UNKNOWN, Classification
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)


def claim(turn: turn_pb2.Turn, row: sqlite3.Row | None) -> Classification | None:
    """Look at what a turn says of its episode, and take from it what is not so: who is none of the environment
    server's own could name any.

    Args:
        turn: its `episode` is cleared, or filled in from `row`.
        row: the episode whose session the turn is in; None when it is in none of an episode.

    Returns:
        The turn's class; None when it is as any other.
    """
    said = turn.episode if turn.HasField("episode") else None
    if said is not None and (row is None or said.episode_id != row["id"]):
        logger.warning("turn %s of session %s claims to be of episode %r, which is not run there; not trained on",
                       turn.turn_id, turn.session_id, said.episode_id[:80])
        turn.ClearField("episode")
        if row is None:  # perhaps of one so old that it is not remembered: what it was played for is not known
            return Classification(UNKNOWN, f"says that it is of episode {said.episode_id[:80]!r}, which is not here")
        said = None
    if row is None:
        return None
    if said is None:
        return Classification(UNKNOWN, f"the session is that of episode {row['id']}, and this is none of its turns")
    turn.episode.CopyFrom(turn_pb2.EpisodeStep(
        episode_id=row["id"], group_id=row["grp"], group_size=row["size"], step=said.step, type=row["type"],
        task_id=row["task"]))
    if row["closed"]:
        return Classification(UNKNOWN, f"came after the end of episode {row['id']}")
    if row["no_train"]:
        return Classification(SIDE, "a step of an episode that is not trained on")
    return Classification(MAIN, "a step of an episode")


def final_state(row: sqlite3.Row) -> turn_pb2.NextState:
    """The next state of an ended episode's last turn."""
    state = turn_pb2.NextState()
    try:
        state = turn_pb2.NextState.FromString(row["ending"] or b"")
    except (DecodeError, TypeError):
        logger.error("what episode %s saw last is damaged; its last turn is judged without", row["id"])
    state.kind = turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED
    return state


def outcome(row: sqlite3.Row, steps: int) -> turn_pb2.EpisodeOutcome:
    """What is told with it. `steps`: those of which a turn came."""
    return turn_pb2.EpisodeOutcome(value=row["outcome"], error=row["error"], detail=row["detail"], steps=steps)
