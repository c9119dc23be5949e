"""A judge that does all right, small enough to have one thing wrong: the wrong ones of `judges.py` override a method.

Run as a process it takes the name of a fault: python -m tests.conformance.wrong.judge --fault NAME --address HOST:PORT
--data DIR --next HOST:PORT.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from openclaw_rl.rpc.auth import tls
from openclaw_rl.rpc.auth.authorize import Authorizer
from openclaw_rl.rpc.channel import MAX_MESSAGE
from openclaw_rl.rpc.contract import CONTRACT_VERSION
from openclaw_rl.rpc.errors import MeshError, invalid, unimplemented
from openclaw_rl.rpc.identified import IdentifiedChannel
from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.rpc.membership import Membership, confirm
from openclaw_rl.rpc.messages import now
from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.v1 import (
    common_pb2,
    component_pb2,
    component_pb2_grpc,
    judge_pb2,
    judge_pb2_grpc,
    trainer_pb2,
    turn_pb2,
)
from tests.conformance.wrong.store import Store

SERVICE = judge_pb2.DESCRIPTOR.services_by_name["JudgeService"].full_name
COMPONENT = component_pb2.DESCRIPTOR.services_by_name["ComponentService"].full_name
SUBMIT = "/openclaw_rl.v1.TrainerService/SubmitSamples"


class Judge:
    """The server.

    Args:
        data: folder for its file; None keeps all in memory.
        next: HOST:PORT of the trainer.
    """

    name = "prm_judge"
    limit = MAX_MESSAGE  #: bytes of a message
    certs: Path | None = None  #: folder with certificates; None for plain text
    certified = roles = True  #: with TLS: callers need a certificate, and one of the right role
    exit_code = 0  #: of a process that SIGTERM ends

    def __init__(self, address: str, data: Path | None, next: str) -> None:
        self.address, self.next = address, next
        self.store = self.make_store(data)
        self.stop_requested = asyncio.Event()
        self.wake = asyncio.Event()
        self.lock = asyncio.Lock()
        self.watchers: list[tuple[str, asyncio.Queue[judge_pb2.WatchJudgementsResponse]]] = []
        self.started, self.delivered, self.connected = now(), 0, False
        self.us = self.make_membership()
        self.interceptor = self.make_interceptor()
        self.health = health.aio.HealthServicer()

    # -- what a fault may change ------------------------------------------------------------------------------------

    def make_store(self, data: Path | None) -> Store:
        if data is not None:
            data.mkdir(parents=True, exist_ok=True)
        return Store(str(data / "judge.db") if data else ":memory:")

    def make_interceptor(self) -> ErrorInterceptor:
        return ErrorInterceptor()

    def make_membership(self) -> Membership:
        return Membership("mesh-small", self.name)

    def judge(self, transition: turn_pb2.Transition) -> turn_pb2.Judgement:
        said = [one.score for one in transition.next_state.feedback]
        score = (said[-1] > 0) - (said[-1] < 0) if said else 0
        return turn_pb2.Judgement(turn_id=transition.turn.turn_id, score=score, judged_at=now(), panel="small",
                                  votes=[turn_pb2.Vote(judge="small", score=score, duration_ms=0.1)])

    def problem(self, transition: turn_pb2.Transition) -> str:
        id = transition.turn.turn_id
        if not 0 < len(id) <= 256 or not id.isprintable():
            return "turn.turn_id: must have 1 to 256 printable characters"
        return ""

    def accept(self, transition: turn_pb2.Transition) -> list[common_pb2.Ack]:
        """Take one in; its acknowledgements."""
        id, content = transition.turn.turn_id, transition.SerializeToString(deterministic=True)
        if reason := self.problem(transition):
            return [common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_REJECTED, reason=reason)]
        known = self.store.known(id)
        if known is not None and known != content:
            return [common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_REJECTED, reason="the id was used before")]
        if known is not None:
            return [common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_DUPLICATE)]
        sample = self.sample(transition)
        self.store.take(id, content, sample)
        for session, queue in self.watchers:
            if session in ("", transition.turn.session_id):
                queue.put_nowait(judge_pb2.WatchJudgementsResponse(judgement=sample.judgement,
                                                                   session_id=transition.turn.session_id))
        self.wake.set()
        return [common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_ACCEPTED)]

    def sample(self, transition: turn_pb2.Transition) -> turn_pb2.Sample:
        return turn_pb2.Sample(transition=transition, judgement=self.judge(transition))

    def accept_all(self, transitions: list[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        return [ack for transition in transitions for ack in self.accept(transition)]

    def connect(self) -> grpc.aio.Channel:
        """To the trainer, in plain text."""
        return IdentifiedChannel(grpc.aio.insecure_channel(self.next, options=[("grpc.use_local_subchannel_pool", 1)]),
                                 self.us.metadata)

    async def confirm(self, call: Any) -> None:
        """Wait until it is known who takes the samples."""
        await confirm(call, "trainer")

    def settle(self, ack: common_pb2.Ack) -> None:
        """The trainer has answered."""
        if ack.status:
            self.store.settle(ack.id)

    def sending(self, rows: list[tuple[int, str, bytes]]) -> list[tuple[int, str, bytes]]:
        """The order in which they are sent."""
        return rows

    def sent(self, id: str) -> None:
        """One was sent; it stays until it is acknowledged."""

    def status(self) -> component_pb2.ComponentStatus:
        waiting = self.store.waiting()
        return component_pb2.ComponentStatus(
            name=self.name, state=component_pb2.COMPONENT_STATE_RUNNING, pid=os.getpid(), address=self.address,
            package_version="0", contract_version=CONTRACT_VERSION, started_at=self.started, mesh_id=self.us.mesh,
            outboxes=[component_pb2.OutboxStats(name="samples", pending=len(waiting), delivered=self.delivered,
                                                connected=self.connected)],
            alarms=[component_pb2.Alarm(name=name, message=message) for name, message in self.us.alarms()])

    async def drain(self) -> None:
        self.stop_requested.set()

    async def end_streams(self) -> None:
        self.interceptor.end_streams()

    async def on_ring(self, requests: AsyncIterator[judge_pb2.JudgeTransitionsRequest]
                      ) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        async for request in requests:
            yield judge_pb2.JudgeTransitionsResponse(acks=self.accept_all(list(request.transitions)))

    async def on_judge(self, transition: turn_pb2.Transition) -> turn_pb2.Judgement:
        return self.judge(transition)

    async def on_status(self) -> component_pb2.ComponentStatus:
        return self.status()

    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        while not self.stop_requested.is_set():
            yield component_pb2.WatchStatsResponse(status=self.status(), at=now())
            await asyncio.sleep(seconds)

    async def add_health(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        for name in ("", SERVICE, COMPONENT):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def describe(self, file: FileDescriptorProto) -> None:
        """Change what reflection says of a file."""

    def add_services(self, server: grpc.aio.Server) -> None:
        judge_pb2_grpc.add_JudgeServiceServicer_to_server(_Judge(self), server)
        component_pb2_grpc.add_ComponentServiceServicer_to_server(_Component(self), server)

    # -- running ----------------------------------------------------------------------------------------------------

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Serve until stopped."""
        with activated(Ambient(membership=self.us, identified=True)):
            await self._run(ready)

    async def _run(self, ready: asyncio.Event | None) -> None:
        server = grpc.aio.server(interceptors=[self.interceptor], options=[
            ("grpc.max_receive_message_length", self.limit), ("grpc.so_reuseport", 0)])
        self.add_services(server)
        await self.add_health(server)
        reflection.enable_server_reflection((SERVICE, COMPONENT, health.SERVICE_NAME), server, self._pool())
        port = self._listen(server)
        self.address = f"127.0.0.1:{port}"
        await server.start()
        sender = asyncio.create_task(self._send())
        if ready is not None:
            ready.set()
        try:
            await self.stop_requested.wait()
        finally:
            await self.health.enter_graceful_shutdown()
            await self.end_streams()
            await server.stop(1)
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    def _listen(self, server: grpc.aio.Server) -> int:
        if self.certs is None:
            return server.add_insecure_port(self.address)
        mine = tls.Credentials(self.certs, self.name)
        if self.roles:
            self.interceptor.authorizer = Authorizer(lambda: mine.identity)
        return server.add_secure_port(self.address, mine.server(self.certified))

    def _pool(self) -> DescriptorPool:
        pool = DescriptorPool()
        added: set[str] = set()

        def add(descriptor: Any) -> None:
            if descriptor.name in added:
                return
            added.add(descriptor.name)
            for other in descriptor.dependencies:
                add(other)
            file = FileDescriptorProto()
            descriptor.CopyToProto(file)
            self.describe(file)
            pool.Add(file)

        for descriptor in (judge_pb2.DESCRIPTOR, component_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR,
                           reflection._reflection_pb2.DESCRIPTOR):
            add(descriptor)
        return pool

    async def _send(self) -> None:
        """Carry the outbox to the trainer, for ever."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, MeshError):
                async with self.connect() as channel:
                    call = channel.stream_stream(
                        SUBMIT, request_serializer=trainer_pb2.SubmitSamplesRequest.SerializeToString,
                        response_deserializer=trainer_pb2.SubmitSamplesResponse.FromString)()
                    reader = asyncio.create_task(self._read(call))
                    try:
                        await self._write(call, reader)
                    finally:
                        reader.cancel()
                        call.cancel()
            self.connected = False
            await asyncio.sleep(0.1)

    async def _write(self, call: Any, reader: asyncio.Task[None]) -> None:
        await self.confirm(call)
        self.connected, behind = True, 0
        while not reader.done():
            self.wake.clear()
            rows = self.store.waiting(behind)
            for _, id, payload in self.sending(rows):
                await call.write(trainer_pb2.SubmitSamplesRequest(samples=[turn_pb2.Sample.FromString(payload)]))
                self.sent(id)
            behind = max([behind, *(seq for seq, _, _ in rows)])
            waker = asyncio.create_task(self.wake.wait())
            await asyncio.wait((waker, reader), return_when=asyncio.FIRST_COMPLETED)
            waker.cancel()

    async def _read(self, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while (answer := await call.read()) is not grpc.aio.EOF:
                for ack in answer.acks:
                    self.settle(ack)
                    self.delivered += 1


class _Judge(judge_pb2_grpc.JudgeServiceServicer):
    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def JudgeTransitions(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for answer in self._judge.on_ring(request_iterator):
            yield answer

    async def Judge(self, request: judge_pb2.JudgeRequest, context: Any) -> judge_pb2.JudgeResponse:
        if not request.transition.turn.messages:
            raise invalid("transition.turn.messages", "nothing", "set")
        return judge_pb2.JudgeResponse(judgement=await self._judge.on_judge(request.transition))

    async def WatchJudgements(self, request: judge_pb2.WatchJudgementsRequest, context: Any) -> AsyncIterator[Any]:
        watcher = (request.session_id, asyncio.Queue[judge_pb2.WatchJudgementsResponse]())
        self._judge.watchers.append(watcher)
        try:
            while True:
                yield await watcher[1].get()
        finally:
            self._judge.watchers.remove(watcher)

    async def ListJudgements(self, request: judge_pb2.ListJudgementsRequest,
                             context: Any) -> judge_pb2.ListJudgementsResponse:
        if len(request.turn_ids) > 1000:
            raise invalid("turn_ids", len(request.turn_ids), "at most 1000")
        return judge_pb2.ListJudgementsResponse(judgements=self._judge.store.judgements(list(request.turn_ids)))


class _Component(component_pb2_grpc.ComponentServiceServicer):
    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def GetStatus(self, request: Any, context: Any) -> component_pb2.GetStatusResponse:
        return component_pb2.GetStatusResponse(status=await self._judge.on_status())

    async def WatchStats(self, request: component_pb2.WatchStatsRequest, context: Any) -> AsyncIterator[Any]:
        seconds = request.interval.ToNanoseconds() / 1e9 if request.HasField("interval") else 1.0
        if not 0.1 <= seconds <= 3600:
            raise invalid("interval", seconds, "from 0.1 s to 1 h")
        async for answer in self._judge.on_stats(seconds):
            yield answer

    async def Drain(self, request: component_pb2.DrainRequest, context: Any) -> component_pb2.DrainResponse:
        if request.grace.seconds < 0:
            raise invalid("grace", request.grace.seconds, "from 0 s to 1 h")
        await self._judge.drain()
        return component_pb2.DrainResponse()

    async def Forget(self, request: component_pb2.ForgetRequest, context: Any) -> component_pb2.ForgetResponse:
        if not request.session_id:
            raise invalid("session_id", "", "the id of a session")
        raise unimplemented("Forget")


async def _serve(judge: Judge) -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, judge.stop_requested.set)
    drained = judge.drain

    async def drain() -> None:
        judge.exit_code = 0
        await drained()

    judge.drain = drain  # type: ignore[method-assign]
    await judge.run()
    return judge.exit_code


def main() -> int:
    from tests.conformance.wrong.judges import FAULTS

    parser = argparse.ArgumentParser()
    for name in ("--fault", "--address", "--next"):
        parser.add_argument(name, default="")
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()

    async def serve() -> int:
        return await _serve((FAULTS[args.fault].server if args.fault else Judge)(args.address, args.data, args.next))

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())
