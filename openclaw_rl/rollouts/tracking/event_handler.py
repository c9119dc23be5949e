"""Handling of the policy server's events, each in the caller's transaction."""

from __future__ import annotations

import logging
import sqlite3
import time
from functools import partial
from typing import Literal

from google.protobuf.message import DecodeError

from openclaw_rl.config import SessionAwareness
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.delivery.validation import RejectionCode
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy import Tombstones
from openclaw_rl.rollouts.classification.classify import MAIN, SIDE, UNKNOWN, Classifier
from openclaw_rl.rollouts.tracking import branches, episode_turns, linking, tables
from openclaw_rl.rollouts.tracking import episode_table as episodes
from openclaw_rl.rollouts.tracking.closing import TurnCloser, feedback_on
from openclaw_rl.rollouts.tracking.effects import Effects
from openclaw_rl.rollouts.tracking.next_state import Outline, as_text, messages_behind
from openclaw_rl.rollouts.tracking.response_flaws import find_flaws
from openclaw_rl.rollouts.tracking.validation import keys_differ, validate_event
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.storage.checksum import content_key, sound
from openclaw_rl.storage.inbox import IdConflict, Inbox
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.v1 import common_pb2, environment_pb2, turn_pb2
from openclaw_rl.v1.turn_pb2 import NextState

logger = logging.getLogger(__name__)

_Name = Literal["MAIN", "SIDE", "UNKNOWN"]
_CLASS_NAMES: dict[int, _Name] = {MAIN: "MAIN", SIDE: "SIDE", UNKNOWN: "UNKNOWN"}


