"""The server's plumbing, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from openclaw_rl.config import ConfigError
from openclaw_rl.rpc import errors, interceptor
from openclaw_rl.rpc.auth.tls import Credentials
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home, RunRecord, read_record, write_record
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import component_pb2_grpc, judge_pb2, judge_pb2_grpc
from tests.rpc.auth.certs import acting, make_certs

JUDGE = "openclaw_rl.v1.JudgeService"


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def Judge(self, request: Any, context: Any) -> Any:
        if request.transition.turn.turn_id == "bug":
            raise RuntimeError("secret detail")
        raise errors.exhausted("too many at once; repeat in 2 s", retry_after=2)

    async def JudgeTransitions(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            raise errors.invalid("transitions", [], "at least one")
        yield judge_pb2.JudgeTransitionsResponse()

    async def WatchJudgements(self, request: Any, context: Any) -> Any:
        try:
            yield judge_pb2.WatchJudgementsResponse(session_id="s")
            await asyncio.sleep(60)
        finally:
            self.closed.set()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).create()


@pytest.fixture
async def judge() -> Judge:
    return Judge()


@pytest.fixture
async def server(home: Home, judge: Judge) -> AsyncIterator[ComponentServer]:
    server = ComponentServer("prm_judge", "127.0.0.1", 0, home,
                             lambda: pb.ComponentStatus(state=pb.COMPONENT_STATE_RUNNING, counters={"votes": 3}))
    server.add(judge_pb2_grpc.add_JudgeServiceServicer_to_server, judge, JUDGE)
    await server.start()
    yield server
    await server.stop(0)


@pytest.fixture
async def channel(server: ComponentServer) -> AsyncIterator[grpc.aio.Channel]:
    async with connect(server.address) as channel:
        yield channel


async def test_a_request_of_millions_of_fields_is_refused_unread(channel: grpc.aio.Channel,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    judge = channel.unary_unary(f"/{JUDGE}/Judge")
    data = b"\x0a\x00" * (interceptor.MOST_FIELDS + 1)  # transitions without content, of which the last one counts

    async def told() -> errors.MeshError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await judge(data)
        return errors.from_rpc_error(caught.value)

    refused = await told()
    assert refused.reason == "INVALID_ARGUMENT" and f"more than {interceptor.MOST_FIELDS} fields" in refused.message
    monkeypatch.setattr(interceptor, "MOST_FIELDS", interceptor.MOST_FIELDS + 1)
    assert (await told()).reason != "INVALID_ARGUMENT"


@pytest.mark.parametrize("error", [errors.MeshError(grpc.StatusCode.INTERNAL, "STORE_UNUSABLE", "state.db: it is bad"),
                                   sqlite3.OperationalError("state.db: it is bad")])
async def test_a_component_whose_figures_cant_be_read_tells_that_in_its_status(
        home: Home, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def status() -> pb.ComponentStatus:
        raise error

    server = ComponentServer("trainer", "127.0.0.1", 0, home, status)
    await server.start()
    async with connect(server.address) as channel:
        told = (await component_pb2_grpc.ComponentServiceStub(channel).GetStatus(pb.GetStatusRequest())).status
        alarms = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="alarms"))
    await server.stop(0)
    assert told.state == pb.COMPONENT_STATE_DEGRADED and told.name == "trainer" and told.pid == os.getpid()
    assert [(alarm.name, alarm.message) for alarm in told.alarms] == [("state_unusable", "state.db: it is bad")]
    assert alarms.status == health_pb2.HealthCheckResponse.NOT_SERVING and "Traceback" not in caplog.text


async def test_status_is_completed_by_the_server(server: ComponentServer, channel: grpc.aio.Channel,
                                                 home: Home) -> None:
    stub = component_pb2_grpc.ComponentServiceStub(channel)
    status = (await stub.GetStatus(pb.GetStatusRequest())).status
    assert (status.name, status.pid, status.address) == ("prm_judge", os.getpid(), server.address)
    assert status.counters["votes"] == 3 and status.package_version and status.HasField("started_at")
    assert read_record(home, "prm_judge") == RunRecord("prm_judge", os.getpid(), server.address)


async def test_watch_stats_repeats_and_checks_the_interval(channel: grpc.aio.Channel) -> None:
    stub = component_pb2_grpc.ComponentServiceStub(channel)
    seen = []
    async for answer in stub.WatchStats(pb.WatchStatsRequest(interval=Duration(nanos=100_000_000))):
        seen.append(answer)
        if len(seen) == 3:
            break
    assert seen[0].at.ToNanoseconds() < seen[2].at.ToNanoseconds()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.WatchStats(pb.WatchStatsRequest(interval=Duration(nanos=1))).read()
    assert errors.from_rpc_error(caught.value).violations[0][0] == "interval"


async def test_a_mesh_error_arrives_whole(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await judge_pb2_grpc.JudgeServiceStub(channel).Judge(judge_pb2.JudgeRequest())
    error = errors.from_rpc_error(caught.value)
    assert (error.code, error.reason, error.retry_after) == (grpc.StatusCode.RESOURCE_EXHAUSTED,
                                                             "RESOURCE_EXHAUSTED", 2)
    assert error.retryable and error.message == "too many at once; repeat in 2 s"


async def test_a_fault_is_logged_under_its_incident_and_not_told(channel: grpc.aio.Channel,
                                                                 caplog: pytest.LogCaptureFixture) -> None:
    request = judge_pb2.JudgeRequest()
    request.transition.turn.turn_id = "bug"
    with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
        await judge_pb2_grpc.JudgeServiceStub(channel).Judge(request)
    error = errors.from_rpc_error(caught.value)
    assert error.code is grpc.StatusCode.INTERNAL and "secret" not in error.message and not error.retryable
    assert error.metadata["incident"] in caplog.text and "secret detail" in caplog.text


async def test_a_bidirectional_stream_sends_its_metadata_first_and_errors_with_details(
        channel: grpc.aio.Channel) -> None:
    call = judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions()
    await asyncio.wait_for(call.initial_metadata(), 5)  # nothing has been sent to it yet
    await call.write(judge_pb2.JudgeTransitionsRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert errors.from_rpc_error(caught.value).violations[0][0] == "transitions"


async def test_cancelling_a_call_ends_its_handler(channel: grpc.aio.Channel, judge: Judge) -> None:
    call = judge_pb2_grpc.JudgeServiceStub(channel).WatchJudgements(judge_pb2.WatchJudgementsRequest())
    assert (await call.read()).session_id == "s"
    call.cancel()
    await asyncio.wait_for(judge.closed.wait(), 5)


async def test_a_deadline_ends_the_call_and_its_handler(channel: grpc.aio.Channel, judge: Judge) -> None:
    call = judge_pb2_grpc.JudgeServiceStub(channel).WatchJudgements(judge_pb2.WatchJudgementsRequest(), timeout=0.2)
    assert (await call.read()).session_id == "s"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert errors.from_rpc_error(caught.value).reason == "DEADLINE_EXCEEDED"
    await asyncio.wait_for(judge.closed.wait(), 5)


async def test_an_rpc_that_is_not_written_yet_is_unimplemented(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await judge_pb2_grpc.JudgeServiceStub(channel).ListJudgements(judge_pb2.ListJudgementsRequest())
    assert errors.from_rpc_error(caught.value).code is grpc.StatusCode.UNIMPLEMENTED


async def test_health_follows_set_serving(server: ComponentServer, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=JUDGE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    server.set_serving(False)
    assert (await asyncio.wait_for(watch.read(), 5)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_resolves_every_symbol_and_has_the_comments(channel: grpc.aio.Channel, version: str) -> None:
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)

    async def answer(**request: Any) -> Any:
        return await ask(iter([reflection_pb2.ServerReflectionRequest(**request)])).read()

    names = {s.name for s in (await answer(list_services="")).list_services_response.service}
    itself = {f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha")}
    assert names == {JUDGE, "openclaw_rl.v1.ComponentService", "grpc.health.v1.Health", *itself}
    for symbol in (JUDGE, f"{JUDGE}.Judge", "openclaw_rl.v1.Vote", "openclaw_rl.v1.Vote.score",
                   "openclaw_rl.v1.ACK_STATUS_ACCEPTED", *names, *(f"{name}.ServerReflectionInfo" for name in itself)):
        found = await answer(file_containing_symbol=symbol)
        assert found.file_descriptor_response.file_descriptor_proto, f"{symbol}: {found}"
    method = await answer(file_containing_symbol=f"{JUDGE}.Judge")
    files = [descriptor_pb2.FileDescriptorProto.FromString(content)
             for content in method.file_descriptor_response.file_descriptor_proto]
    assert {name for file in files for name in file.dependency} <= {file.name for file in files}
    [service] = [file for file in files for each in file.service if f"{file.package}.{each.name}" == JUDGE]
    at = [method.name for method in service.service[0].method].index("Judge")
    [comment] = [place.leading_comments for place in service.source_code_info.location if place.path == [6, 0, 2, at]]
    assert comment.strip()
    by_name = await answer(file_by_filename=service.name)
    assert by_name.file_descriptor_response == method.file_descriptor_response
    for missing in ({"file_containing_symbol": f"{JUDGE}.Nothing"}, {"file_by_filename": "nothing.proto"},
                    {"all_extension_numbers_of_type": "nothing"},
                    {"file_containing_extension": {"containing_type": JUDGE, "extension_number": 1}}):
        assert (await answer(**missing)).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert (await answer()).error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


@pytest.mark.parametrize("rpc", ["Judge", "JudgeTransitions", "WatchJudgements"])
async def test_bytes_that_are_no_message(channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture,
                                         rpc: str) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.stream_stream(f"/{JUDGE}/{rpc}")(iter([b"\xff" * 9])).read()
    error = errors.from_rpc_error(caught.value)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert "9 bytes are not a message" in error.message and not caplog.records


async def test_a_port_in_use_is_named(server: ComponentServer, home: Home) -> None:
    port = int(server.address.rpartition(":")[2])
    second = ComponentServer("trainer", "127.0.0.1", port, home, pb.ComponentStatus)
    with pytest.raises(OSError, match=f"trainer can't listen on 127.0.0.1:{port}: the port is in use"):
        await second.start()
    assert read_record(home, "trainer") is None


async def test_an_address_of_another_machine_is_named(home: Home, tmp_path: Path) -> None:
    foreign = ComponentServer("trainer", "192.0.2.1", 0, home, pb.ComponentStatus)
    certs = make_certs(tmp_path / "certs", roles=("trainer",))
    with acting(Credentials(certs, "trainer")), \
            pytest.raises(OSError, match=r"trainer can't listen on 192\.0\.2\.1:0"):
        await foreign.start()


async def test_without_credentials_it_listens_on_loopback_only(home: Home) -> None:
    server = ComponentServer("trainer", "0.0.0.0", 0, home, pb.ComponentStatus)
    with pytest.raises(ConfigError, match=r"does not listen on 0\.0\.0\.0 without credentials.*openclaw-rl init"):
        await server.start()
    assert read_record(home, "trainer") is None


@pytest.mark.parametrize("way", ["signal", "drain"])
async def test_a_graceful_end(home: Home, way: str) -> None:
    graces = []

    async def on_drain(grace: float) -> None:
        graces.append(grace)
        async with connect(server.address) as channel:  # still answers while its work ends, and says so
            assert (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                    ).status == health_pb2.HealthCheckResponse.NOT_SERVING
            status = (await component_pb2_grpc.ComponentServiceStub(channel).GetStatus(pb.GetStatusRequest())).status
            assert status.state == pb.COMPONENT_STATE_DRAINING
        graces.append("done")

    server = ComponentServer("trainer", "127.0.0.1", 0, home, pb.ComponentStatus, on_drain)
    await server.start()
    running = asyncio.create_task(server.run_until_stopped())
    await asyncio.sleep(0)
    if way == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        async with connect(server.address) as channel:
            await component_pb2_grpc.ComponentServiceStub(channel).Drain(pb.DrainRequest(grace=Duration(seconds=7)))
    await asyncio.wait_for(running, 10)
    assert graces == [30.0 if way == "signal" else 7.0, "done"]
    assert read_record(home, "trainer") is None


async def test_a_drain_while_the_component_still_starts_is_told_by_health_at_once(server: ComponentServer,
                                                                                  channel: grpc.aio.Channel) -> None:
    await component_pb2_grpc.ComponentServiceStub(channel).Drain(pb.DrainRequest())
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_stopping_ends_open_streams_at_once_and_says_that_a_retry_makes_sense(server: ComponentServer,
                                                                                    channel: grpc.aio.Channel,
                                                                                    judge: Judge) -> None:
    watching = judge_pb2_grpc.JudgeServiceStub(channel).WatchJudgements(judge_pb2.WatchJudgementsRequest())
    health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    ring = judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions()
    await watching.read(), await health.read(), await ring.initial_metadata()
    await asyncio.wait_for(server.stop(60), 5)
    assert judge.closed.is_set()
    for call in (watching, ring):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = errors.from_rpc_error(caught.value)
        assert error.retryable and error.message == "this server is stopping; connect again"


async def test_another_process_record_is_left_alone(home: Home) -> None:
    server = ComponentServer("trainer", "127.0.0.1", 0, home, pb.ComponentStatus)
    await server.start()
    newer = RunRecord("trainer", 1, "127.0.0.1:1")
    write_record(home, newer)
    await server.stop(0)
    assert read_record(home, "trainer") == newer
