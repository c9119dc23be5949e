"""A component in a gRPC server that is not its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from openclaw_rl.api import embed
from openclaw_rl.client import AsyncComponentServiceClient, AsyncJudgeServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.runtime.lock import AlreadyRuns, only_process


class Clock(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc comes without types
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        async def now(request: bytes, context: grpc.aio.ServicerContext) -> Timestamp:
            return Timestamp(seconds=7)

        return grpc.unary_unary_rpc_method_handler(now, response_serializer=Timestamp.SerializeToString) \
            if details.method == "/example.Clock/Now" else None


class Yours:
    """Somebody's server with a service and a health service of its own."""

    def __init__(self, home: Home) -> None:
        self.home, self.health = home, health.aio.HealthServicer()
        self.server = grpc.aio.server(options=embed.GRPC_OPTIONS)
        self.server.add_generic_rpc_handlers([Clock()])
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def state(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

    async def now(self) -> int:
        async with grpc.aio.insecure_channel(self.address) as channel:
            call = channel.unary_unary("/example.Clock/Now", response_deserializer=Timestamp.FromString)
            return int((await call(b"")).seconds)


@pytest.fixture
async def yours(tmp_path: Path) -> AsyncIterator[Yours]:
    yours = Yours(Home(tmp_path).create())
    yield yours
    await yours.server.stop(0)


async def test_your_services_go_on_without_the_component(yours: Yours) -> None:
    judge = embed.Embedded("prm_judge", home=yours.home)
    with pytest.raises(RuntimeError, match="await add_to"):
        judge.listening(yours.address)
    await judge.add_to(yours.server, yours.health)
    await yours.server.start()
    assert read_record(yours.home, "prm_judge") is None
    judge.listening(yours.address)
    await yours.health.set("", health_pb2.HealthCheckResponse.SERVING)  # yours to say

    async with AsyncJudgeServiceClient(home=yours.home) as client, \
            AsyncComponentServiceClient(yours.address, component="prm_judge") as component:
        with pytest.raises(MeshError) as caught:
            await client.judge(transition={})
        assert caught.value.reason == "INVALID_ARGUMENT" and caught.value.violations
        assert (await component.get_status()).status.address == yours.address
        watch = asyncio.ensure_future(anext(aiter(client.watch_judgements())))
        serving = health_pb2.HealthCheckResponse
        assert await yours.state("openclaw_rl.v1.JudgeService") == serving.SERVING

        await judge.stop()
        with pytest.raises(MeshError) as caught:  # its streams end,
            await watch
        assert caught.value.retryable
        with pytest.raises(MeshError) as caught:  # and new calls get an answer
            await client.judge(transition={})
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE and "has stopped" in caught.value.message
        assert await yours.state("openclaw_rl.v1.JudgeService") == serving.NOT_SERVING
        assert await yours.state("") == serving.SERVING
    assert await yours.now() == 7
    assert read_record(yours.home, "prm_judge") is None
    await judge.wait()


async def test_what_keeps_a_component_from_starting_is_told(yours: Yours, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of policy_server, env_server, prm_judge, trainer"):
        embed.Embedded("judge", home=yours.home)
    with only_process(yours.home, "prm_judge"), pytest.raises(AlreadyRuns, match=r"prm_judge of .* runs already"):
        await embed.Embedded("prm_judge", home=yours.home).add_to(grpc.aio.server())

    judge = embed.Embedded("prm_judge", home=yours.home)
    await judge.add_to(yours.server, yours.health)
    with pytest.raises(RuntimeError, match="prm_judge runs already"):
        await judge.add_to(grpc.aio.server())
    with pytest.raises(RuntimeError, match="the server has prm_judge already"):
        await embed.Embedded("env_server", home=yours.home).add_to(yours.server, yours.health)
    await judge.stop()


async def test_several_components_in_one_process(yours: Yours) -> None:
    other = Yours(yours.home)
    judge, env = (embed.Embedded(name, home=yours.home) for name in ("prm_judge", "env_server"))
    for component, server in ((judge, yours), (env, other)):
        await component.add_to(server.server, server.health)
        await server.server.start()
        component.listening(server.address)
    for component, server in ((judge, yours), (env, other)):
        async with AsyncComponentServiceClient(server.address, component=component.name) as client:
            assert (await client.get_status()).status.name == component.name
    await judge.stop()
    async with AsyncComponentServiceClient(other.address, component="env_server") as client:
        assert (await client.get_status()).status.address == other.address
    await env.stop()
    await other.server.stop(0)


async def test_a_start_that_is_given_up_leaves_nothing(yours: Yours) -> None:
    judge = embed.Embedded("prm_judge", home=yours.home)
    starting = asyncio.ensure_future(judge.add_to(yours.server, yours.health))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await judge.stop()
    await judge.add_to(grpc.aio.server())
    await judge.stop()


async def test_the_door_says_when_there_is_nobody_behind_it(tmp_path: Path) -> None:
    policy = embed.Embedded("policy_server", home=Home(tmp_path))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(policy.app), base_url="http://yours") as client:
        answer = await client.get("/v1/models")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "not_running"
    assert answer.headers["retry-after"] == "1"
