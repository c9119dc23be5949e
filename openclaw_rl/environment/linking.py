"""How a new turn hangs together with those that are there: by digest, within its session."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.environment import tables
from openclaw_rl.environment.next_state import Outline, messages_behind
from openclaw_rl.mesh.helpers import new_id
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.turn_pb2 import NextState

#: Responses that are not here and that one request waits for, at most.
MOST_AWAITED = 8
#: Responses of a request that are looked for in one query.
_LOOK_AT_ONCE = 8
#: Which of several turns with the same conversation a request continues.
_PRECEDENCE = {tables.OPEN: 0, tables.SENT: 1, tables.REJECTED: 1}


@dataclass(frozen=True, slots=True)
class Rank:
    """Where a new turn stands: its state and why, whether it may still be sent, whether it repeats another one."""

    state: int
    reason: str = ""
    keep: bool = True
    repeats: bool = False


def rank(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline) -> Rank:
    """Where a new main turn stands among the attempts at its request."""
    moment = (turn.requested_at.ToNanoseconds(), -turn.choice_index)
    attempts = tables.attempts(db, turn.session_id, outline.request)
    open_row = next((row for row in attempts if row["state"] == tables.OPEN), None)
    if open_row is not None:
        if moment < (open_row["requested"], -open_row["choice"]):
            return Rank(tables.SUPERSEDED, f"turn {open_row['id']} stands for the request", repeats=True)
        tables.supersede(db, open_row["id"], f"turn {turn.turn_id}, a later attempt, took its place")
        return Rank(tables.OPEN, repeats=True)
    settled = next((row for row in attempts if row["requested"] >= moment[0] > 0), None)
    if settled is not None:
        return Rank(tables.SUPERSEDED, f"turn {settled['id']} of the same request was sent already", keep=False,
                     repeats=True)
    return Rank(tables.OPEN)  # nothing like it, or asked again after the first answer had its next state


@dataclass(frozen=True, slots=True)
class Link:
    """What a request continues. Positions are those of the request's messages, -1 for none."""

    position: int = -1  #: of the last response that is here
    parent: str = ""  #: the turn that gave it
    main_position: int = -1  #: of the last response that is a main turn's
    main: sqlite3.Row | None = None  #: that turn
    side_responses: frozenset[bytes] = frozenset()  #: digests of responses behind it that are not main turns'


def find(db: sqlite3.Connection, session: str, outline: Outline) -> Link:
    """What the request continues, by the longest prefix that is a conversation of the session."""
    position, parent = -1, ""
    side_responses: set[bytes] = set()
    for begin in range(0, len(outline.responses), _LOOK_AT_ONCE):  # the last response is nearly always here
        some = outline.responses[begin:begin + _LOOK_AT_ONCE]
        rows: dict[bytes, list[sqlite3.Row]] = {}
        for row in tables.answered(db, session, [outline.digests[i] for i in some]):
            rows.setdefault(row["response"], []).append(row)
        for i in some:
            digest = outline.digests[i]
            if digest not in rows:
                continue
            if position < 0:
                position, parent = i, _standing(rows[digest])["id"]
            if mains := [row for row in rows[digest] if row["class"] == turn_pb2.TURN_CLASS_MAIN]:
                return Link(position, parent, i, _standing(mains), frozenset(side_responses))
            side_responses.add(digest)
    return Link(position, parent)


def _standing(rows: Sequence[sqlite3.Row]) -> sqlite3.Row:
    """Of turns with the same conversation: the one that is open, else one that was sent, else the latest."""
    return min(reversed(rows), key=lambda row: _PRECEDENCE.get(row["state"], len(_PRECEDENCE)))


def await_missing(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline, position: int) -> None:
    """Note the responses behind `position` that the request has and we have not: their turns may still come."""
    for i in [i for i in outline.responses if i > position][:MOST_AWAITED]:
        if messages := messages_behind(outline, i):
            state = NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, messages=messages,
                              next_turn_id=turn.turn_id)
            tables.await_response(db, turn.session_id, outline.digests[i], turn.turn_id, len(outline.messages) - i,
                                  state.SerializeToString())


def infer_session(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline) -> str:
    """The session of a turn that came without one: of the client's conversation that it continues, else a new one."""
    session = None
    for i in outline.responses:
        if row := tables.conversation(db, turn.client, outline.digests[i]):
            session = row["session"]
            break
    turn.session_source = (turn_pb2.SESSION_SOURCE_INFERRED if session else turn_pb2.SESSION_SOURCE_NEW)
    session = session or new_id("session_")
    tables.remember_conversation(db, turn.client, outline.response, session)
    return session
