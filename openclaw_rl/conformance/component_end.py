"""Checks of graceful shutdown: Drain and SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Level, Need, Skipped, check
from openclaw_rl.conformance.refusal import Refusal, refusal
from openclaw_rl.v1 import component_pb2

_WHERE = "component.proto: Drain"
#: Seconds for a server to end that has nothing to do.
_END_SECONDS = 20.0
#: Seconds for a draining server to say so.
_NOTICE = 0.5


@dataclass
class _Drained:
    """What was seen of a drain."""

    streams: dict[str, Refusal | None] = field(default_factory=dict)  #: how each open stream ended; None: quietly
    open: list[str] = field(default_factory=list)  #: streams that did not end
    answered: float = 0.0  #: time.monotonic() of Drain's answer
    health: list[tuple[float, str]] = field(default_factory=list)  #: what health said meanwhile: asked when, answer
    gone: bool = False  #: it takes no connections any more
    exit_code: int | None = None


@check("component.drain.grace", "A grace outside 0 s to 1 h is rejected with INVALID_ARGUMENT and stops nothing.",
       where=_WHERE, needs=[Need.DRAIN], level=Level.SHOULD)
async def drain_grace(kit: Context) -> None:
    request = component_pb2.DrainRequest(grace=Duration(seconds=-5))
    await kit.refused(kit.unary("ComponentService/Drain", request), grpc.StatusCode.INVALID_ARGUMENT,
                      what="a grace of -5 s")
    await kit.status()


@check("component.sigterm", "SIGTERM stops the server gracefully within 20 s, with exit code 0; it can be restarted.",
       where="design, Habits; deploy: how systemd and containers end a server", needs=[Need.START],
       after=["component.stats.cancel"], seconds=120)
async def sigterm(kit: Context) -> None:
    assert kit.process is not None
    call = kit.stream("ComponentService/WatchStats")
    await call.read()
    began = time.monotonic()
    await kit.restart(kill=False)
    code = kit.process.exit_code
    kit.expect(code == 0, f"it ended with code {code}" + (f", by signal {-code}, after {time.monotonic() - began:.0f} s"
                                                          if code is not None and code < 0 else ""))
    await kit.status()


@check("component.drain", "Drain is answered, and the server stops: within 20 s it accepts no new connections.",
       where=_WHERE,
       needs=[Need.DRAIN], after=["component.stats.cancel"], last=True, seconds=60)
async def drain(kit: Context) -> None:
    seen = kit.memo["drained"] = _Drained()
    streams = {"WatchStats": kit.stream("ComponentService/WatchStats")}
    await kit.within(streams["WatchStats"].read(), kit.deadline, "WatchStats was not answered")
    if kit.service.ring:
        with contextlib.suppress(Skipped):  # over TLS without the certificate of who may open it
            streams[kit.service.ring] = kit.stream(kit.service.ring)
            await asyncio.sleep(0.1)
    watch = asyncio.create_task(_health(kit, seen))
    try:
        await kit.unary("ComponentService/Drain", component_pb2.DrainRequest(grace=Duration(seconds=3)))
        seen.answered = time.monotonic()
        ends = {name: asyncio.create_task(_end(call)) for name, call in streams.items()}
        await asyncio.wait(ends.values(), timeout=_END_SECONDS)
        for name, task in ends.items():
            if task.done():
                seen.streams[name] = task.result()
            else:
                task.cancel()
                seen.open.append(name)
        end = time.monotonic() + _END_SECONDS
        while not seen.gone and time.monotonic() < end:
            seen.gone = not await _takes_connections(kit.address)
            await asyncio.sleep(0.05)
        if kit.process is not None:
            seen.exit_code = await kit.process.ended(_END_SECONDS)
    finally:
        watch.cancel()
    kit.expect(seen.gone, f"{_END_SECONDS:g} s after Drain it still takes connections")


@check("component.drain.streams", "Draining ends open streams with UNAVAILABLE, so that callers reconnect elsewhere.",
       where=_WHERE, needs=[Need.DRAIN], after=["component.drain"], last=True)
async def drain_streams(kit: Context) -> None:
    seen: _Drained = kit.memo["drained"]
    kit.expect(not seen.open, f"not ended: {', '.join(seen.open)}")
    wrong = [f"{name} ended {'quietly, with OK' if how is None else how}" for name, how in seen.streams.items()
             if (how is None and name != "WatchStats")
             or (how is not None and how.code is not grpc.StatusCode.UNAVAILABLE)]
    kit.expect(not wrong, "; ".join(wrong))


@check("component.drain.retry", "Streams ended by draining say when to reconnect: RetryInfo.", where=_WHERE,
       needs=[Need.DRAIN], after=["component.drain.streams"], level=Level.SHOULD, last=True)
async def drain_retry(kit: Context) -> None:
    seen: _Drained = kit.memo["drained"]
    wrong = [name for name, how in seen.streams.items() if how is not None and how.retry_after is None]
    kit.expect(not wrong, f"without RetryInfo: {', '.join(wrong)}")


@check("component.drain.health", "While draining, health never reports SERVING to a new request.", where=_WHERE,
       needs=[Need.DRAIN], after=["component.drain"], level=Level.SHOULD, last=True)
async def drain_health(kit: Context) -> None:
    seen: _Drained = kit.memo["drained"]
    said = [answer for asked, answer in seen.health if asked > seen.answered + _NOTICE]
    kit.expect("SERVING" not in said, f"{_NOTICE:g} s after Drain was answered health said {', '.join(said[:5])}")


@check("component.drain.exit", "A drained server exits with code 0.", where=_WHERE, needs=[Need.START],
       after=["component.drain"], last=True)
async def drain_exit(kit: Context) -> None:
    code = kit.memo["drained"].exit_code
    kit.expect(code is not None, f"its process has not ended {_END_SECONDS:g} s after it took no connections any more")
    kit.expect(code == 0, f"it ended with code {code}")


async def _end(call: object) -> Refusal | None:
    try:
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            pass
        return None
    except grpc.aio.AioRpcError as error:
        return refusal(error)


async def _health(kit: Context, seen: _Drained) -> None:
    """Ask health again and again until nobody answers."""
    await asyncio.sleep(0.05)
    while True:
        try:
            asked = time.monotonic()
            answer = await kit.health(kit.service.full_name)
            seen.health.append((asked, health_pb2.HealthCheckResponse.ServingStatus.Name(answer)))
        except grpc.aio.AioRpcError:
            return
        await asyncio.sleep(0.05)


async def _takes_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:
        return False
    writer.close()
    return True