class EventHandler:
    """Takes events in: turns, feedback, ends of sessions and signs of life.

    Args:
        quarantine: receives rejected events.
        mesh_id: of the mesh that turns belong to; "" takes those of any.
    """

    def __init__(self, inbox: Inbox, quarantine: Quarantine, tombstones: Tombstones, closer: TurnCloser,
                 journal: Journal, config: SessionAwareness, mesh_id: str = "") -> None:
        self._inbox, self._quarantine, self._tombstones = inbox, quarantine, tombstones
        self._closer, self._journal, self._mesh_id = closer, journal, mesh_id
        self._classifier = Classifier(config)
        self._debug = config.debug

    def handle(self, db: sqlite3.Connection, event: environment_pb2.PolicyEvent, effects: Effects) -> common_pb2.Ack:
        """Take one event in and answer it."""
        ack = common_pb2.Ack(id=message_id(event), status=common_pb2.ACK_STATUS_ACCEPTED)
        if self._tombstones.cover(event):
            return ack  # its session was forgotten while it was under way
        kind = event.WhichOneof("event")
        rejection, new = validate_event(event, ack.id, self._mesh_id), False
        try:
            new = rejection is None and self._inbox.accept(db, ack.id, content_key(event))
        except IdConflict as error:
            rejection = Rejection(RejectionCode.ID_CONFLICT, f"{kind}: {error}")
        if rejection is not None:
            self._quarantine.keep(db, ack.id, f"{kind or 'message'} refused: {rejection}", event.SerializeToString())
            ack.status, ack.reason = common_pb2.ACK_STATUS_REJECTED, rejection.message
        elif not new:
            ack.status = common_pb2.ACK_STATUS_DUPLICATE
        elif kind == "turn":
            turn = turn_pb2.Turn()  # a copy: an event of a batch that fails is handled again, as it came
            turn.CopyFrom(event.turn)
            turn.mesh_id = turn.mesh_id or self._mesh_id
            self._record_turn(db, turn, effects)
        elif kind == "feedback":
            self._record_feedback(db, event.feedback, effects)
        elif kind == "session_active":
            session = event.session_active.session_id
            if tables.still_active(db, session, time.time()) and episodes.of_session(db, session) is None:
                effects.alive[session] = True
        else:
            self._closer.end_session(db, event.session_end.session_id, turn_pb2.NEXT_STATE_KIND_SESSION_ENDED, effects)
        return ack

    def _record_turn(self, db: sqlite3.Connection, turn: turn_pb2.Turn, effects: Effects) -> None:
        outline = Outline.of(turn)
        if not turn.session_id:
            turn.session_id = linking.infer_session(db, turn, outline)
        session = turn.session_id
        link = linking.find(db, session, outline)
        episode = episodes.of_session(db, session)
        classification = episode_turns.claim(turn, episode) or self._classifier.classify(
            turn, partial(linking.session_context, db, session, outline, link))
        turn.turn_class, turn.class_reason = classification.turn_class, classification.reason
        main = classification.turn_class == MAIN
        name = _CLASS_NAMES[classification.turn_class]
        if main:
            attempt = linking.compare_attempts(db, turn, outline)
            placement = branches.assign(db, turn, outline, link, attempt)
        else:
            attempt = linking.Attempt(tables.NOT_TRAINABLE, f"{name.lower()} turns are not trained on", keep=False)
            placement = branches.Placement(link.branch or turn.turn_id, link.parent)
        turn.branch_id = placement.branch
        traces.recorded(turn, attempt.reason, placement.parent)
        tables.add_turn(db, turn, outline, state=attempt.state, reason=attempt.reason, flaw="; ".join(find_flaws(turn)),
                        parent=placement.parent, payload=turn.SerializeToString() if attempt.keep else None,
                        change=placement.change)
        tables.touch_session(db, session, time.time())
        effects.alive[session] = True
        effects.classifications.append(classification)
        effects.version = max(effects.version, turn.policy_version)
        if attempt.repeats:
            effects.counts["retries"] += turn.choice_index == 0
        else:
            effects.counts.update((f"turns_{name.lower()}", "total_interactions"))
        if self._debug:
            logger.info("turn %s of session %s is %s: %s", turn.turn_id, session, name, classification.evidence)
            if placement.change:
                logger.info("turn %s of session %s opens a branch: %s", turn.turn_id, session, placement.change)
        if main:
            self._close_continued(db, turn, outline, placement, link.side_responses, effects)
            if not placement.change:
                linking.await_missing(db, turn, outline, link.position)
        # Behind the next state of the turn that it continues: the journal reads as the conversation went.
        effects.journal.append(partial(self._journal.action, session, turn.policy_version, name,
                                       as_text([turn.response])))
        self._link_successor(db, turn, outline, effects)
        if episode is not None:
            self._closer.close_episode(db, session, effects)
            return
        if attempt.keep and feedback_on(db, turn.turn_id, turn.client):
            self._closer.close(db, turn.turn_id, NextState(kind=turn_pb2.NEXT_STATE_KIND_FEEDBACK), effects)
        if turn.session_done:
            self._closer.end_session(db, session, turn_pb2.NEXT_STATE_KIND_SESSION_ENDED, effects)

    def _close_continued(self, db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline,
                         placement: branches.Placement, side_responses: frozenset[bytes],
                         effects: Effects) -> None:
        """Give the main turn that `turn` continues its next state; if the request brings none, it stays open."""
        continued = placement.continues
        if continued is None:
            return
        closed = continued["state"] in (tables.OPEN, tables.SUPERSEDED) and (
            messages := messages_behind(outline, placement.position, side_responses)) and self._closer.close(
                db, continued["id"], NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, messages=messages,
                                               next_turn_id=turn.turn_id), effects)
        if not closed:  # else the same statement notes it
            tables.continued(db, continued["id"])

    def _link_successor(self, db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline, effects: Effects) -> None:
        """Link a turn that continues this one but arrived before it, and take the next state from there."""
        waiting = tables.take_awaited(db, turn.session_id, outline.response)
        if waiting is None:
            return
        tables.set_parent(db, turn.session_id, waiting["turn"], turn.turn_id, turn.branch_id)
        if turn.turn_class == MAIN:
            tables.continued(db, turn.turn_id)
            try:
                if not sound(waiting["next_state"], waiting["crc"]):
                    raise DecodeError("its checksum differs")
                next_state = NextState.FromString(waiting["next_state"])
            except (DecodeError, TypeError):
                logger.error("the next state of turn %s is damaged; the turn is judged without it", turn.turn_id)
                next_state = NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, next_turn_id=waiting["turn"])
            self._closer.close(db, turn.turn_id, next_state, effects)

    def _record_feedback(self, db: sqlite3.Connection, feedback: turn_pb2.Feedback, effects: Effects) -> None:
        row = tables.turn(db, feedback.turn_id) if feedback.turn_id else tables.last_main_turn(db, feedback.session_id)
        turn_id = row["id"] if row else feedback.turn_id
        if row is not None and keys_differ(row["client"], feedback.client):
            logger.warning("feedback %s on turn %s is ignored: it was given with another API key than the turn's",
                           feedback.feedback_id, turn_id)
            effects.counts["feedback_ignored"] += 1
            return
        tables.add_feedback(db, feedback, turn_id)
        if row is None:
            logger.info("feedback %s waits for turn %r of session %r, which has not arrived", feedback.feedback_id,
                        feedback.turn_id, feedback.session_id)
        elif (episode := episodes.of_session(db, row["session"])) is not None and not episode["closed"]:
            logger.info("feedback %s on turn %s waits until episode %s continues or ends", feedback.feedback_id,
                        turn_id, episode["id"])
        elif not self._closer.close(db, turn_id, NextState(kind=turn_pb2.NEXT_STATE_KIND_FEEDBACK), effects):
            logger.info("feedback %s on turn %s is kept but not judged: %s", feedback.feedback_id, turn_id,
                        row["reason"] or "the turn already has its next state")
