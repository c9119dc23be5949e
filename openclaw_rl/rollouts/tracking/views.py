"""Queries of sessions and turns."""

from __future__ import annotations

import sqlite3

from openclaw_rl.rollouts.tracking import tables, turn_filters
from openclaw_rl.rpc.errors import invalid, not_found
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import environment_pb2, turn_pb2

DEFAULT_PAGE, LARGEST_PAGE = 200, 1000
#: Newest turns of a session that `session` returns.
SESSION_TURNS = 5000


def row_of_session(store: Database, session_id: str) -> sqlite3.Row:
    """The row of a session.

    Raises:
        MeshError: there is no such session.
    """
    rows = store.query("SELECT * FROM sessions WHERE id = ?", (session_id,))
    if not rows:
        raise not_found("session", session_id, "ListTurns tells the sessions that there are")
    return rows[0]


def feedback(store: Database, session_id: str) -> list[turn_pb2.Feedback]:
    """Explicit feedback on a session's turns, by turn."""
    with store.reading() as db:
        turns = [row["turn"] for row in db.execute(
            "SELECT turn, min(seq) AS first FROM feedback WHERE turn IN (SELECT id FROM turns WHERE session = ?) "
            "GROUP BY turn ORDER BY first", (session_id,))]
        return [given for turn in turns for given in tables.feedback_on(db, turn)]


def session(store: Database, session_id: str) -> tuple[environment_pb2.Session, list[environment_pb2.TurnSummary]]:
    """A session and its turns, oldest first, superseded ones included.

    Raises:
        MeshError: there is no such session.
    """
    row = row_of_session(store, session_id)
    figures = store.query("SELECT count(*) AS turns, count(DISTINCT branch) AS branches FROM turns "
                          "WHERE session = ? AND state <> ?", (session_id, tables.SUPERSEDED))[0]
    turns = store.query(f"SELECT {tables.SUMMARY} FROM turns WHERE session = ? ORDER BY seq DESC LIMIT ?",
                        (session_id, SESSION_TURNS))
    result = environment_pb2.Session(session_id=session_id, ended=bool(row["ended"]), turns=figures["turns"],
                                     branches=figures["branches"])
    result.started_at.FromNanoseconds(int(row["started"] * 1e9))
    result.last_active_at.FromNanoseconds(int(row["active"] * 1e9))
    return result, [tables.summary(row) for row in reversed(turns)]


def turns(store: Database, request: environment_pb2.ListTurnsRequest) -> environment_pb2.ListTurnsResponse:
    """List a page of turns, newest first. Turns requested by id are listed in any state. A search for a text may
    return a page that is not full and a token to continue.

    Raises:
        MeshError: the page's size or token is not allowed; too many ids, or ids and a session; an invalid filter.
    """
    if len(request.turn_ids) > LARGEST_PAGE:
        raise invalid("turn_ids", f"{len(request.turn_ids)} turns", f"at most {LARGEST_PAGE} turns")
    if request.turn_ids and request.session_id:
        raise invalid("session_id", request.session_id, "left out beside turn_ids")
    if not 0 <= request.page_size <= LARGEST_PAGE:
        raise invalid("page_size", request.page_size, f"from 0 to {LARGEST_PAGE}; 0 means {DEFAULT_PAGE}")
    size = request.page_size or DEFAULT_PAGE
    if request.page_token and not (request.page_token.isascii() and request.page_token.isdecimal()
                                   and len(request.page_token) <= 18):
        raise invalid("page_token", request.page_token, "next_page_token of an earlier answer")
    turn_filters.validate_filters(request)
    conditions: list[str] = []
    params: list[int | str] = []
    if request.session_id:
        conditions.append("session = ?")
        params.append(request.session_id)
    if request.turn_ids:
        conditions.append(f"id IN ({','.join('?' * len(request.turn_ids))})")
        params.extend(request.turn_ids)
    elif not request.include_superseded:
        conditions.append("state <> ?")
        params.append(tables.SUPERSEDED)
    rows, goes_on = turn_filters.find(store, request, int(request.page_token or 2**62), size + 1, conditions, params)
    token = rows[size - 1]["seq"] if len(rows) > size else goes_on
    return environment_pb2.ListTurnsResponse(turns=[tables.summary(row) for row in rows[:size]],
                                             next_page_token=str(token) if token else "")
