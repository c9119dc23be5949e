"""Judges that are wrong in what all components have: errors, health, status, reflection, their end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.v1 import component_pb2
from tests.conformance.wrong.fault import read_by, wrong
from tests.conformance.wrong.judge import SERVICE, Judge


class _Changed(ErrorInterceptor):
    """Sends other errors than the handlers raise."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def _coroutine(self, behaviour: Any, method: str, many: bool, streaming: bool) -> Any:
        right = super()._coroutine(behaviour, method, many, streaming)

        async def handle(requests: Any, context: Any) -> Any:
            return await right(requests, _Context(context, self._change))

        return handle


class _Context:
    def __init__(self, context: Any, change: Any) -> None:
        self._context, self._change = context, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: Any, message: str = "", trailing: Any = ()) -> None:
        if trailing:  # else it is the health's
            code, message, trailing = self._change(code, message, trailing)
        await self._context.abort(code, message, trailing)


def _without(detail: Any) -> Any:
    """A change that leaves one kind of details out."""
    def change(code: Any, message: str, trailing: Any) -> Any:
        status = status_pb2.Status.FromString(trailing[0][1])
        kept = [one for one in status.details if not one.Is(detail.DESCRIPTOR)]
        del status.details[:]
        status.details.extend(kept)
        return code, message, ((trailing[0][0], status.SerializeToString()),)

    return change


@wrong("component.errors.details", "no ErrorInfo of the domain openclaw-rl: Forget without a session")
class NoDetails(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(lambda code, message, trailing: (code, message, ()))


@wrong("component.errors.fields", "Judge of nothing: transition is not named")
class NoFields(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(_without(error_details_pb2.BadRequest))


@wrong("component.errors.code", "Judge of nothing was answered INTERNAL .*, not INVALID_ARGUMENT")
class WrongCode(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(lambda code, message, trailing: (
            code if message.startswith("grace") else grpc.StatusCode.INTERNAL, message, trailing))


@wrong("component.errors.message", "no message: Forget without a session")
class NoMessage(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(lambda code, message, trailing: (code, "", trailing))


@wrong("component.health", "UNIMPLEMENTED")
class NoHealth(Judge):
    async def add_health(self, server: grpc.aio.Server) -> None:
        pass


@wrong("component.health", "'openclaw_rl.v1.JudgeService' is NOT_SERVING")
class HealthNotServing(Judge):
    async def add_health(self, server: grpc.aio.Server) -> None:
        await super().add_health(server)
        await self.health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)


@wrong("component.health.unknown", "Check of 'no.such.Service' succeeded")
class HealthKnowsAll(Judge):
    async def add_health(self, server: grpc.aio.Server) -> None:
        class Health(health_pb2_grpc.HealthServicer):
            async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:
                return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

            async def Watch(self, request: Any, context: Any) -> AsyncIterator[health_pb2.HealthCheckResponse]:
                yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
                await asyncio.sleep(60)

        health_pb2_grpc.add_HealthServicer_to_server(Health(), server)


@wrong("component.reflection.contract", "Vote field 2 is string score, not int32 score")
class AnotherContract(Judge):
    def describe(self, file: FileDescriptorProto) -> None:
        for message in file.message_type:
            if message.name == "Vote":
                message.field[1].type = message.field[1].TYPE_STRING


@wrong("component.status", "name is 'my_judge', and the component of openclaw_rl.v1.JudgeService is 'prm_judge'")
class WrongName(Judge):
    name = "my_judge"

    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        async for answer in super().on_stats(seconds):
            answer.status.name = Judge.name
            yield answer


@wrong("component.status", "contract_version is 2.0; this kit is for 1.x")
class NextMajor(Judge):
    def status(self) -> component_pb2.ComponentStatus:
        status = super().status()
        status.contract_version = "2.0"
        return status


@wrong("component.stats", r"4 answers within 0\.\d+ s, asked for one every 0.2 s")
class StatsWithoutPause(Judge):
    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        async for answer in super().on_stats(0.005 if seconds == 0.2 else seconds):
            yield answer


@wrong("component.stats.cancel", "20 watches at once were not answered")
class IgnoresCancellation(Judge):
    """A watch keeps its place when its caller is gone; there are 60."""

    places = 60

    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        while self.places <= 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.places -= 1
        async for answer in super().on_stats(seconds):
            yield answer


@wrong("component.big", "a request of 8 MiB was answered RESOURCE_EXHAUSTED")
class SmallMessages(Judge):
    limit = 5 * 2**20


@wrong("component.big.refused", "a request of 17 MiB succeeded")
class NoLimit(Judge):
    limit = -1


@wrong("component.drain", "s after Drain it still takes connections")
class DrainIgnored(Judge):
    async def drain(self) -> None:
        pass


@wrong("component.drain.retry", "without RetryInfo: JudgeTransitions")
class DrainCuts(Judge):
    async def end_streams(self) -> None:
        pass


@wrong("component.sigterm", "it ended with code 3", start=True)
class EndsWithThree(Judge):
    exit_code = 3


@wrong("component.slow", "with 30 watches that nobody reads GetStatus")
class FewAtATime(Judge):
    """Serves 25 calls at a time, watches among them, as with a thread for each."""

    places = asyncio.Semaphore(25)

    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        async with self.places:
            async for answer in super().on_stats(seconds):
                yield answer

    async def on_status(self) -> component_pb2.ComponentStatus:
        async with self.places:
            return self.status()


@wrong("component.garbage", "UNAVAILABLE", start=True)
class DiesOfGarbage(Judge):
    def add_services(self, server: grpc.aio.Server) -> None:
        right = component_pb2.GetStatusRequest.FromString

        def fatal(payload: bytes) -> component_pb2.GetStatusRequest:
            try:
                return right(payload)
            except Exception:
                os._exit(9)

        with read_by(component_pb2, "GetStatusRequest", fatal):
            super().add_services(server)


@wrong("component.secure.role", "JudgeTransitions with the operator's certificate succeeded")
class LetsAnybodyJudge(Judge):
    """Asks for certificates and not whose they are."""

    roles = False


@wrong("component.secure.certificate", "a call without a certificate succeeded")
class AsksForNoCertificate(Judge):
    certified = roles = False
