"""The policy server's alarms: two trainers, versions refused again and again, turns that wait; status and /metrics."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.status import StatusReporter
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.versions.trainer_claim import REMEMBERED, TrainerClaim
from openclaw_rl.v1 import component_pb2
from openclaw_rl.weights.identity import identity
from tests.serving.peers import Server, Trainer
from tests.serving.test_chat_service import Rig


async def test_two_trainers_do_not_take_a_policy_server_from_each_other(tmp_path: Path, model: Path) -> None:
    server = Server(tmp_path / "policy_server", model)
    await server.start()
    first, second = (Trainer(tmp_path / name, model, lambda: server.address) for name in ("one", "two"))
    try:
        await first.publisher.start()
        first.offer(1)
        await first.until(lambda: first.activated != [])
        await second.publisher.start()
        await second.until(lambda: second.publisher.status()["reason"] == "ANOTHER_TRAINER")
        status = second.publisher.status()
        assert identity(first.store.root) in status["error"] and identity(second.store.root) in status["error"]
        name, message = server.service.trainers.alarm
        assert name == "two_trainers" and identity(second.store.root) in message
        second.offer(7)
        first.offer(2)
        await first.until(lambda: server.engine.active_version == 2)
        assert len(first.states) == 1, "its stream was left alone"
        await first.publisher.stop()
        await second.until(lambda: server.engine.active_version == 7)
        await first.publisher.stop()
    finally:
        for trainer in (first, second):
            await trainer.publisher.stop()
        await server.kill()


def test_a_trainer_takes_over_from_itself_and_one_without_an_id_from_any() -> None:
    clock = [0.0]
    trainers = TrainerClaim(lambda: clock[0])
    trainers.admit("a", False)
    trainers.admit("a", True)
    with pytest.raises(MeshError, match="stop one of the two") as caught:
        trainers.admit("b", True)
    assert caught.value.reason == "ANOTHER_TRAINER" and caught.value.retry_after
    assert trainers.alarm[1]
    clock[0] = REMEMBERED + 1
    assert trainers.alarm == ("two_trainers", ""), "the second one has gone"
    trainers.admit("", True)
    trainers.admit("b", True)


def test_an_identity_stays_with_the_folder_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    first = identity(tmp_path)
    assert first.startswith("trainer_") and identity(tmp_path) == first
    (tmp_path / "identity").write_bytes(b"\xff\n\n")
    assert identity(tmp_path) not in (first, "")


async def test_versions_refused_again_and_again_are_an_alarm_until_one_is_taken(tmp_path: Path, model: Path) -> None:
    server = Server(tmp_path / "policy_server", model)
    await server.start()
    trainer = Trainer(tmp_path / "trainer", model, lambda: server.address)
    try:
        await trainer.publisher.start()
        for version in (1, 2, 3):
            assert dict(server.service.alarms())["versions_rejected"] == ""
            trainer.write(version, model_id="other")
            trainer.publisher.offer(version)
            await trainer.until(lambda v=version: len(trainer.rejected) == v)
        message = dict(server.service.alarms())["versions_rejected"]
        assert "3 versions in a row were refused, the last one, 3, because it belongs to the base model" in message
        trainer.offer(4, parent=0)
        await trainer.until(lambda: server.engine.active_version == 4)
        await trainer.until(lambda: not dict(server.service.alarms())["versions_rejected"])  # told behind the switch
        assert dict(server.service.alarms())["versions_rejected"] == ""
    finally:
        await trainer.publisher.stop()
        await server.kill()


async def test_status_and_metrics_tell_the_alarms(tmp_path: Path, template: ChatTemplate) -> None:
    rig = Rig(tmp_path, template)
    board = StatusReporter(rig.turns, rig.recorder, rig.outbox, rig.store)
    board.engine = rig.engine
    metrics = Metrics(board.gauges, board.alarms)
    assert b'openclaw_component_degraded{component="policy_server"} 0.0' in metrics.text()[0]
    await rig.ask()
    rig.outbox._oldest = time.time() - 400
    status = board.status()
    assert status.state == component_pb2.COMPONENT_STATE_DEGRADED
    [alarm] = status.alarms
    assert alarm.name == "turns_waiting"
    assert "1 turns wait on disk for env_server, the oldest for 7 min" in status.detail
    text = metrics.text()[0]
    assert b'openclaw_component_degraded{component="policy_server"} 1.0' in text
    assert b'openclaw_alarm{component="policy_server",name="turns_waiting"} 1.0' in text
    rig.store.close()
