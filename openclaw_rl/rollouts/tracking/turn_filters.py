"""Filters of turn listings, as SQL that stays fast however many turns are kept."""

from __future__ import annotations

import sqlite3

from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rpc.errors import invalid
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import environment_pb2, turn_pb2

#: Rows scanned per search for a text (about 20 ms); the next page continues after them.
SCAN = 50_000
#: Special characters of GLOB patterns.
_SPECIAL = frozenset("*?[")


def validate_filters(request: environment_pb2.ListTurnsRequest) -> None:
    """Check a listing's filters.

    Raises:
        MeshError: an unknown class, a negative version, a text that nothing can contain.
    """
    allowed = turn_pb2.TurnClass.values()
    for turn_class in request.turn_classes:
        if turn_class not in allowed:
            raise invalid("turn_classes", turn_class, "a TurnClass")
    if request.HasField("policy_version") and request.policy_version < 0:
        raise invalid("policy_version", request.policy_version, "0 (the base model) or more")
    if len(request.text) > tables.EXCERPT:
        raise invalid("text", request.text, f"at most {tables.EXCERPT} characters, since that much of a text is kept")
    if "\0" in request.text:
        raise invalid("text", request.text, "without a NUL character")


def find(store: Database, request: environment_pb2.ListTurnsRequest, before: int, count: int, conditions: list[str],
         params: list[int | str]) -> tuple[list[sqlite3.Row], int]:
    """Find the newest turns below `before` that match the request's class, version and text and further conditions.

    Args:
        count: limit of rows.
        conditions, params: more of the WHERE clause.

    Returns:
        The rows, newest first, and where a search that stopped after `SCAN` rows continues; 0 if it is complete.
    """
    conditions, params = ["seq < ?", *conditions], [before, *params]
    goes_on = 0
    if request.text:
        newest = store.query("SELECT coalesce(max(seq), 0) AS seq FROM turns")[0]["seq"]
        low = min(before, newest + 1) - SCAN
        goes_on = max(0, low)
        conditions += ["seq >= ?", "(request_text GLOB ? OR response_text GLOB ?)"]
        params += [low, *[_pattern(request.text)] * 2]
    classes: list[int | None] = list(dict.fromkeys(request.turn_classes))
    plain = "+" if request.session_id else ""  # no index on this column: a session's turns are found by the session
    if request.HasField("policy_version"):
        conditions.append(f"{plain}version = ?")
        params.append(request.policy_version)
        classes = classes or list(turn_pb2.TurnClass.values())
    rows: list[sqlite3.Row] = []
    for turn_class in classes or [None]:  # one query each, so that an index yields the rows in order
        own = [] if turn_class is None else [turn_class]
        where = " AND ".join([*conditions, *([f"{plain}class = ?"] if own else [])])
        rows += store.query(f"SELECT {tables.SUMMARY} FROM turns WHERE {where} ORDER BY seq DESC LIMIT ?",
                            (*params, *own, count))
    rows.sort(key=lambda row: -int(row["seq"]))
    return rows[:count], goes_on


def _pattern(text: str) -> str:
    """A GLOB pattern for texts that contain this one in any case. (LIKE ignores the case of ASCII letters only.)"""
    return f"*{''.join(map(_either_case, text))}*"


def _either_case(char: str) -> str:
    if char in _SPECIAL:
        return f"[{char}]"
    forms = {form for form in (char, char.lower(), char.upper()) if len(form) == 1}
    return char if len(forms) == 1 else f"[{''.join(sorted(forms))}]"
