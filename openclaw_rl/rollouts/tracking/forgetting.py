"""Forgetting a session in the environment server's tables."""

from __future__ import annotations

import sqlite3

from openclaw_rl.privacy import Target
from openclaw_rl.rollouts.tracking import episode_table as episodes
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.storage.quarantine import Quarantine
from openclaw_rl.v1 import environment_pb2, turn_pb2

#: Statements that delete what hangs on a turn, given its id.
_OF_A_TURN = {"feedback": "DELETE FROM feedback WHERE turn = ?", "turns": "DELETE FROM turns WHERE id = ?",
              "awaited": "DELETE FROM awaited WHERE turn = ?"}


def forget(db: sqlite3.Connection, target: Target, outbox: Outbox, quarantine: Quarantine
           ) -> tuple[Target, dict[str, int], bool]:
    """Delete a session's turns and what belongs to them, in the caller's transaction.

    Returns:
        The target with the ids of its turns, the number of rows by kind, and whether the session is gone as a whole:
        no newer turn is in it.
    """
    rows = db.execute("SELECT id FROM turns WHERE session = ? AND requested < ?",
                      (target.session_id, int(target.before * 1e9)))
    target = target.with_turns(row["id"] for row in rows)

    def transition(payload: bytes) -> bool:
        return target.has_payload(turn_pb2.Transition, payload)

    def event(payload: bytes) -> bool:  # a refused event, or a turn's record that was damaged
        return target.has_payload(environment_pb2.PolicyEvent, payload) or target.has_payload(turn_pb2.Turn, payload)

    sent = outbox.forget(db, transition)
    target = target.with_turns(sent)
    removed = {kind: 0 for kind in _OF_A_TURN}
    for turn_id in target.turn_ids:
        for kind, statement in _OF_A_TURN.items():
            removed[kind] += db.execute(statement, (turn_id,)).rowcount
    removed["transitions"] = len(sent)
    removed["set aside"] = quarantine.forget(db, event)
    removed["feedback"] += _stray_feedback(db, target)
    removed["episodes"] = episodes.forget(db, target.session_id)
    gone = db.execute("SELECT 1 FROM turns WHERE session = ? LIMIT 1", (target.session_id,)).fetchone() is None
    if gone:
        for statement in ("DELETE FROM sessions WHERE id = ?", "DELETE FROM awaited WHERE session = ?",
                          "DELETE FROM conversations WHERE session = ?"):
            db.execute(statement, (target.session_id,))
    return target, {kind: count for kind, count in removed.items() if count}, gone


def _stray_feedback(db: sqlite3.Connection, target: Target) -> int:
    """Feedback on the session whose turn is not here."""
    found = [row["id"] for row in db.execute("SELECT id, payload FROM feedback WHERE instr(payload, ?)",
                                             (target.session_id.encode(),))
             if target.has_payload(turn_pb2.Feedback, row["payload"])]
    db.executemany("DELETE FROM feedback WHERE id = ?", [(id,) for id in found])
    return len(found)
