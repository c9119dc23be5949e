"""A gRPC server of somebody else's that a component's services are added to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health

from openclaw_rl.rpc.interceptor import ErrorInterceptor

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from openclaw_rl.rpc.server import ComponentServer


class Inside:
    """What a component does without when its server is another program's: it binds no port, starts and stops nothing
    that is not its own, and leaves the signals alone.

    Args:
        server: its options should have those of `mesh.server.OPTIONS`, for messages larger than gRPC's 4 MB.
        health: the program's own health service, which is told of the component's services too; None adds one.
        attached: called with the component's server as soon as its services are added.
        mount: called with the ASGI application of the policy server's HTTP door, which has no port then.
    """

    def __init__(self, server: grpc.aio.Server, health: health.aio.HealthServicer | None,
                 attached: Callable[[ComponentServer], None], mount: Callable[[ASGIApp], None] | None = None) -> None:
        self.server, self.health, self.attached, self.mount = server, health, attached, mount


class Registrar:
    """Adds services to a server with an interceptor around each handler: interceptors of a server can't be added once
    it is made, and ours is for our handlers only.

    It has what the generated `add_...Servicer_to_server` functions call.
    """

    def __init__(self, server: grpc.aio.Server, interceptor: ErrorInterceptor) -> None:
        self._server, self._interceptor = server, interceptor

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers([_Around(handler, self._interceptor) for handler in handlers])

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self._server.add_registered_method_handlers(service, {
            name: self._interceptor.around_handler(handler, f"/{service}/{name}")
            for name, handler in handlers.items()})


class _Around(grpc.ServiceRpcHandler):
    def __init__(self, handler: Any, interceptor: ErrorInterceptor) -> None:
        self._handler, self._interceptor = handler, interceptor

    def service_name(self) -> str:
        return str(self._handler.service_name())

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        handler = self._handler.service(details)
        return None if handler is None else self._interceptor.around_handler(handler, details.method)
