"""Base of all clients: each RPC is declared once, and is a method of a blocking and of an asynchronous client.

    class _JudgeRpcs:
        judge = Unary(judge_pb2.JudgeRequest, judge_pb2.JudgeResponse)

    class JudgeServiceClient(_JudgeRpcs, Client): ...        # client.judge(request) -> JudgeResponse
    class AsyncJudgeServiceClient(_JudgeRpcs, AsyncClient): ...  # await client.judge(request)

A method takes the request message, or its fields by keyword, and `timeout`: seconds for the whole call, after which it
fails with DEADLINE_EXCEEDED. A request's own field of that name (`StepRequest.timeout`: how long the action may take)
can therefore only be given within the message, and wants a longer time for the call:

    client.step(StepRequest(lease_id=..., step=1, action_json=..., timeout=Duration(seconds=50)), timeout=60)

Failures are MeshError.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, cast

import grpc

from openclaw_rl.client.advice import explained
from openclaw_rl.client.calls import (
    DEFAULT,
    TIMEOUT,
    AsyncBidiCall,
    AsyncStreamCall,
    AsyncUnaryCall,
    BidiCall,
    Rpc,
    StreamCall,
    Timeout,
    UnaryCall,
)
from openclaw_rl.rpc import contract, errors
from openclaw_rl.rpc.auth import current
from openclaw_rl.rpc.channel import Credentials, connect, sync_connect, with_true_status
from openclaw_rl.rpc.membership import Membership, confirm, of_client
from openclaw_rl.runtime import runtime
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import component_pb2, component_pb2_grpc

if TYPE_CHECKING:
    pass


class _Base:
    #: Generated stub class of the service.
    stub: type[Any]
    #: Component that serves it: where the address is looked up when none is given.
    component: str

    def __init__(self, address: str | None = None, *, component: str | None = None, home: Home | None = None,
                 credentials: Credentials | None = None, mesh: str | None = None,
                 timeout: float | None = TIMEOUT) -> None:
        """
        Args:
            address: HOST:PORT; None takes the running component's own of the mesh in `home`.
            component: its name (home.COMPONENTS), needed only for a service that all of them have.
            home: the mesh's folder; default OPENCLAW_RL_HOME or `~/.openclaw-rl`. When its configuration wants TLS,
                the certificate of `operator` there is used.
            credentials: others than those, such as OutsideCredentials for a bearer key.
            mesh: id of the mesh that must answer (`openclaw-rl mesh id`); default that of `home`, and any mesh when
                only an address is given.
            timeout: seconds for unary calls that name none.

        Raises:
            MeshError: UNAVAILABLE, the component isn't running. WRONG_MESH, with any call: another mesh answers.
            ConfigError: the certificates or the mesh's id can't be used.
        """
        self._expected = component or self.component
        self.component = self._expected or "the component"
        self.address = address or find(self.component, home)
        self.timeout = timeout
        self._credentials = credentials or current.for_client(home)
        self._ours = membership(address, home, mesh, credentials)
        self._channel = self._connect(self.address)
        self._stub = self.stub(self._channel)

    @property
    def raw(self) -> Any:
        """The generated stub, for calls with gRPC's own arguments; its failures are gRPC's."""
        return self._stub

    def _seconds(self, timeout: Timeout) -> float | None:
        return self.timeout if timeout is DEFAULT else timeout

    def _connect(self, address: str) -> Any:
        raise NotImplementedError

    def _error(self, error: Any) -> errors.MeshError:
        return explained(error, self.component, self.address)


def membership(address: str | None, home: Home | None, mesh: str | None, credentials: Credentials | None
               ) -> Membership | None:
    """The mesh whose components a client expects: the one that is named, else that of the component that it runs in,
    or of the home where it looks up addresses; None for any."""
    if mesh:
        return Membership(mesh)
    if address and home is None and not runtime.current().identified:
        return None
    return of_client(home, credentials)


def find(component: str, home: Home | None = None) -> str:
    """Address (HOST:PORT) of a component: by the mesh file of a mesh on several hosts, else the configured one
    (`components.NAME.address`), else what a running one has recorded.

    Raises:
        MeshError: UNAVAILABLE, there is none.
        ConfigError: the mesh file or the configuration can't be used.
    """
    # With the configuration behind them, which a client with an address needs not.
    from openclaw_rl.rpc import discovery
    from openclaw_rl.runtime import mesh_file
    from openclaw_rl.runtime.running_config import running_config

    home = home or Home.default()
    mesh = mesh_file.read(home)
    if address := discovery.known(home, running_config(home), mesh, component):
        return address
    if mesh is not None:
        raise errors.unavailable(f"{component} is not part of the mesh of {home.root}; `openclaw-rl status` tells what "
                                 "runs")
    raise errors.unavailable(f"{component} is not running in {home.root}; start it with `openclaw-rl local-start`")


class Client(_Base):
    """A blocking client; a context manager."""

    def _connect(self, address: str) -> grpc.Channel:
        return sync_connect(address, self.component, self._credentials, self._ours)

    def _unary(self, rpc: Rpc[Any, Any]) -> UnaryCall[Any, Any]:
        call = getattr(self._stub, rpc.method)

        def unary(request: Any = None, /, *, timeout: Timeout = DEFAULT, **fields: Any) -> Any:
            try:
                response, made = call.with_call(rpc.message(request, fields), timeout=self._seconds(timeout))
            except grpc.RpcError as error:
                raise self._error(error) from None
            self._confirm(made)
            return response

        return unary

    def _stream(self, rpc: Rpc[Any, Any]) -> StreamCall[Any, Any]:
        def stream(request: Any = None, /, *, timeout: float | None = None, **fields: Any) -> Iterator[Any]:
            return self._read(getattr(self._stub, rpc.method)(rpc.message(request, fields), timeout=timeout))

        return stream

    def _bidi(self, rpc: Rpc[Any, Any]) -> BidiCall[Any, Any]:
        def bidi(requests: Iterable[Any], /, *, timeout: float | None = None) -> Iterator[Any]:
            return self._read(getattr(self._stub, rpc.method)(iter(requests), timeout=timeout))

        return bidi

    def _read(self, call: Any) -> Iterator[Any]:
        try:
            self._confirm(call)
            yield from call
        except grpc.RpcError as error:
            raise self._error(error) from None
        finally:
            call.cancel()

    def _confirm(self, call: Any) -> None:
        """Refuse what another mesh says; waits for the headers of a stream.

        Raises:
            MeshError: WRONG_MESH.
        """
        if self._ours is not None:
            self._ours.check_peer(call.initial_metadata(), "", self.address)

    def check(self, *, timeout: Timeout = DEFAULT) -> contract.Report:
        """Ask who answers at the address, and whether it understands this package.

        Raises:
            MeshError: WRONG_COMPONENT, CONTRACT_MISMATCH; or it does not answer.
        """
        try:
            answer = component_pb2_grpc.ComponentServiceStub(self._channel).GetStatus(
                component_pb2.GetStatusRequest(), timeout=self._seconds(timeout))
        except grpc.RpcError as error:
            raise self._error(error) from None
        return contract.check(answer.status, self._expected, self.address)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Base):
    """An asynchronous client; an asynchronous context manager. Belongs to the event loop that it is made in. Streams
    begin when they are first read from."""

    def _connect(self, address: str) -> grpc.aio.Channel:
        return connect(address, self.component, self._credentials, self._ours)

    def _unary(self, rpc: Rpc[Any, Any]) -> AsyncUnaryCall[Any, Any]:
        call = getattr(self._stub, rpc.method)

        async def unary(request: Any = None, /, *,
                        timeout: Timeout = DEFAULT,  # noqa: ASYNC109
                        **fields: Any) -> Any:
            try:
                made = call(rpc.message(request, fields), timeout=self._seconds(timeout))
                response = await made
                await self._confirm(made)
                return response
            except grpc.aio.AioRpcError as error:
                raise self._error(error) from None

        return cast("AsyncUnaryCall[Any, Any]", unary)

    def _stream(self, rpc: Rpc[Any, Any]) -> AsyncStreamCall[Any, Any]:
        def stream(request: Any = None, /, *, timeout: float | None = None, **fields: Any) -> AsyncIterator[Any]:
            message = rpc.message(request, fields)
            return self._read(lambda: getattr(self._stub, rpc.method)(message, timeout=timeout))

        return stream

    def _bidi(self, rpc: Rpc[Any, Any]) -> AsyncBidiCall[Any, Any]:
        def bidi(requests: AsyncIterable[Any], /, *, timeout: float | None = None) -> AsyncIterator[Any]:
            return self._read(lambda: with_true_status(getattr(self._stub, rpc.method)(requests, timeout=timeout)))

        return bidi

    async def _read(self, begin: Callable[[], Any]) -> AsyncIterator[Any]:
        call = begin()  # not before somebody reads: closing a generator that never began would leave it open
        try:
            await self._confirm(call)
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from None
        finally:
            call.cancel()

    async def _confirm(self, call: Any) -> None:
        """As `Client._confirm`."""
        if self._ours is not None:
            await confirm(call, "", self.address, self._ours)

    async def check(self, *, timeout: Timeout = DEFAULT) -> contract.Report:  # noqa: ASYNC109
        """As `Client.check`."""
        try:
            answer = await component_pb2_grpc.ComponentServiceStub(self._channel).GetStatus(
                component_pb2.GetStatusRequest(), timeout=self._seconds(timeout))
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from None
        return contract.check(answer.status, self._expected, self.address)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
