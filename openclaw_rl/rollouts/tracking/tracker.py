"""The book of sessions: which turn continues which, and when a turn's next state is complete.

Every main turn gets its next state once, and goes out as a transition in the transaction that notes it. Rules:

- A request continues the turn whose conversation (request and response) is its longest prefix, within its session;
  one that continues none opens a branch of its own, and so does one whose context the client has changed.
- Attempts at one request (a client's retry, several choices) are one turn: the latest attempt, its first choice,
  stands for it until one of them is continued, which then is the one that counts.
- A turn that comes before the one that it continues waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from google.protobuf.message import DecodeError

from openclaw_rl.config import SessionAwareness
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.delivery.validation import RejectionCode
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy import Target, Tombstones
from openclaw_rl.rollouts.classification.classify import MAIN, SIDE, UNKNOWN, Classified, Classifier
from openclaw_rl.rollouts.classification.response_flaws import flaw
from openclaw_rl.rollouts.classification.trainability import Trainability
from openclaw_rl.rollouts.episodes import table as episodes
from openclaw_rl.rollouts.episodes import turns as episode_turns
from openclaw_rl.rollouts.forget import forget
from openclaw_rl.rollouts.tracking import branches, linking, tables
from openclaw_rl.rollouts.tracking.deadlines import Deadlines
from openclaw_rl.rollouts.tracking.next_state import Outline, as_text, messages_behind
from openclaw_rl.rollouts.tracking.validation import keys_differ, validate_event
from openclaw_rl.rpc.messages import now
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.storage.checksum import content_key, sound
from openclaw_rl.storage.database import Store, StoreError
from openclaw_rl.storage.inbox import Forged, Inbox
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.quarantine import Aside
from openclaw_rl.v1 import common_pb2, environment_pb2, turn_pb2
from openclaw_rl.v1.turn_pb2 import NextState, NextStateKind

log = logging.getLogger(__name__)

#: Summaries that are kept.
KEEP_TURNS = 200_000
#: Episodes that are kept.
KEEP_EPISODES = 10_000
#: Seconds after a start in which no session times out, since turns may still be under way.
START_GRACE = 60.0
#: Sessions that one transaction of the reaper ends.
REAP_BATCH = 100

_Name = Literal["MAIN", "SIDE", "UNKNOWN"]
_CLASS_NAMES: dict[int, _Name] = {MAIN: "MAIN", SIDE: "SIDE", UNKNOWN: "UNKNOWN"}
_CLOSED_BY = {turn_pb2.NEXT_STATE_KIND_FEEDBACK: "feedback was given",
              turn_pb2.NEXT_STATE_KIND_SESSION_ENDED: "the session ended",
              turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT: "the session timed out",
              turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED: "the episode ended"}


@dataclass
class _Effects:
    """What follows from events once they are on disk."""

    counts: Counter[str] = field(default_factory=Counter)
    alive: dict[str, bool] = field(default_factory=dict)  #: session -> it was active (else: it ended), last one counts
    classes: list[Classified] = field(default_factory=list)
    journal: list[Callable[[], None]] = field(default_factory=list)
    version: int = 0


class SessionBook:
    """Keeps sessions in `store` (made with `tables.SCHEMA`) and puts transitions into `outbox`.

    Thread-safe. Everything survives a restart: it is in the store before an event is acknowledged.
    """

    def __init__(self, store: Store, outbox: Outbox, journal: Journal, config: SessionAwareness) -> None:
        self._store, self._outbox, self._journal = store, outbox, journal
        with store.transaction() as db:
            tables.add_missing_columns(db)
        self._inbox = Inbox(store, "events")
        self.aside = Aside(store, "events")  #: refused events, and records that were damaged on disk
        self._tombstones = Tombstones(store)
        self._classifier = Classifier(config)
        self._debug = config.debug
        self._deadlines = Deadlines(config.session_timeout)
        self._lock = threading.Lock()
        self.trainability = Trainability()
        self.counters: Counter[str] = Counter(
            {row["name"]: row["value"] for row in store.query("SELECT name, value FROM counters")})
        newest = store.query("SELECT max(version) AS version FROM turns")[0]["version"]
        self.policy_version: int | None = newest  #: the newest that a turn came from
        wall = time.time()
        idle = {row["id"]: wall - row["active"]
                for row in store.query("SELECT id, active FROM sessions WHERE ended = 0")}
        with store.reading() as db:  # also those of whose session no turn has come
            idle.update({session: wall - ended for session, ended in episodes.unclosed(db)})
        self._deadlines.restore(idle.items(), time.monotonic(), START_GRACE)

    @property
    def sessions_open(self) -> int:
        """Sessions that have not ended."""
        return len(self._deadlines)

    def handle(self, events: Sequence[environment_pb2.PolicyEvent]) -> list[common_pb2.Ack]:
        """Take events, in one transaction: when one of them raises, none was taken.

        Returns:
            One answer for each, in order; everything that follows from an accepted event is then in the store.

        Raises:
            StoreError: the store can't be written.
        """
        with self._lock:
            effects = _Effects()
            with self._store.transaction() as db:
                acks = [self._take(db, event, effects) for event in events]
                tables.add_counters(db, effects.counts)
            self._apply(effects)
        return acks

    def end(self, session: str, kind: NextStateKind.ValueType = turn_pb2.NEXT_STATE_KIND_SESSION_ENDED) -> int:
        """End a session.

        Returns:
            Number of turns that got their next state by it.
        """
        return self._end_all([session], kind)

    def begin_episode(self, episode: episodes.Begun) -> None:
        """An episode runs: the turns of its session are its steps, and the session ends with it alone.

        Raises:
            StoreError: the store can't be written.
        """
        with self._lock, self._store.transaction() as db:
            episodes.begin(db, episode)

    def end_episode(self, episode_id: str, ended: episodes.Ended) -> bool:
        """An episode is over. Its last turn gets its next state and the outcome, at once or when its record comes.

        Returns:
            False when there is no such episode that runs.

        Raises:
            StoreError: the store can't be written.
        """
        with self._lock:
            effects = _Effects()
            with self._store.transaction() as db:
                row = episodes.end(db, episode_id, ended)
                if row is not None:
                    effects.counts["episodes_broken" if ended.error else "episodes_done"] += 1
                    self._close_episode(db, row["session"], effects)
                tables.add_counters(db, effects.counts)
            self._apply(effects)
        return row is not None

    def break_off_episodes(self, error: str) -> int:
        """End all episodes of an earlier run; gives their number."""
        with self._store.reading() as db:
            ids = episodes.running(db)
        return sum(self.end_episode(id, episodes.Ended(time.time(), error=error)) for id in ids)

    def reap(self) -> int:
        """End the sessions in which nothing came for `session_timeout`; returns their number."""
        ended = 0
        while due := self._deadlines.due(time.monotonic(), REAP_BATCH):
            ended += self._time_out(due)
        return ended

    def _time_out(self, sessions: Sequence[str]) -> int:
        """End idle sessions. One in which something is damaged keeps no other open; it is tried again later."""
        try:
            self._end_all(sessions, turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT)
        except StoreError:
            raise
        except Exception:
            if len(sessions) > 1:
                return sum(self._time_out([session]) for session in sessions)
            log.exception("session %s can't be ended; will try again", sessions[0])
            self._deadlines.touch(sessions[0], time.monotonic())
            return 0
        return len(sessions)

    def prune(self, keep: int = KEEP_TURNS, keep_episodes: int = KEEP_EPISODES) -> int:
        """Delete old summaries beyond `keep`; returns their number. The same for episodes."""
        with self._lock, self._store.transaction() as db:
            episodes.prune(db, keep_episodes)
            return tables.prune(db, keep)

    async def forget(self, target: Target) -> tuple[Target, dict[str, int]]:
        """Delete a session's turns, and let those go that are still to come.

        Returns:
            The target with the ids of its turns, and how much was deleted, by kind.

        Raises:
            StoreError, OSError: the store or the journal can't be written.
        """
        def work() -> tuple[Target, dict[str, int]]:
            with self._lock:
                with self._store.transaction() as db:
                    known, removed, gone = forget(db, target, self._outbox, self.aside)
                    self._tombstones.add(db, known)
                if gone:
                    self._deadlines.drop(target.session_id)
            return known, removed | {"journal lines": self._journal.forget(target.session_id)}

        return await asyncio.to_thread(work)

    def rejected(self, db: sqlite3.Connection, turn_id: str, reason: str) -> None:
        """The judge has refused the turn's transition, which is set aside in this transaction."""
        tables.settle(db, turn_id, tables.REJECTED, f"the judge refused it: {reason}")

    def _end_all(self, sessions: Sequence[str], kind: NextStateKind.ValueType) -> int:
        with self._lock:
            effects = _Effects()
            with self._store.transaction() as db:
                closed = sum(self._end(db, session, kind, effects) for session in sessions)
                tables.add_counters(db, effects.counts)
            self._apply(effects)
        return closed

    def _apply(self, effects: _Effects) -> None:
        self.counters.update(effects.counts)
        moment = time.monotonic()
        for session, active in effects.alive.items():
            if active:
                self._deadlines.touch(session, moment)
            else:
                self._deadlines.drop(session)
        if effects.classes:
            self.policy_version = max(self.policy_version or 0, effects.version)
        for classified in effects.classes:
            self.trainability.saw(classified)
        for entry in effects.journal:
            entry()

    def _take(self, db: sqlite3.Connection, event: environment_pb2.PolicyEvent, effects: _Effects) -> common_pb2.Ack:
        ack = common_pb2.Ack(id=message_id(event), status=common_pb2.ACK_STATUS_ACCEPTED)
        if self._tombstones.cover(event):
            return ack  # of a session that was forgotten while this was under way
        kind = event.WhichOneof("event")
        rejection, new = validate_event(event, ack.id), False
        try:
            new = rejection is None and self._inbox.accept(db, ack.id, content_key(event))
        except Forged as error:
            rejection = Rejection(RejectionCode.ID_CONFLICT, f"{kind}: {error}")
        if rejection is not None:
            self.aside.keep(db, ack.id, f"{kind or 'message'} refused: {rejection}", event.SerializeToString())
            ack.status, ack.reason = common_pb2.ACK_STATUS_REJECTED, rejection.message
        elif not new:
            ack.status = common_pb2.ACK_STATUS_DUPLICATE
        elif kind == "turn":
            turn = turn_pb2.Turn()  # a copy: an event of a batch that fails is handled again, as it came
            turn.CopyFrom(event.turn)
            self._turn(db, turn, effects)
        elif kind == "feedback":
            self._feedback(db, event.feedback, effects)
        elif kind == "session_active":
            session = event.session_active.session_id
            if tables.still_active(db, session, time.time()) and episodes.of_session(db, session) is None:
                effects.alive[session] = True
        else:
            self._end(db, event.session_end.session_id, turn_pb2.NEXT_STATE_KIND_SESSION_ENDED, effects)
        return ack

    def _turn(self, db: sqlite3.Connection, turn: turn_pb2.Turn, effects: _Effects) -> None:
        outline = Outline.of(turn)
        if not turn.session_id:
            turn.session_id = linking.infer_session(db, turn, outline)
        session = turn.session_id
        link = linking.find(db, session, outline)
        episode = episodes.of_session(db, session)
        classified = episode_turns.claim(turn, episode) or self._classifier.classify(
            turn, partial(linking.surroundings, db, session, outline, link))
        turn.turn_class, turn.class_reason = classified.turn_class, classified.reason
        name = _CLASS_NAMES[classified.turn_class]
        if classified.turn_class == MAIN:
            rank = linking.rank(db, turn, outline)
            place = branches.find(db, turn, outline, link, rank)
        else:
            rank = linking.Rank(tables.NOT_TRAINABLE, f"{name.lower()} turns are not trained on", keep=False)
            place = branches.Place(link.branch or turn.turn_id, link.parent)
        turn.branch_id = place.branch
        traces.recorded(turn, rank.reason, place.parent)
        tables.add_turn(db, turn, outline, state=rank.state, reason=rank.reason, flaw=flaw(turn), parent=place.parent,
                        payload=turn.SerializeToString() if rank.keep else None, change=place.change)
        tables.touch_session(db, session, time.time())
        effects.alive[session] = True
        effects.classes.append(classified)
        effects.version = max(effects.version, turn.policy_version)
        if rank.repeats:
            effects.counts["retries"] += turn.choice_index == 0
        else:
            effects.counts.update((f"turns_{name.lower()}", "total_interactions"))
        if self._debug:
            log.info("turn %s of session %s is %s: %s", turn.turn_id, session, name, classified.evidence)
            if place.change:
                log.info("turn %s of session %s opens a branch: %s", turn.turn_id, session, place.change)
        if classified.turn_class == MAIN:
            self._continue(db, turn, outline, place, link.side_responses, effects)
            if not place.change:
                linking.await_missing(db, turn, outline, link.position)
        # Behind the next state of the turn that it continues: the journal reads as the conversation went.
        effects.journal.append(partial(self._journal.action, session, turn.policy_version, name,
                                       as_text([turn.response])))
        self._answer_waiting(db, turn, outline, effects)
        if episode is not None:
            self._close_episode(db, session, effects)
            return
        if rank.keep and _feedback_on(db, turn.turn_id, turn.client):
            self._close(db, turn.turn_id, NextState(kind=turn_pb2.NEXT_STATE_KIND_FEEDBACK), effects)
        if turn.session_done:
            self._end(db, session, turn_pb2.NEXT_STATE_KIND_SESSION_ENDED, effects)

    def _continue(self, db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline, place: branches.Place,
                  side_responses: frozenset[bytes], effects: _Effects) -> None:
        """Give the main turn that `turn` continues its next state; without one it stays open."""
        main = place.continues
        if main is None:
            return
        tables.continued(db, main["id"])
        if main["state"] in (tables.OPEN, tables.SUPERSEDED) and (
                messages := messages_behind(outline, place.position, side_responses)):
            self._close(db, main["id"], NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, messages=messages,
                                                  next_turn_id=turn.turn_id), effects)

    def _answer_waiting(self, db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline, effects: _Effects) -> None:
        """When a turn that continues this one came before it: link them, and take the next state from there."""
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
                log.error("the next state of turn %s is damaged; it is judged without", turn.turn_id)
                next_state = NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, next_turn_id=waiting["turn"])
            self._close(db, turn.turn_id, next_state, effects)

    def _feedback(self, db: sqlite3.Connection, feedback: turn_pb2.Feedback, effects: _Effects) -> None:
        row = tables.turn(db, feedback.turn_id) if feedback.turn_id else tables.last_main_turn(db, feedback.session_id)
        turn_id = row["id"] if row else feedback.turn_id
        if row is not None and keys_differ(row["client"], feedback.client):
            log.warning("feedback %s on turn %s is ignored: it was given with another API key than the turn's",
                        feedback.feedback_id, turn_id)
            effects.counts["feedback_ignored"] += 1
            return
        tables.add_feedback(db, feedback, turn_id)
        if row is None:
            log.info("feedback %s waits for turn %r of session %r, which is not here", feedback.feedback_id,
                     feedback.turn_id, feedback.session_id)
        elif (episode := episodes.of_session(db, row["session"])) is not None and not episode["closed"]:
            log.info("feedback %s on turn %s is kept until the episode %s goes on or ends", feedback.feedback_id,
                     turn_id, episode["id"])
        elif not self._close(db, turn_id, NextState(kind=turn_pb2.NEXT_STATE_KIND_FEEDBACK), effects):
            log.info("feedback %s on turn %s is kept, but not judged: %s", feedback.feedback_id, turn_id,
                     row["reason"] or "the turn has its next state already")

    def _close_episode(self, db: sqlite3.Connection, session: str, effects: _Effects, *, wait: bool = True) -> int:
        """When the episode of a session is over, and the record of its last turn is here: end the session.

        Args:
            wait: False ends it without the record.

        Returns:
            Number of turns that got their next state by it.
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
            state = episode_turns.last_words(row) if last and turn_id == row["last_turn"] else NextState(
                kind=turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED)
            self._close(db, turn_id, state, effects, episode_turns.outcome(row, steps) if last else None)
        episodes.close(db, session)
        tables.end_session(db, session)
        effects.alive[session] = False
        return len(left)

    def _end(self, db: sqlite3.Connection, session: str, kind: NextStateKind.ValueType, effects: _Effects) -> int:
        if (episode := episodes.of_session(db, session)) is not None:
            if kind != turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT and not episode["closed"]:
                log.info("session %s is not ended: the episode %s ends it", session, episode["id"])
            return self._close_episode(db, session, effects, wait=kind != turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT)
        closed = sum(self._close(db, turn_id, NextState(kind=kind), effects)
                     for turn_id in tables.open_turns(db, session))
        tables.end_session(db, session)
        effects.alive[session] = False
        return closed

    def _close(self, db: sqlite3.Connection, turn_id: str, next_state: NextState, effects: _Effects,
               outcome: turn_pb2.EpisodeOutcome | None = None) -> bool:
        """Send a turn with its next state to the judge; False when it was sent before or can't be any more."""
        data, whole, branch = tables.payload(db, turn_id)
        if data is None:
            return False
        try:
            if not whole:
                raise DecodeError("its checksum differs")
            turn = turn_pb2.Turn.FromString(data)
        except (DecodeError, TypeError):  # it must not stand in the way of the message that brings its next state
            log.error("the record of turn %s is damaged; it will not be judged", turn_id)
            self.aside.keep(db, turn_id, "the turn's record on disk is damaged; it is not judged", data)
            tables.settle(db, turn_id, tables.REJECTED, "its record on disk is damaged")
            return False
        turn.branch_id = branch
        next_state.feedback.extend(_feedback_on(db, turn_id, turn.client))
        next_state.observed_at.CopyFrom(now())
        transition = turn_pb2.Transition(turn=turn, next_state=next_state, outcome=outcome,
                                         step_reward=episodes.reward(db, turn_id) if turn.HasField("episode") else None)
        self._outbox.put(turn_id, transition.SerializeToString(), db=db)
        reason = _CLOSED_BY.get(next_state.kind) or f"continued by turn {next_state.next_turn_id}"
        tables.settle(db, turn_id, tables.SENT, reason)
        tables.drop_rivals(db, turn_id, f"turn {turn_id} of the same request was sent")
        effects.counts["transitions_sent"] += 1
        effects.journal.append(partial(traces.next_state, turn, next_state))
        text = as_text(next_state.messages) or "; ".join(
            f"{given.score:+g} {given.comment}".rstrip() if given.HasField("score") else given.comment
            for given in next_state.feedback) or f"({reason})"
        effects.journal.append(partial(self._journal.next_state, turn.session_id, turn.policy_version, text))
        return True


def _feedback_on(db: sqlite3.Connection, turn_id: str, client: str) -> list[turn_pb2.Feedback]:
    return [given for given in tables.feedback_on(db, turn_id) if not keys_differ(client, given.client)]
