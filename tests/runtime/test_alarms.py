"""Alarms: since when, what they do to a status, and to the health that others watch."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from openclaw_rl.rpc import server as server_module
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.alarms import WAITING_SECONDS, Alarms, duration, outbox_alarms
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import AlreadyRuns, only_process
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import judge_pb2_grpc

JUDGE = "openclaw_rl.v1.JudgeService"



def running() -> pb.ComponentStatus:
    return pb.ComponentStatus(state=pb.COMPONENT_STATE_RUNNING, detail="at work")


def test_an_alarm_degrades_and_keeps_its_beginning() -> None:
    alarms = Alarms()
    first, second, third = running(), running(), running()
    alarms.report(first, [("a", "a is wrong"), ("b", "")])
    alarms.report(second, [("c", "c too"), ("a", "a is wrong"), ("a", "and worse"), ("a", "and worse")])
    assert (first.state, first.detail) == (pb.COMPONENT_STATE_DEGRADED, "a is wrong; at work")
    assert [(alarm.name, alarm.message) for alarm in second.alarms] == [("c", "c too"), ("a", "a is wrong; and worse")]
    assert second.alarms[1].since == first.alarms[0].since
    alarms.report(third, [])
    assert (third.state, third.detail, len(third.alarms)) == (pb.COMPONENT_STATE_RUNNING, "at work", 0)
    fourth = running()
    alarms.report(fourth, [("a", "again")])
    assert fourth.alarms[0].since.ToNanoseconds() > first.alarms[0].since.ToNanoseconds()


def test_an_alarm_leaves_a_starting_component_starting() -> None:
    status = pb.ComponentStatus(state=pb.COMPONENT_STATE_STARTING)
    Alarms().report(status, [("a", "a is wrong")])
    assert (status.state, status.detail, len(status.alarms)) == (pb.COMPONENT_STATE_STARTING, "a is wrong", 1)


def test_a_stream_is_an_alarm_when_its_oldest_message_waits_long() -> None:
    stats = pb.OutboxStats(name="turns", pending=3, oldest_age=Duration(seconds=int(WAITING_SECONDS) - 1),
                           last_error="it does not answer")
    assert outbox_alarms(stats, "env_server") == []
    stats.oldest_age.seconds = 7500
    [(name, message)] = outbox_alarms(stats, "env_server")
    assert name == "turns_waiting" and "3 turns wait on disk for env_server, the oldest for 2.1 h" in message
    assert "it does not answer" in message


def test_refused_messages_are_an_alarm_for_an_hour() -> None:
    stats = pb.OutboxStats(name="turns", rejected=2)
    [(name, message)] = outbox_alarms(stats, "env_server", time.time() - 60)
    assert name == "turns_refused" and "2 are kept" in message
    assert outbox_alarms(stats, "env_server", time.time() - 3700) == outbox_alarms(stats, "env_server") == []


def test_times_for_people() -> None:
    assert [duration(s) for s in (42, 720, 12600)] == ["42 s", "12 min", "3.5 h"]


async def test_health_of_the_alarms_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "ALARM_SECONDS", 0.02)
    raised: list[tuple[str, str]] = []
    alarms = Alarms()

    def status() -> pb.ComponentStatus:
        result = running()
        alarms.report(result, raised)
        return result

    server = ComponentServer("prm_judge", "127.0.0.1", 0, Home(tmp_path).create(), status)
    servicer = judge_pb2_grpc.JudgeServiceServicer()  # type: ignore[abstract]  # nobody calls it
    server.add(judge_pb2_grpc.add_JudgeServiceServicer_to_server, servicer, JUDGE)
    await server.start()
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    try:
        async with asyncio.timeout(10), connect(server.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=f"{JUDGE}/alarms"))
            assert (await watch.read()).status == serving
            raised.append(("judge_failing", "it fails"))
            assert (await watch.read()).status == not_serving
            for name, expected in (("alarms", not_serving), (JUDGE, serving), ("", serving)):
                assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == expected
            raised.clear()
            assert (await watch.read()).status == serving
            watch.cancel()
    finally:
        await server.stop(0)


def test_a_component_runs_once_in_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_rl.runtime.lock._PATIENCE", 0.1)
    home = Home(tmp_path)
    code = ("import sys; from pathlib import Path; from openclaw_rl.runtime.home import Home; "
            "from openclaw_rl.runtime.lock import only_process\n"
            "with only_process(Home(Path(sys.argv[1])), 'trainer'): print('mine', flush=True); sys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        text = f"trainer of .* runs already, as pid {other.pid}: .*home of its own"
        with pytest.raises(AlreadyRuns, match=text), only_process(home, "trainer"):
            pass
        with only_process(home, "prm_judge"):
            pass
        other.kill()
    monkeypatch.setattr("openclaw_rl.runtime.lock._PATIENCE", 5)
    with only_process(home, "trainer"):
        pass
