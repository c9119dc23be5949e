"""A forgotten session leaves the environment server."""

from __future__ import annotations

from pathlib import Path

from openclaw_rl.privacy import Target
from openclaw_rl.privacy.erase import erase
from openclaw_rl.v1 import common_pb2
from openclaw_rl.v1.turn_pb2 import Feedback, SessionEnd
from tests.privacy.test_forgetting import MARK, found
from tests.rollouts.harness import Harness, answer, turn, user

ACCEPTED = common_pb2.ACK_STATUS_ACCEPTED
LATER = 1_900_000_000  #: seconds since the epoch, behind all turns of these tests


def talk(harness: Harness, session: str) -> None:
    """Two turns, the first of which is sent; feedback; a request that refers to a response that is not here."""
    first = [user(f"{MARK} of {session}")]
    second = [*first, answer("one"), user(f"{MARK} again")]
    harness.tell(turn(f"{session[0]}1", first, "one", session_id=session))
    harness.tell(turn(f"{session[0]}2", second, MARK, session_id=session))
    harness.tell(turn(f"{session[0]}3", [*second, answer("lost"), user(MARK)], "three", session_id=session))
    harness.tell(Feedback(feedback_id=f"{session[0]}f1", turn_id=f"{session[0]}9", session_id=session, comment=MARK))
    harness.tell(Feedback(feedback_id=f"{session[0]}f2", turn_id=f"{session[0]}2", comment=MARK))


async def test_everything_of_the_session_goes_and_nothing_else(harness: Harness, tmp_path: Path) -> None:
    talk(harness, "ann")
    talk(harness, "bob")
    harness.tell(turn("a1", [user(MARK)], "forged", session_id="ann"))
    harness.outbox.set_aside(["a1"], "no")
    assert harness.tracker.quarantine.count == 1
    target, removed = await harness.tracker.forget(Target("ann", LATER))
    assert target.turn_ids == {"a1", "a2", "a3"}
    assert removed["turns"] == 3 and removed["feedback"] == 2 and removed["set aside"] == 1
    assert removed["transitions"] == 2 and removed["journal lines"] > 0
    assert set(harness.turns()) == set(harness.sent()) | {"b3"} == {"b1", "b2", "b3"}
    assert harness.tracker.sessions_open == 1
    erase(harness.store)
    assert not found(tmp_path, "ann") and found(tmp_path, MARK)
    await harness.tracker.forget(Target("bob", LATER))
    erase(harness.store)
    assert not found(tmp_path, MARK) and not found(tmp_path, "bob") and harness.tracker.sessions_open == 0
    assert not harness.journal.lines
    _, removed = await harness.tracker.forget(Target("bob", LATER))
    assert not any(removed.values()), "done already"


async def test_what_comes_late_is_let_go_and_a_new_conversation_is_welcome(harness: Harness) -> None:
    harness.tell(turn("a1", [user("hi")], "one", session_id="ann"))
    moment = turn("a2", [user("hi"), answer("one"), user("thanks")], "two", session_id="ann")
    late = SessionEnd(event_id="e", session_id="ann")
    await harness.tracker.forget(Target("ann", moment.requested_at.seconds + 0.5))
    harness.restart()
    assert harness.tell(moment, late, Feedback(feedback_id="f", turn_id="a1", comment=MARK)) == [ACCEPTED] * 3
    assert harness.tell(moment) == [ACCEPTED], "again, since its sender was killed"
    assert not harness.turns() and not harness.sent() and not harness.journal.lines and not harness.outbox.rejected()
    harness.tell(turn("a3", [user("hello again")], "three", session_id="ann"))
    assert set(harness.turns()) == {"a3"} and harness.tracker.sessions_open == 1


async def test_a_conversation_that_began_meanwhile_stays(harness: Harness) -> None:
    old = turn("a1", [user(MARK)], "one", session_id="ann")
    harness.tell(old, turn("a2", [user("new")], "two", session_id="ann"))
    target, _ = await harness.tracker.forget(Target("ann", old.requested_at.seconds + 0.5))
    assert target.turn_ids == {"a1"} and set(harness.turns()) == {"a2"} and harness.tracker.sessions_open == 1
