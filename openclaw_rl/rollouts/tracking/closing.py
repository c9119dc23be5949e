"""Closing of turns: each main turn gets its next state once and goes into the outbox as a transition.

All methods run in the caller's transaction.
"""

from __future__ import annotations

import logging
import sqlite3
from functools import partial

from google.protobuf.message import DecodeError

from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.observability.journal import Journal
from openclaw_rl.rollouts.tracking import episode_table as episodes
from openclaw_rl.rollouts.tracking import episode_turns, tables
from openclaw_rl.rollouts.tracking.effects import Effects
from openclaw_rl.rollouts.tracking.next_state import as_text
from openclaw_rl.rollouts.tracking.validation import keys_differ
from openclaw_rl.rpc.messages import now
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.turn_pb2 import NextState, NextStateKind

logger = logging.getLogger(__name__)

_CLOSED_BY = {turn_pb2.NEXT_STATE_KIND_FEEDBACK: "feedback was given",
              turn_pb2.NEXT_STATE_KIND_SESSION_ENDED: "the session ended",
              turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT: "the session timed out",
              turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED: "the episode ended"}


class TurnCloser:
    """Sends turns with their next states to the judge.

    Args:
        outbox: receives the transitions.
        quarantine: receives turns whose record on disk is damaged.
    """

    def __init__(self, outbox: Outbox, quarantine: Quarantine, journal: Journal) -> None:
        self._outbox, self._quarantine, self._journal = outbox, quarantine, journal

    def close(self, db: sqlite3.Connection, turn_id: str, next_state: NextState, effects: Effects,
              outcome: turn_pb2.EpisodeOutcome | None = None) -> bool:
        """Send a turn with its next state; False if it was sent before or can no longer be sent."""
        transition = turn_pb2.Transition(outcome=outcome)
        turn = transition.turn
        if not self._load(db, turn_id, turn):
            return False
        next_state.feedback.extend(feedback_on(db, turn_id, turn.client))
        next_state.observed_at.CopyFrom(now())
        transition.next_state.CopyFrom(next_state)
        if turn.HasField("episode") and (reward := episodes.reward(db, turn_id)) is not None:
            transition.step_reward = reward
        self._outbox.put(turn_id, transition.SerializeToString(), db=db)
        reason = _CLOSED_BY.get(next_state.kind) or f"continued by turn {next_state.next_turn_id}"
        tables.settle(db, turn_id, tables.SENT, reason,
                      continued=next_state.kind == turn_pb2.NEXT_STATE_KIND_CONTINUED)
        # Another attempt that is continued as well was a conversation of its own.
        tables.drop_rivals(db, turn_id, f"turn {turn_id} of the same request was sent",
                           keep=next_state.kind == turn_pb2.NEXT_STATE_KIND_CONTINUED)
        effects.counts["transitions_sent"] += 1
        effects.journal.append(partial(traces.next_state, turn, next_state))
        effects.journal.append(partial(self._journal.next_state, turn.session_id, turn.policy_version,
                                       _summary(next_state) or f"({reason})"))
        return True

    def end_session(self, db: sqlite3.Connection, session: str, kind: NextStateKind.ValueType,
                    effects: Effects) -> int:
        """End a session, unless an episode that ends it is still running.

        Returns:
            Number of turns closed.
        """
        timed_out = kind == turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT
        if (episode := episodes.of_session(db, session)) is not None:
            if not timed_out and not episode["closed"]:
                logger.info("session %s stays open: episode %s ends it", session, episode["id"])
            return self.close_episode(db, session, effects, wait=not timed_out)
        closed = sum(self.close(db, turn_id, NextState(kind=kind), effects)
                     for turn_id in tables.open_turns(db, session))
        tables.end_session(db, session)
        effects.alive[session] = False
        return closed

    def close_episode(self, db: sqlite3.Connection, session: str, effects: Effects, *, wait: bool = True) -> int:
        """End the session of an episode that is over, once the record of its last turn has arrived.

        Args:
            wait: False ends it without that record.

        Returns:
            Number of turns closed.
        """
        row = episodes.of_session(db, session)
        if row is None or row["ended"] is None:
            effects.alive[session] = False  # it has no deadline while the episode runs
            return 0
        if wait and row["last_turn"] and not row["closed"] and tables.turn(db, row["last_turn"]) is None:
            effects.alive[session] = True  # the record may have been lost: the session's deadline bounds the wait
            return 0
        left = tables.open_turns(db, session)
        steps = tables.steps(db, session)
        for turn_id in left:
            last = turn_id == left[-1]
            state = episode_turns.final_state(row) if last and turn_id == row["last_turn"] else NextState(
                kind=turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED)
            self.close(db, turn_id, state, effects, episode_turns.outcome(row, steps) if last else None)
        episodes.close(db, session)
        tables.end_session(db, session)
        effects.alive[session] = False
        return len(left)

    def _load(self, db: sqlite3.Connection, turn_id: str, turn: turn_pb2.Turn) -> bool:
        """Read a turn that can still be sent into `turn`; False if there is none. A damaged record must not block the
        message that brings its next state."""
        data, intact, branch = tables.payload(db, turn_id)
        if data is None:
            return False
        try:
            if not intact:
                raise DecodeError("its checksum differs")
            turn.ParseFromString(data)
        except (DecodeError, TypeError):
            logger.error("the record of turn %s is damaged; the turn is not judged", turn_id)
            self._quarantine.keep(db, turn_id, "the turn's record on disk is damaged; it is not judged", data)
            tables.settle(db, turn_id, tables.REJECTED, "its record on disk is damaged")
            return False
        turn.branch_id = branch
        return True


def feedback_on(db: sqlite3.Connection, turn_id: str, client: str) -> list[turn_pb2.Feedback]:
    """The feedback on a turn that counts: none given with another API key than that of the turn's `client`."""
    return [given for given in tables.feedback_on(db, turn_id) if not keys_differ(client, given.client)]


def _summary(next_state: NextState) -> str:
    """The next state as a line of the journal; empty if nobody said anything."""
    return as_text(next_state.messages) or "; ".join(
        f"{given.score:+g} {given.comment}".rstrip() if given.HasField("score") else given.comment
        for given in next_state.feedback)
