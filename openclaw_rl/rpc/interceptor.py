"""Interceptor around every handler of a server: authorization, errors, traces."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from openclaw_rl.rpc import membership
from openclaw_rl.rpc.auth.authorize import Authorizer
from openclaw_rl.rpc.errors import MeshError, internal, invalid_many, unavailable, unimplemented
from openclaw_rl.rpc.field_count import MOST_FIELDS, MOST_STREAMED_FIELDS, has_more_fields
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.runtime import runtime
from openclaw_rl.runtime.runtime import Ambient, activated

logger = logging.getLogger(__name__)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Sends what a handler raises as a rich status, and a stream's initial metadata before all else.

    A `MeshError` goes out as it is. Anything else is a fault: the caller gets INTERNAL with an incident's id, and the
    log the traceback under that id. Cancellation passes.

    A component's server tells its mesh and its name in the initial metadata, and refuses callers of another mesh, see
    `membership`.

    Some clients wait for the initial metadata of a bidirectional stream before they send; so it doesn't wait for the
    first answer. Handlers must therefore not send initial metadata themselves.

    gRPC reads the message of a call with one request before it calls a handler; so all handlers are made ones of
    streams, and nothing is read of a caller that may not come in. On the wire the two are the same.

    Args:
        authorizer: asked first whether the caller may.
        ambient: current while a handler runs; None leaves that to who started the server.
    """

    def __init__(self, authorizer: Authorizer | None = None, ambient: Ambient | None = None) -> None:
        self.authorizer = authorizer
        self._ambient = ambient
        self._streams: set[asyncio.Task[Any]] = set()
        self._ending = False

    def end_streams(self) -> None:
        """End all streams with UNAVAILABLE: the server is about to stop, and many of them never end by themselves."""
        self._ending = True
        for task in self._streams:
            task.cancel()

    @asynccontextmanager
    async def around(self, context: grpc.aio.ServicerContext, method: str, streaming: bool) -> AsyncIterator[None]:
        """What happens before and after a handler."""
        with activated(self._ambient or runtime.current()):
            async with self._guarded(context, method, streaming):
                yield

    @asynccontextmanager
    async def _guarded(self, context: grpc.aio.ServicerContext, method: str, streaming: bool) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None  # grpc.aio runs each call in a task of its own
        admission = None
        try:
            if self._ending:  # only where the server is somebody else's, and goes on without this component
                raise unavailable("this component has stopped")
            if self.authorizer is not None:
                admission = self.authorizer.enter(context, method)
            ours = membership.current()
            if ours is not None:
                ours.admit(context.invocation_metadata(), method, certified=self.authorizer is not None)
            if streaming:
                self._streams.add(task)
            if streaming or ours is not None:
                await context.send_initial_metadata(() if ours is None else ours.metadata)
            yield
        except asyncio.CancelledError:
            if admission is not None and admission.refused is not None:
                task.uncancel()
                await _abort(context, method, admission.refused)
            if not (self._ending and streaming):
                raise
            task.uncancel()
            await _abort(context, method, unavailable("this server is stopping; connect again"))
        except Exception as error:
            await _abort(context, method, error)
        finally:
            self._streams.discard(task)
            if self.authorizer is not None and admission is not None:
                self.authorizer.leave(admission)

    async def intercept_service(self, continuation: Callable[[grpc.HandlerCallDetails],
                                                             Awaitable[grpc.RpcMethodHandler | None]],
                                handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        return None if handler is None else self.around_handler(handler, handler_call_details.method)

    def around_handler(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        """The handler with all this around it; `method` is its full name."""
        answers = "stream" if handler.response_streaming else "unary"
        behaviour = getattr(handler, f"{'stream' if handler.request_streaming else 'unary'}_{answers}")
        wrap = self._generator if inspect.isasyncgenfunction(behaviour) else self._coroutine
        make = getattr(grpc, f"stream_{answers}_rpc_method_handler")
        return make(wrap(behaviour, method, handler.request_streaming, handler.response_streaming),
                    request_deserializer=_checked(handler.request_deserializer, MOST_STREAMED_FIELDS
                                                  if handler.request_streaming else MOST_FIELDS),
                    response_serializer=handler.response_serializer)

    def _coroutine(self, behaviour: Callable[..., Awaitable[Any]], method: str, many: bool, streaming: bool
                   ) -> Callable[..., Any]:
        async def handle(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
            async with self.around(context, method, streaming):
                return await behaviour(requests if many else await _only(requests), context)

        return handle

    def _generator(self, behaviour: Callable[..., AsyncGenerator[Any, None]], method: str, many: bool,
                   streaming: bool) -> Callable[..., Any]:
        async def handle(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            async with self.around(context, method, streaming):
                request = requests if many else await _only(requests)
                # A cancelled call must end the handler's own clean-up now, not when the garbage is collected.
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response

        return handle


async def _only(requests: AsyncIterator[Any]) -> Any:
    """The message of a call that has one."""
    try:
        return await anext(requests)
    except StopAsyncIteration:
        raise MeshError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "the call has no message") from None


def _checked(deserialize: Callable[[bytes], Any] | None, most: int) -> Callable[[bytes], Any] | None:
    """A deserializer that raises INVALID_ARGUMENT for bytes that are no message, or one of more than `most` fields,
    wherever the handler reads them."""
    if deserialize is None:
        return None
    kind = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)

    def checked(data: bytes) -> Any:
        if kind is not None and has_more_fields(data, kind, most):
            raise invalid_many([("request", f"more than {most} fields, with those of all messages within; at most "
                                 f"{most} are allowed")])
        try:
            return deserialize(data)
        except DecodeError:
            raise MeshError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT",
                            f"{len(data)} bytes are not a message of the type that the contract declares") from None

    return checked


async def _abort(context: grpc.aio.ServicerContext, method: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.BaseError):  # the handler's own context.abort(), or a peer that is gone
        raise error
    if isinstance(error, NotImplementedError):  # what the generated base class answers for an RPC
        error = unimplemented(method.rpartition("/")[2])
    if not isinstance(error, MeshError):
        incident = new_id()
        logger.error("incident %s in %s", incident, method, exc_info=error)
        error = internal(incident)
    await context.abort(error.code, error.message, error.trailing_metadata())
