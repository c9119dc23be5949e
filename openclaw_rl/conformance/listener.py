"""The kit in the place of the server's neighbours: what the server sends on arrives here.

All four services are served at one address, so that a server may be given it for each of its neighbours. What is not
replaced by a check behaves well: ring messages are kept and acknowledged by id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from openclaw_rl.conformance.frame import Failed
from openclaw_rl.conformance.services import SERVICES, Service
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.rpc.channel import COMMON_OPTIONS
from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.rpc.membership import COMPONENT_KEY, MESH_KEY, Membership
from openclaw_rl.v1 import common_pb2

#: What takes the place of an RPC: requests (one, or many) and context in, answers out.
Behaviour = Callable[[Any, grpc.aio.ServicerContext], AsyncIterator[Message]]


@dataclass
class Arrival:
    """A ring message that arrived."""

    id: str
    message: Any
    stream: int  #: number of the stream that brought it, from 1
    at: float  #: time.monotonic()


@dataclass
class Faults:
    """How the kit treats the server's ring stream; all unset is well."""

    cut_after: int | None = None  #: break each stream behind so many acks
    refuse: Callable[[Any], str] | None = None  #: reason to reject a message with; "" takes it
    silent: bool = False  #: take messages and acknowledge none
    closed: bool = False  #: refuse each stream with UNAVAILABLE
    foreign: bool = False  #: acknowledge ids that nobody has sent, before the right ones
    twice: bool = False  #: acknowledge each message twice
    slow: float = 0.0  #: seconds before each message is read
    mesh: str = ""  #: be of this mesh


@dataclass
class _Rpc:
    service: Service
    many_in: bool
    input: type[Message]


