"""Assignment of main turns to the branches of their session."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.context_edits import Change, compare
from openclaw_rl.rollouts.tracking.linking import Attempt, Link
from openclaw_rl.rollouts.tracking.next_state import SINGLE, Outline
from openclaw_rl.sessions.fingerprint import text_of
from openclaw_rl.v1 import turn_pb2

#: Latest conversations of a session to compare a request with.
_LEAVES = 8
#: Characters from which an answer is recognised by itself, without the message that it answered.
_DISTINCT = 80


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
    latter brings a next state only if it certainly contains our last answer, and something after it.
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
    leaf, position = _last_answer(outline, leaves)
    if leaf is not None and position > link.main_position:
        return Placement(turn.turn_id, leaf["id"], change.text, leaf, position)
    if change.compacted:
        return Placement(turn.turn_id, "", change.text)
    return Placement(turn.turn_id, link.parent, change.text, link.main, link.main_position)


def _last_answer(outline: Outline, leaves: Sequence[sqlite3.Row]) -> tuple[sqlite3.Row | None, int]:
    """The turn whose answer is the last one of the request, if that is certain."""
    answers = [i for i, place in enumerate(outline.places) if outline.messages[place].role == "assistant"]
    if not answers or answers[-1] == len(outline.places) - 1:
        return None, -1  # nothing follows it
    at = answers[-1]
    single = outline.singles[at]
    if outline.singles.count(single) > 1:
        return None, -1
    distinct = len(text_of(outline.messages[outline.places[at]])) >= _DISTINCT
    found = [leaf for leaf in leaves if leaf["trail"].endswith(single) and (
        distinct or (at > 0 and leaf["trail"][-2 * SINGLE:-SINGLE] == outline.singles[at - 1]))]
    return (found[0], outline.places[at]) if len(found) == 1 else (None, -1)
