"""Context of a check: channels, calls, ids and expectations."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc

from openclaw_rl.config import ConfigError
from openclaw_rl.conformance.frame import Failed, Skipped
from openclaw_rl.conformance.listener import Listener
from openclaw_rl.conformance.process import START_SECONDS, ServerProcess
from openclaw_rl.conformance.refusal import Refusal, refusal
from openclaw_rl.conformance.services import Service
from openclaw_rl.rpc.auth import tls
from openclaw_rl.rpc.channel import Credentials, connect, with_true_status
from openclaw_rl.rpc.errors import DOMAIN, handshake_failure
from openclaw_rl.rpc.identified import IdentifiedChannel
from openclaw_rl.rpc.membership import Membership
from openclaw_rl.v1 import component_pb2

T = TypeVar("T")

COMPONENT = component_pb2.DESCRIPTOR.services_by_name["ComponentService"]
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
#: Options of a connection that sends messages of any size; that of the others ends where the contract says.
UNLIMITED = [*_OPTIONS, ("grpc.max_send_message_length", -1)]
#: Of one on which few bytes wait for who does not read.
NARROW = [*_OPTIONS, ("grpc.http2.lookahead_bytes", 2**14), ("grpc.http2.bdp_probe", 0)]
#: Seconds between two looks at something that is waited for.
_LOOK = 0.02
#: Seconds after which one that was just started and speaks TLS where we don't, or HTTP, will not speak otherwise.
_STRANGER = 3.0


class Context:
    """One run of the kit against one server.

    Attributes:
        service: which of the four it is asked to be.
        address: HOST:PORT.
        deadline: seconds of a call that has nothing to wait for.
        listener: the kit in the place of the neighbours; None without --listen.
        process: the server, when the kit has started it; None otherwise.
        memo: what a check leaves for those behind it.
        secure: the server speaks TLS.
        keyed: by a bearer key; there are no certificates then.
        weights: the kit may give the server versions (--weights).
        mesh: id of the server's mesh, which the kit names as its own; "" until it is known, and where there is none.
    """

    def __init__(self, service: Service, address: str, *, deadline: float = 10.0,
                 credentials: Credentials | None = None, listener: Listener | None = None,
                 process: ServerProcess | None = None, certs: str | None = None) -> None:
        self.service, self.address, self.deadline = service, address, deadline
        self.listener, self.process, self.certs = listener, process, certs
        self.secure = credentials is not None
        self.keyed = self.secure and not isinstance(credentials, tls.Credentials)
        self.memo: dict[str, Any] = {}
        self.weights = False
        self.mesh = ""
        self._credentials = credentials
        self._run, self._number = secrets.token_hex(4), 0
        self._channel: grpc.aio.Channel | None = None
        self._by_role: dict[str, grpc.aio.Channel] = {}
        self._more: list[grpc.aio.Channel] = []
        self._calls: list[Any] = []

    # -- connections ---------------------------------------------------------------------------------------------

    @property
    def channel(self) -> grpc.aio.Channel:
        """The run's connection."""
        if self._channel is None:
            self._channel = self._identified(connect(self.address, self.service.component, self._credentials))
        return self._channel

    async def join(self, mesh: str) -> None:
        """Be of this mesh from now on, as a caller and in the place of the neighbours."""
        if self.listener is not None:
            self.listener.mesh = mesh
        if mesh != self.mesh:
            self.mesh = mesh
            await self.close()

    def as_mesh(self, mesh: str) -> grpc.aio.Channel:
        """One more connection, as the component whose stream the server takes, of another mesh; "" names none. It is
        closed behind the check."""
        channel = connect(self.address, self.service.component, self._credentials_of(self.service.sender or "trainer"))
        self._more.append(channel)
        return IdentifiedChannel(channel, Membership(mesh).metadata) if mesh else channel

    def _identified(self, channel: grpc.aio.Channel) -> grpc.aio.Channel:
        return IdentifiedChannel(channel, Membership(self.mesh).metadata) if self.mesh else channel

    @property
    def sender(self) -> grpc.aio.Channel:
        """The run's connection as the component whose ring stream the server takes; see `channel_as`."""
        return self.channel_as(self.service.sender)

    def connect(self, *, sender: bool = False, options: list[tuple[str, int]] | None = None) -> grpc.aio.Channel:
        """One more connection; it is closed behind the check.

        Args:
            sender: as the component whose ring stream the server takes.
            options: UNLIMITED, NARROW, or those of all.
        """
        credentials = self._credentials_of(self.service.sender) if sender else self._credentials
        if options is None:
            channel = connect(self.address, self.service.component, credentials)
        elif credentials is None:
            channel = grpc.aio.insecure_channel(self.address, options=options)
        else:
            secrets_, more = credentials.channel(self.service.component)
            channel = grpc.aio.secure_channel(self.address, secrets_, options=[*options, *more])
        self._more.append(channel)
        return self._identified(channel)

    def channel_as(self, role: str) -> grpc.aio.Channel:
        """The run's connection as a component of the mesh, whose RPCs nobody else may call; without TLS the run's own.

        Raises:
            Skipped: with TLS, and there is no certificate of that role in the folder of --certs.
        """
        if not self.secure:
            return self.channel
        if role not in self._by_role:
            self._by_role[role] = self._identified(
                connect(self.address, self.service.component, self._credentials_of(role)))
        return self._by_role[role]

    def _credentials_of(self, role: str) -> Credentials | None:
        if not self.secure:
            return None
        if self.keyed:
            raise Skipped(f"only the {role} of the mesh may call this: no bearer key opens it")
        try:
            return tls.Credentials(Path(self.certs or ""), role)
        except (ConfigError, OSError) as error:
            raise Skipped(f"only the {role} of the mesh may call this, and the folder of --certs has no certificate of "
                          f"its: {error}") from None

    async def clean_up(self) -> None:
        """Behind each check: cancel its calls, close its connections, let the listener be well again."""
        await self._hang_up()
        if self.listener is not None:
            self.listener.behave()

    async def _hang_up(self) -> None:
        for call in self._calls:
            call.cancel()
        self._calls.clear()
        for channel in self._more:
            await channel.close()
        self._more.clear()

    async def close(self) -> None:
        """Close all connections; the next call opens a new one."""
        await self._hang_up()
        for channel in (self._channel, *self._by_role.values()):
            if channel is not None:
                await channel.close()
        self._channel = None
        self._by_role.clear()

    async def restart(self, kill: bool = True) -> None:
        """End the server that the kit has started (by SIGKILL, or gracefully) and start it again on the same data.

        Raises:
            Failed: it does not come again.
        """
        assert self.process is not None  # of a check with Need.START
        await self.close()
        await (self.process.kill() if kill else self.process.stop())
        await self.process.start()
        await self.ready()

    async def ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until a server that has just been started serves: one that loads a model listens before it does.

        Raises:
            Failed: health does not say SERVING in time, or the server has ended.
        """
        began = time.monotonic()
        while True:
            try:
                said = await self.health()
            except grpc.aio.AioRpcError as error:
                stranger = "refused" not in (text := error.details() or "") and handshake_failure(text)
                if error.code() is not grpc.StatusCode.UNAVAILABLE or (
                        stranger and time.monotonic() > began + _STRANGER):
                    return  # it has no health, or none that is right, or speaks otherwise: what comes next tells
                said = health_pb2.HealthCheckResponse.NOT_SERVING
            if said == health_pb2.HealthCheckResponse.SERVING:
                return
            if self.process and not self.process.running:
                raise Failed(f"the server has ended: {self.process.tail()}")
            if time.monotonic() > began + seconds:
                name = health_pb2.HealthCheckResponse.ServingStatus.Name(said)
                raise Failed(f"{seconds:g} s after the server was started its health says {name}")
            await asyncio.sleep(0.1)

    # -- calls ---------------------------------------------------------------------------------------------------

    def path(self, method: str) -> str:
        """"/openclaw_rl.v1.JudgeService/Judge" for "Judge", "ComponentService/GetStatus" or a whole path."""
        if method.startswith("/"):
            return method
        return f"/{COMPONENT.file.package}.{method}" if "/" in method else self.service.path(method)

    async def unary(self, method: str, request: Message | None = None, *, timeout: float | None = None,  # noqa: ASYNC109
                    channel: grpc.aio.Channel | None = None) -> Any:
        """Call an RPC with one request and one answer.

        Args:
            method: of the service, or "ComponentService/GetStatus".
            timeout: seconds; default the kit's deadline.

        Raises:
            grpc.aio.AioRpcError: the server refused it.
        """
        return await self.call(method, request, timeout=timeout, channel=channel)

    def call(self, method: str, request: Message | None = None, *, timeout: float | None = None,
             channel: grpc.aio.Channel | None = None) -> Any:
        """The call of `unary`, which also has the response's headers."""
        descriptor = self._method(method)
        call = (channel or self.channel).unary_unary(
            self.path(method), request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(descriptor.output_type).FromString)
        return call(request if request is not None else GetMessageClass(descriptor.input_type)(),
                    timeout=timeout or self.deadline)

    def stream(self, method: str, requests: Message | AsyncIterable[Message] | None = None, *,
               timeout: float | None = None, channel: grpc.aio.Channel | None = None,
               metadata: tuple[tuple[str, str], ...] | None = None) -> Any:
        """Open a stream: an RPC with one request and many answers, or (the service's own ones) with many of both.

        It is cancelled behind the check. For a ring stream without `requests` use `write` and `read` of the call.

        Args:
            channel: default the run's; for the ring stream that of the component which may open it.
        """
        descriptor = self._method(method)
        output = GetMessageClass(descriptor.output_type).FromString
        channel = channel or self._channel_for(method)
        many = bool(descriptor.client_streaming)
        make = channel.stream_stream if many else channel.unary_stream
        call = make(self.path(method), request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=output)
        first = requests if many or requests is not None else GetMessageClass(descriptor.input_type)()
        opened = with_true_status(call(first, timeout=timeout, metadata=metadata))
        self._calls.append(opened)
        return opened

    async def raw(self, method: str, payload: bytes, *, timeout: float | None = None,  # noqa: ASYNC109
                  channel: grpc.aio.Channel | None = None) -> bytes:
        """Send bytes as the request of an RPC with one request and one answer; gives the answer's bytes."""
        call = (channel or self.channel).unary_unary(self.path(method))
        answer: bytes = await call(payload, timeout=timeout or self.deadline)
        return answer

    def raw_stream(self, method: str, *, timeout: float | None = None,
                   channel: grpc.aio.Channel | None = None) -> Any:
        """Open a stream of many requests and many answers, all of them bytes. It is cancelled behind the check."""
        channel = channel or self._channel_for(method)
        opened = with_true_status(channel.stream_stream(self.path(method))(timeout=timeout))
        self._calls.append(opened)
        return opened

    async def optional(self, method: str, request: Message | None = None) -> Any:
        """As `unary`, of an RPC that a server need not have.

        Raises:
            Skipped: it has not, and says so as the contract wants it.
            Failed: it has not, and says so without the details.
        """
        try:
            return await self.unary(method, request)
        except grpc.aio.AioRpcError as error:
            self.skip_unimplemented(method, error)
            raise

    def skip_unimplemented(self, method: str, error: grpc.RpcError) -> None:
        """Skip the check when `error` says that the server has no such RPC; nothing for any other error."""
        refused = refusal(error)
        if refused.code is not grpc.StatusCode.UNIMPLEMENTED:
            return
        self.expect(refused.ours, f"{method} answers {refused} without ErrorInfo of the domain {DOMAIN}")
        raise Skipped(f"{method} is not implemented here, which the contract allows")

    async def health(self, name: str = "", channel: grpc.aio.Channel | None = None
                     ) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        """What grpc.health.v1 says of a service."""
        stub = health_pb2_grpc.HealthStub(channel or self.channel)  # type: ignore[no-untyped-call]
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=self.deadline)
        return answer.status  # type: ignore[no-any-return]

    async def status(self) -> component_pb2.ComponentStatus:
        """What GetStatus says now."""
        answer: component_pb2.GetStatusResponse = await self.unary("ComponentService/GetStatus")
        return answer.status

    def _channel_for(self, method: str) -> grpc.aio.Channel:
        return self.sender if method == self.service.ring else self.channel

    def _method(self, method: str) -> Any:
        service, _, name = self.path(method)[1:].rpartition("/")
        descriptor = COMPONENT if service == COMPONENT.full_name else self.service.descriptor
        return descriptor.methods_by_name[name]

    # -- ids -----------------------------------------------------------------------------------------------------

    def id(self, word: str = "turn") -> str:
        """A new id; all ids of the kit begin with "conformance-"."""
        self._number += 1
        return f"conformance-{self._run}-{word}-{self._number:04d}"

    def session(self) -> str:
        """A new session id."""
        return self.id("session")

    # -- expectations --------------------------------------------------------------------------------------------

    def expect(self, holds: object, seen: str) -> None:
        """Raise Failed with what was seen unless it holds."""
        if not holds:
            raise Failed(seen)

    def fail(self, seen: str) -> NoReturn:
        raise Failed(seen)

    def skip(self, why: str) -> NoReturn:
        raise Skipped(why)

    async def refused(self, call: Awaitable[Any], *codes: grpc.StatusCode, what: str = "the call") -> Refusal:
        """Await a call that the server must refuse with one of these codes (any, without one); gives what it said."""
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            found = refusal(error)
            wanted = " or ".join(code.name for code in codes)
            self.expect(not codes or found.code in codes, f"{what} was answered {found}, not {wanted}")
            return found
        shown = str(answer).strip().replace("\n", " ")[:120]
        self.fail(f"{what} succeeded" + (f", and answered {shown}" if shown else ""))

    async def until(self, condition: Callable[[], object], seconds: float, seen: str | Callable[[], str]) -> None:
        """Wait until the condition holds, at most so many seconds; then raise Failed with `seen`."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Failed(seen if isinstance(seen, str) else seen())
            await asyncio.sleep(_LOOK)

    async def within(self, awaited: Awaitable[T], seconds: float, seen: str) -> T:
        """Await something for so many seconds at most; then raise Failed with `seen`."""
        try:
            async with asyncio.timeout(seconds):
                return await awaited
        except TimeoutError:
            raise Failed(seen) from None


def listed(things: Iterable[object], most: int = 5) -> str:
    """The first few of them, for a person."""
    shown = [str(thing) for thing in things]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "") or "nothing"