class Listener:
    """Serves all four services for the server under test. Use it from one event loop.

    Attributes:
        address: HOST:PORT, known after start().
        arrivals: ring messages in the order in which they arrived, those sent again too.
        streams: ring streams that were opened so far.
        faults: how ring streams are treated.
        mesh: id of the mesh that it says to be of; "" says nothing.
        callers: what the last call of each RPC said of who makes it.
    """

    def __init__(self, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
        self.address = address
        self.arrivals: list[Arrival] = []
        self.streams = 0
        self.faults = Faults()
        self.mesh = ""
        self.callers: dict[str, dict[str, str]] = {}
        self._credentials = credentials
        self._behaviours: dict[str, Behaviour] = {}
        self._known: set[str] = set()
        self._open: set[asyncio.Event] = set()  # of each stream, its end
        self._server: grpc.aio.Server | None = None
        self._rpcs = {service.path(method.name): _Rpc(service, bool(method.client_streaming),
                                                      GetMessageClass(method.input_type))
                      for service in SERVICES.values() for method in service.descriptor.methods}

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: it can't at that address.
        """
        self._server = grpc.aio.server(options=[*COMMON_OPTIONS, ("grpc.so_reuseport", 0),
                                                ("grpc.http2.min_ping_interval_without_data_ms", 10_000)])
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        host = self.address.rpartition(":")[0]
        try:
            port = (self._server.add_insecure_port(self.address) if self._credentials is None
                    else self._server.add_secure_port(self.address, self._credentials))
        except RuntimeError as error:
            raise OSError(f"the kit can't listen on {self.address}: is the port in use?") from error
        self.address = f"{host}:{port}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def behave(self, faults: Faults | None = None) -> None:
        """Be well again, or have these faults."""
        self._behaviours.clear()
        self.faults = faults or Faults()

    def replace(self, path: str, behaviour: Behaviour) -> None:
        """Let an RPC ("/openclaw_rl.v1.PolicyService/Chat") behave otherwise until the check is over."""
        self._behaviours[path] = behaviour

    def cut(self) -> None:
        """Break all streams that are open, as a network does it."""
        for cut in list(self._open):
            cut.set()

    def got(self, id: str) -> list[Arrival]:
        """Each arrival of a message."""
        return [arrival for arrival in self.arrivals if arrival.id == id]

    def first(self, ids: list[str]) -> list[str]:
        """Those of the ids that have arrived, in the order of their first arrival."""
        wanted = set(ids)
        return list(dict.fromkeys(arrival.id for arrival in self.arrivals if arrival.id in wanted))

    async def wait(self, ids: list[str], seconds: float, what: str) -> None:
        """Wait until each of these messages has arrived.

        Raises:
            Failed: some have not within so many seconds; `what` says what they are.
        """
        end = time.monotonic() + seconds
        while len(self.first(ids)) < len(set(ids)):
            if time.monotonic() > end:
                there = set(self.first(ids))
                lost = [id for id in ids if id not in there]
                raise Failed(f"{len(lost)} of {len(ids)} {what} did not arrive at {self.address} within {seconds:g} s: "
                             f"{', '.join(lost[:3])}{'' if self.streams else '; the server has not connected at all'}")
            await asyncio.sleep(0.02)

    # -- what the server calls -----------------------------------------------------------------------------------

    async def answer(self, path: str, requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
        """The answers to one call."""
        cut = asyncio.Event()
        self._open.add(cut)
        try:
            self.callers[path] = {key: str(value) for key, value in context.invocation_metadata() or ()
                                  if key in (MESH_KEY, COMPONENT_KEY)}
            mesh = self.faults.mesh or self.mesh
            await context.send_initial_metadata(
                Membership(mesh, self._rpcs[path].service.component).metadata if mesh else ())
            async with aclosing(_until(self._answers(path, requests, context), cut)) as messages:
                async for message in messages:
                    yield message
            if cut.is_set():
                await self._break(context)
        finally:
            self._open.discard(cut)

    async def _answers(self, path: str, requests: Any, context: grpc.aio.ServicerContext
                       ) -> AsyncGenerator[Message, None]:
        rpc = self._rpcs[path]
        behaviour = self._behaviours.get(path)
        if behaviour is not None:
            async for message in behaviour(requests if rpc.many_in else await anext(requests), context):
                yield message
        elif rpc.service.ring and path == rpc.service.path(rpc.service.ring):
            async for message in self._ring(rpc.service, requests, context):
                yield message
        else:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the conformance kit does not play this")

    async def _ring(self, service: Service, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext
                    ) -> AsyncIterator[Message]:
        self.streams += 1
        stream, acked, faults = self.streams, 0, self.faults
        response = GetMessageClass(service.descriptor.methods_by_name[service.ring].output_type)
        if faults.closed:
            await self._break(context)
        async for request in requests:
            if faults.slow:
                await asyncio.sleep(faults.slow)
            # All of it has arrived, also when the stream ends with the first acknowledgement.
            came = [(message_id(message), message) for message in ring_messages(request)]
            self.arrivals += [Arrival(id, message, stream, time.monotonic()) for id, message in came]
            for id, message in came:
                if faults.cut_after is not None and acked >= faults.cut_after:
                    await self._break(context)
                acks = [] if faults.silent else [self._ack(id, faults.refuse(message) if faults.refuse else "")]
                acked += len(acks)
                if faults.foreign:
                    acks.insert(0, common_pb2.Ack(id=f"conformance-foreign-{id}",
                                                  status=common_pb2.ACK_STATUS_ACCEPTED))
                for ack in acks * 2 if faults.twice else acks:
                    yield response(acks=[ack])  # type: ignore[call-arg]

    def _ack(self, id: str, reason: str) -> common_pb2.Ack:
        if reason:
            return common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_REJECTED, reason=reason)
        known = id in self._known
        self._known.add(id)
        return common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_DUPLICATE if known
                              else common_pb2.ACK_STATUS_ACCEPTED)

    async def _break(self, context: grpc.aio.ServicerContext) -> None:
        error = unavailable("the conformance kit breaks this stream")
        await context.abort(error.code, error.message, error.trailing_metadata())

    def handler(self, path: str) -> grpc.RpcMethodHandler | None:
        """Of one RPC of the four services."""
        rpc = self._rpcs.get(path)
        if rpc is None:
            return None

        async def handle(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
            async for message in self.answer(path, requests, context):
                yield message

        # One request or many, one answer or many: on the wire they are the same.
        return grpc.stream_stream_rpc_method_handler(
            handle, request_deserializer=rpc.input.FromString,
            response_serializer=lambda message: message.SerializeToString())


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._listener.handler(handler_call_details.method)


async def _until(messages: AsyncGenerator[Message, None], cut: asyncio.Event) -> AsyncGenerator[Message, None]:
    """What comes until the stream is to be cut. Cancelling the handler instead may hit gRPC while it sends, and then
    the other side is never told that the call has ended."""
    cutting = asyncio.create_task(cut.wait())
    coming: asyncio.Future[Message] | None = None
    try:
        while not cut.is_set():
            coming = asyncio.ensure_future(anext(messages))
            await asyncio.wait({coming, cutting}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return
            try:
                yield coming.result()
            except StopAsyncIteration:
                return
    finally:
        ending = [cutting] if coming is None else [cutting, coming]
        for one in ending:
            one.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await messages.aclose()


def ring_messages(request: Any) -> list[Any]:
    """The messages of a request of a ring stream."""
    return list(getattr(request, request.DESCRIPTOR.fields[0].name))

