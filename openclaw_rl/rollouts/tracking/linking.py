"""Links of a new turn to earlier ones of its session, found by digest."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from openclaw_rl.rollouts.classification.framework_text import is_framework_text
from openclaw_rl.rollouts.classification.housekeeping import SessionContext
from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.next_state import Outline, messages_behind
from openclaw_rl.rollouts.tracking.response_flaws import Flaw
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.sessions.fingerprint import call_ids, own_text, text_of
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.turn_pb2 import NextState

#: Missing responses that one request waits for.
MOST_AWAITED = 8
#: Responses of a request per query.
_QUERY_BATCH = 8
#: Latest answers of a session to look for in a request.
_ANSWERS = 4
#: What a client appends to a response that it cut, without white space: Cline "[Response interrupted by ...]".
_CUT_NOTE = re.compile(rb"\[(?:Response|Request)interrupted[^\]]{1,200}\]$")
#: Order in which a request continues one of several turns with the same conversation.
_PRECEDENCE = {tables.OPEN: 0, tables.SENT: 1, tables.REJECTED: 1}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A new turn among the attempts at its request: its state and why, whether it may still be sent, whether it repeats
    another attempt."""

    state: int
    reason: str = ""
    keep: bool = True
    repeats: bool = False
    branch: str = ""  #: of the attempt that it repeats
    regenerates: str = ""  #: the attempt that already had its next state when this request was repeated


def compare_attempts(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline) -> Attempt:
    """Compare a new main turn with the recorded attempts at its request."""
    moment = (turn.requested_at.ToNanoseconds(), -turn.choice_index)
    attempts = tables.attempts(db, turn.session_id, outline.request)
    open_row = next((row for row in attempts if row["state"] == tables.OPEN), None)
    if open_row is not None:
        if moment < (open_row["requested"], -open_row["choice"]):
            return Attempt(tables.SUPERSEDED, f"turn {open_row['id']} stands for the request", repeats=True,
                        branch=open_row["branch"])
        tables.supersede(db, open_row["id"], f"turn {turn.turn_id}, a later attempt, took its place")
        return Attempt(tables.OPEN, repeats=True, branch=open_row["branch"])
    settled = next((row for row in attempts if row["requested"] >= moment[0] > 0), None)
    if settled is not None:
        return Attempt(tables.SUPERSEDED, f"turn {settled['id']} of the same request was sent already", keep=False,
                       repeats=True, branch=settled["branch"])
    # No such request yet, or it was repeated after the first answer had its next state.
    return Attempt(tables.OPEN, regenerates=attempts[-1]["id"] if attempts else "")


@dataclass(frozen=True, slots=True)
class Link:
    """The earlier turn that a request continues. Positions are those of the request's messages, -1 for none."""

    position: int = -1  #: of the last recorded response
    parent: str = ""  #: the turn that gave it
    branch: str = ""  #: that turn's
    main_position: int = -1  #: of the last response that is a main turn's
    main: sqlite3.Row | None = None  #: that turn
    side_responses: frozenset[bytes] = frozenset()  #: digests of responses behind it that are not main turns'


def find(db: sqlite3.Connection, session: str, outline: Outline) -> Link:
    """Find what the request continues, by the longest prefix that is a conversation of the session."""
    position, parent, branch = -1, "", ""
    side_responses: set[bytes] = set()
    left = outline.responses
    while left:
        # Nearly always the last response is recorded, and main: the others are not read.
        count = _QUERY_BATCH if len(left) < len(outline.responses) else 1
        some, left = left[:count], left[count:]
        rows: dict[bytes, list[sqlite3.Row]] = {}
        for row in tables.answered(db, session, [outline.digests[i] for i in some]):
            rows.setdefault(row["response"], []).append(row)
        for i in some:
            digest = outline.digests[i]
            if digest not in rows:
                continue
            if position < 0:
                preferred = _preferred(rows[digest], outline.messages[i])
                position, parent, branch = i, preferred["id"], preferred["branch"]
            if mains := [row for row in rows[digest] if row["class"] == turn_pb2.TURN_CLASS_MAIN]:
                found = Link(position, parent, branch, i, _preferred(mains, outline.messages[i]),
                             frozenset(side_responses))
                return _unfinished(db, session, outline, found) or found
            side_responses.add(digest)
    found = Link(position, parent, branch)
    return _unfinished(db, session, outline, found) or found


