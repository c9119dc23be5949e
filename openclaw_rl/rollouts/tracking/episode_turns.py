"""Turns of episodes: whether a turn is a step of one, and the next state and outcome of the last one."""

from __future__ import annotations

import logging
import sqlite3

from google.protobuf.message import DecodeError

from openclaw_rl.rollouts.classification.classify import MAIN, SIDE, UNKNOWN, Classification
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)


def claim(turn: turn_pb2.Turn, row: sqlite3.Row | None) -> Classification | None:
    """Check a turn's claim to belong to an episode, and correct it: any client could name one.

    Args:
        turn: its `episode` is cleared, or filled in from `row`.
        row: the episode whose session the turn is in, if any.

    Returns:
        The turn's class; None for an ordinary turn.
    """
    claimed = turn.episode if turn.HasField("episode") else None
    if claimed is not None and (row is None or claimed.episode_id != row["id"]):
        logger.warning("turn %s of session %s claims to be of episode %r, which is not run there; not trained on",
                       turn.turn_id, turn.session_id, claimed.episode_id[:80])
        turn.ClearField("episode")
        if row is None:  # perhaps of one so old that it was pruned: whether it was to be trained on is unknown
            return Classification(UNKNOWN, f"says that it is of episode {claimed.episode_id[:80]!r}, which is not here")
        claimed = None
    if row is None:
        return None
    if claimed is None:
        return Classification(UNKNOWN, f"the session is that of episode {row['id']}, and this is none of its turns")
    turn.episode.CopyFrom(turn_pb2.EpisodeStep(
        episode_id=row["id"], group_id=row["grp"], group_size=row["size"], step=claimed.step, type=row["type"],
        task_id=row["task"]))
    if row["closed"]:
        return Classification(UNKNOWN, f"came after the end of episode {row['id']}")
    if row["no_train"]:
        return Classification(SIDE, "a step of an episode that is not trained on")
    return Classification(MAIN, "a step of an episode")


def final_state(row: sqlite3.Row) -> turn_pb2.NextState:
    """Make the next state of an ended episode's last turn."""
    state = turn_pb2.NextState()
    try:
        state = turn_pb2.NextState.FromString(row["ending"] or b"")
    except (DecodeError, TypeError):
        logger.error("the final observation of episode %s is damaged; its last turn is judged without it", row["id"])
    state.kind = turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED
    return state


def outcome(row: sqlite3.Row, steps: int) -> turn_pb2.EpisodeOutcome:
    """Make the outcome that goes with it; `steps` counts those whose turns arrived."""
    return turn_pb2.EpisodeOutcome(value=row["outcome"], error=row["error"], detail=row["detail"], steps=steps)
