"""The gRPC server of another program, to which a component's services are added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health

from openclaw_rl.rpc.interceptor import ErrorInterceptor

if TYPE_CHECKING:
    from starlette.types import ASGIApp

#: Attribute of a server that names the component in it.
_COMPONENT = "_openclaw_rl_component"


class HostServer:
    """The server of another program, and what that hands to the component in it. The component binds no port, and
    starts and stops nothing that is not its own.

    Args:
        server: its options should have those of `rpc.server.OPTIONS`, for messages larger than gRPC's 4 MB.
        health: the program's own health service, which is told of the component's services too; None adds one.
        mount: called with the ASGI application of the policy server's HTTP entrypoint, which has no port then.
    """

    def __init__(self, server: grpc.aio.Server, health: health.aio.HealthServicer | None = None,
                 mount: Callable[[ASGIApp], None] | None = None) -> None:
        self.server, self.health, self.mount = server, health, mount

    def claim(self, name: str) -> None:
        """Take the server for one component.

        Raises:
            RuntimeError: another one has it; a server answers one ComponentService.
        """
        if (other := getattr(self.server, _COMPONENT, None)) is not None:
            raise RuntimeError(f"the server has {other} already, and takes one component: make another one for {name}")
        setattr(self.server, _COMPONENT, name)


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