def session_context(db: sqlite3.Connection, session: str, outline: Outline, link: Link) -> SessionContext:
    """Collect what the session knows about a request, for its classification."""
    latest = tables.latest(db, session, _ANSWERS)
    return SessionContext(continues=bool(link.parent), others=bool(latest),
                        same_instructions=not latest or latest[0]["instructions"] in (None, outline.instructions),
                        answers=[row["response_text"] for row in latest])


def _unfinished(db: sqlite3.Connection, session: str, outline: Outline, found: Link) -> Link | None:
    """Find what the request continues if that is a response that was cut off or empty: the client has less of it than
    was recorded, has a stand-in for it, or left it out."""
    # Messages after which the response stands or should stand.
    places = [i for i in outline.places[:-1] if i >= max(found.position, found.main_position)
              and outline.messages[i].role in ("user", "tool")][-_QUERY_BATCH:]
    if not places:
        return None
    rows = tables.answering(db, session, [outline.digests[i] for i in places])
    for i in reversed(places):
        following = outline.messages[i + 1]
        fitting = [row for row in rows if row["conversation"] == outline.digests[i] and _may_be(row, following)]
        if fitting:
            row = _preferred(fitting, following)
            position = i + 1 if following.role == "assistant" else i
            return Link(position, row["id"], row["branch"], position, row, found.side_responses)
    return None


def _may_be(row: sqlite3.Row, message: turn_pb2.ChatMessage) -> bool:
    """Whether `message` may be the client's version of the turn's response."""
    if not row["response_text"].strip():  # empty: the client left it out, or says so
        return message.role != "assistant" or is_framework_text(text_of(message))
    text = own_text(message)
    if message.role != "assistant" or row["flaw"] != Flaw.CUT_OFF or not text or message.tool_calls:
        return False
    try:
        response = own_text(turn_pb2.Turn.FromString(row["payload"]).response)
    except (DecodeError, TypeError):
        return False
    return response.startswith(text) or response.startswith(_CUT_NOTE.sub(b"", text) or b"\0")


def _preferred(rows: Sequence[sqlite3.Row], message: turn_pb2.ChatMessage) -> sqlite3.Row:
    """Choose among turns with the same conversation: one whose tool calls have the ids that `message` has, then the
    open one, else a sent one, else the latest."""
    calls = call_ids(message)
    return min(reversed(rows), key=lambda row: (
        (row["calls"] or b"") != calls, _PRECEDENCE.get(row["state"], len(_PRECEDENCE))))


def await_missing(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline, position: int) -> None:
    """Note responses after `position` that are in the request but not recorded: their turns may still arrive."""
    for i in [i for i in outline.responses if i > position][:MOST_AWAITED]:
        if messages := messages_behind(outline, i):
            state = NextState(kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, messages=messages,
                              next_turn_id=turn.turn_id)
            tables.await_response(db, turn.session_id, outline.digests[i], turn.turn_id, len(outline.messages) - i,
                                  state.SerializeToString())


def infer_session(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline) -> str:
    """Infer the session of a turn without one: that of the client's conversation that it continues, else a new one."""
    session = None
    for i in outline.responses:
        if row := tables.conversation(db, turn.client, outline.digests[i]):
            session = row["session"]
            break
    turn.session_source = (turn_pb2.SESSION_SOURCE_INFERRED if session else turn_pb2.SESSION_SOURCE_NEW)
    session = session or new_id("session_")
    tables.remember_conversation(db, turn.client, outline.response, session)
    return session
