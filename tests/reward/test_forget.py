"""A forgotten session leaves the judge, whatever stage its turns are in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.privacy import Target
from openclaw_rl.privacy.erase import erase
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.v1 import common_pb2
from tests.privacy.test_forgetting import MARK, found
from tests.reward.factory import transition
from tests.reward.test_service import ACCEPTED, REJECTED, Desk, Model, statuses
from tests.support.waiting import eventually

LATER = 4_000_000_000.0  #: seconds since the epoch


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path)
    yield found
    found.close()


async def test_judgements_samples_and_what_was_set_aside_go(desk: Desk, tmp_path: Path) -> None:
    service = desk.service(RulesJudge())
    for session in ("ann", "bob"):
        for number in "12":
            await service.accept([transition(f"No, that's wrong. {MARK} {session}", session[0] + number,
                                       request=MARK, session_id=session)])
    forged = transition(f"{MARK} ann", "a1", session_id="ann")
    assert statuses(await service.accept([forged])) == [REJECTED]
    desk.samples.settle([common_pb2.Ack(id="a1", status=common_pb2.ACK_STATUS_REJECTED, reason="no"),
                         common_pb2.Ack(id="a2", status=common_pb2.ACK_STATUS_ACCEPTED)])
    desk.journal.flush()
    target, removed = await service.forget(Target("ann", LATER))
    assert target.turn_ids == {"a1", "a2"}, "the judgement of one that the trainer has knows its session"
    assert (removed["judgements"], removed["samples"], removed["set aside"]) == (2, 1, 1)
    assert removed["journal lines"] >= 2
    erase(service.queue._database)
    assert not found(tmp_path, "ann") and found(tmp_path, MARK)
    assert not service.queue.judgements(["a1", "a2"]) and len(service.queue.judgements(["b1", "b2"])) == 2
    assert [sample.transition.turn.turn_id for sample in desk.sent()] == ["b1", "b2"]
    await service.forget(Target("bob", LATER))
    erase(service.queue._database)
    assert not found(tmp_path, MARK)


async def test_what_waits_or_is_being_judged_goes_and_what_comes_late_is_let_go(desk: Desk) -> None:
    model = Model()
    model.gate.clear()
    service = desk.service(model)
    service.start()
    await service.accept([transition(turn_id=f"{session[0]}{i}", session_id=session) for i in range(3)
                    for session in ("ann", "bob")])
    await eventually(lambda: len(service._in_hand) == 2)
    await service.forget(Target("ann", LATER))
    assert service.queue.waiting == 3
    model.gate.set()
    await eventually(lambda: len(desk.sent()) == 3)
    assert {sample.transition.turn.session_id for sample in desk.sent()} == {"bob"} and service.queue.waiting == 0
    assert not service.queue.judgements(["a0", "a1", "a2"])
    await service.stop()
    service = desk.service(RulesJudge())  # after a restart
    assert statuses(await service.accept([transition(turn_id="a9", session_id="ann")])) == [ACCEPTED]
    assert not service.queue.judgements(["a9"]) and not desk.samples.rejected()
