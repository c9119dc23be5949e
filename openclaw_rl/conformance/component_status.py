"""Checks of health, status and stats, common to all components."""

from __future__ import annotations

import asyncio
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from openclaw_rl.conformance.context import COMPONENT, Context
from openclaw_rl.conformance.frame import Level, Skipped, check
from openclaw_rl.rpc.messages import to_duration
from openclaw_rl.v1 import component_pb2

_HEALTH = "design, Contracts: all four serve grpc.health.v1.Health (per service)"
_SERVING = health_pb2.HealthCheckResponse.SERVING


@check("component.serves", "The address serves the requested service.",
       where="the service's file in protos/openclaw_rl/v1", gate=True)
async def serves(kit: Context) -> None:
    method = kit.service.ring or "GetPolicy"
    try:
        if kit.service.ring:
            call = kit.stream(method, timeout=kit.deadline, channel=_sender(kit))
            await call.done_writing()
            async for _ in call:
                pass
        else:
            await kit.unary(method)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            return
        name = ""
        try:
            name = (await kit.status()).name
        except grpc.aio.AioRpcError:
            pass
        kit.fail(f"{kit.service.full_name}/{method} is UNIMPLEMENTED there"
                 + (f"; it says that it is {name!r}" if name else ""))


def _sender(kit: Context) -> grpc.aio.Channel:
    """Whoever may open the ring stream, or else the kit itself: a refusal tells as well that it is served."""
    try:
        return kit.sender
    except Skipped:
        return kit.channel


@check("component.status", "GetStatus reports the component's name, state, start time and the contract version it was "
                           "built with.", where="component.proto: ComponentStatus")
async def status(kit: Context) -> None:
    found = await kit.status()
    kit.memo["status"] = found
    kit.expect(found.name == kit.service.component,
               f"name is {found.name!r}, and the component of {kit.service.full_name} is {kit.service.component!r}")
    known = component_pb2.ComponentState.values()
    kit.expect(found.state and found.state in known, f"state is {found.state}, one of {known[1:]} was expected")
    kit.expect(found.HasField("started_at") and 0 < found.started_at.seconds < time.time() + 300,
               f"started_at is {found.started_at.seconds} s since 1970")
    if found.contract_version:
        parts = found.contract_version.split(".")
        kit.expect(len(parts) == 2 and all(part.isdecimal() for part in parts),
                   f"contract_version is {found.contract_version!r}; it must be MAJOR.MINOR")
        kit.expect(parts[0] == "1", f"contract_version is {found.contract_version}; this kit is for 1.x")


@check("component.status.facts", "GetStatus reports process id, address, package version and the state of the "
                                 "component's own ring stream.", where="component.proto: ComponentStatus",
       level=Level.SHOULD,
       after=["component.status"])
async def status_facts(kit: Context) -> None:
    found = await kit.status()
    missing = [name for name in ("pid", "address", "package_version", "contract_version") if not getattr(found, name)]
    if kit.service.name != "trainer" and not found.outboxes:
        missing.append("outboxes")
    kit.expect(not missing, f"not set: {', '.join(missing)}")


@check("component.health", "Health reports SERVING for the service's full name and for \"\".", where=_HEALTH)
async def health(kit: Context) -> None:
    for name in ("", kit.service.full_name):
        found = await kit.health(name)
        kit.expect(found == _SERVING, f"{name!r} is {_health_name(found)}")


@check("component.health.component", "Health reports SERVING for ComponentService too.", where=_HEALTH,
       level=Level.SHOULD, after=["component.health"])
async def health_component(kit: Context) -> None:
    found = await kit.health(COMPONENT.full_name)
    kit.expect(found == _SERVING, f"{COMPONENT.full_name!r} is {_health_name(found)}")


@check("component.health.unknown", "Health rejects unknown services with NOT_FOUND.",
       where="grpc.health.v1: Check", after=["component.health"])
async def health_unknown(kit: Context) -> None:
    await kit.refused(kit.health("no.such.Service"), grpc.StatusCode.NOT_FOUND, what="Check of 'no.such.Service'")


@check("component.health.watch", "Health's Watch reports the state at once and continues until cancelled.",
       where="grpc.health.v1: Watch", level=Level.SHOULD, after=["component.health"])
async def health_watch(kit: Context) -> None:
    stub = health_pb2_grpc.HealthStub(kit.connect())  # type: ignore[no-untyped-call]
    call = stub.Watch(health_pb2.HealthCheckRequest(service=kit.service.full_name), timeout=kit.deadline)
    try:
        first = await kit.within(call.read(), min(3.0, kit.deadline), "no answer within 3 s")
        kit.expect(first is not grpc.aio.EOF and first.status == _SERVING, f"the first answer is {first}")
    finally:
        call.cancel()


@check("component.stats", "WatchStats reports the status at once, and then every `interval`.",
       where="component.proto: WatchStatsRequest.interval")
async def stats(kit: Context) -> None:
    request = component_pb2.WatchStatsRequest(interval=to_duration(0.2))
    call = kit.stream("ComponentService/WatchStats", request, timeout=kit.deadline)
    began = time.monotonic()
    times: list[float] = []
    for _ in range(4):
        answer = await kit.within(call.read(), 3, f"{len(times)} answers within {time.monotonic() - began + 3:.1f} s, "
                                  "asked for one every 0.2 s")
        kit.expect(answer is not grpc.aio.EOF, f"the stream ended by itself behind {len(times)} answers")
        times.append(time.monotonic() - began)
        kit.expect(answer.status.name == kit.service.component, f"status.name is {answer.status.name!r}")
        kit.expect(answer.HasField("at"), "`at` is not set")
    kit.expect(times[-1] - times[0] >= 0.3, f"4 answers within {times[-1] - times[0]:.2f} s, asked for one every 0.2 s")


@check("component.stats.interval", "An interval below 100 ms or above 1 h is rejected with INVALID_ARGUMENT.",
       where="component.proto: WatchStatsRequest.interval")
async def stats_interval(kit: Context) -> None:
    for seconds in (0.01, 4000.0):
        call = kit.stream("ComponentService/WatchStats", component_pb2.WatchStatsRequest(interval=to_duration(seconds)),
                          timeout=kit.deadline)
        await kit.refused(_first(call), grpc.StatusCode.INVALID_ARGUMENT, what=f"an interval of {seconds:g} s")


@check("component.stats.cancel", "A cancelled watch ends at the server, which keeps responding however many were "
                                 "cancelled.", where="design, Contracts: cancelling a call cancels its work")
async def stats_cancel(kit: Context) -> None:
    channel = kit.connect()
    request = component_pb2.WatchStatsRequest(interval=to_duration(0.1))
    for _ in range(10):
        calls = [kit.stream("ComponentService/WatchStats", request, channel=channel) for _ in range(20)]
        for answer in await kit.within(asyncio.gather(*(call.read() for call in calls)), kit.deadline,
                                       f"20 watches at once were not answered within {kit.deadline:g} s"):
            kit.expect(answer is not grpc.aio.EOF, "a watch ended by itself")
        for call in calls:
            call.cancel()
    await kit.unary("ComponentService/GetStatus", channel=channel)


async def _first(call: object) -> object:
    return await call.read()  # type: ignore[attr-defined]


def _health_name(status: int) -> str:
    return health_pb2.HealthCheckResponse.ServingStatus.Name(status)  # type: ignore[arg-type]
