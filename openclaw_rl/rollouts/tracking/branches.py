"""Assignment of main turns to the branches of their session."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.context_edits import Change, compare
from openclaw_rl.rollouts.tracking.linking import Attempt, Link
from openclaw_rl.rollouts.tracking.next_state import SINGLE, Outline
from openclaw_rl.sessions.fingerprint import call_ids, text_of
from openclaw_rl.v1 import turn_pb2

#: Latest conversations of a session to compare a request with.
_LEAVES = 8
#: Characters from which an answer is recognised by itself, wherever it stands.
_DISTINCT = 80
#: Answers of a request that are looked for, the latest first.
_ANSWERS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """A turn's branch and what it continues."""

    branch: str
    parent: str
    change: str = ""  #: how the context differs from before; empty if it does not
    continues: sqlite3.Row | None = None  #: the main turn whose next state the request brings
    position: int = -1  #: of that turn's response in the request


def assign(db: sqlite3.Connection, turn: turn_pb2.Turn, outline: Outline, link: Link, attempt: Attempt) -> Placement:
    """Assign a main turn to a branch.

    A branch is opened by a request that continues nothing, and by one whose context differs from the session's. The
    latter brings a next state only if it contains our last answer in its place, and something after it.
    """
    branch = link.branch or turn.turn_id
    if attempt.repeats:
        return Placement(attempt.branch or branch, link.parent, "", link.main, link.main_position)
    if attempt.regenerates:
        change_text = f"regenerated: turn {attempt.regenerates} answered the same request"
        return Placement(turn.turn_id, link.parent, change_text, link.main, link.main_position)
    plain = link.main is not None and link.main["leaf"] and link.main_position >= max(outline.responses, default=-1)
    leaves = [] if plain else tables.leaves(db, turn.session_id, _LEAVES)
    changes = [found for leaf in leaves if (found := compare(leaf["trail"], outline))]
    if not changes:
        return Placement(branch, link.parent, "", link.main, link.main_position)
    change: Change = max(changes, key=lambda change: change.common)
    leaf, position = _last_answer(outline, leaves, link.main_position)
    if leaf is not None:
        return Placement(turn.turn_id, leaf["id"], change.text, leaf, position)
    if change.compacted:
        return Placement(turn.turn_id, "", change.text)
    return Placement(turn.turn_id, link.parent, change.text, link.main, link.main_position)


def _last_answer(outline: Outline, leaves: Sequence[sqlite3.Row], after: int) -> tuple[sqlite3.Row | None, int]:
    """The turn whose answer is the latest known one of the request behind position `after`, and where that is; None if
    several turns might be meant."""
    answers = [at for at, place in enumerate(outline.places[:-1])  # something follows it
               if place > after and outline.messages[place].role == "assistant"]
    for at in answers[:-_ANSWERS - 1:-1]:
        found = [leaf for leaf in leaves if leaf["trail"].endswith(outline.singles[at])]
        calls = call_ids(outline.messages[outline.places[at]])
        found = [leaf for leaf in found if (leaf["calls"] or b"") == calls] or found
        if in_place := [leaf for leaf in found if len(leaf["trail"]) == (at + 1) * SINGLE] or [
                leaf for leaf in found if _certain(outline, at, leaf, newest=leaf is leaves[0])]:
            return (in_place[0], outline.places[at]) if len(in_place) == 1 else (None, -1)
    return None, -1


def _certain(outline: Outline, at: int, leaf: sqlite3.Row, newest: bool) -> bool:
    """Whether an answer that stands elsewhere than before is the leaf's all the same: it is long, it answers the same
    message, or it is the session's last one and the request has no other like it."""
    return (len(text_of(outline.messages[outline.places[at]])) >= _DISTINCT
            or (at > 0 and leaf["trail"][-2 * SINGLE:-SINGLE] == outline.singles[at - 1])
            or (newest and outline.singles.count(outline.singles[at]) == 1))
