"""The pipeline of an HTTP request: trace, admission, handler, errors, accounting.

Every route is one `Endpoint`. Handlers raise; errors take the API's shape here and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import orjson
from opentelemetry.trace import Span
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from openclaw_rl.observability import request_spans
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.auth.keys import Scope as KeyScope
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.serving.entrypoints.openai.access import Access, Caller
from openclaw_rl.serving.entrypoints.openai.errors import OPENAI, ApiError, ErrorShape, from_mesh
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.interfaces import RequestContext

logger = logging.getLogger(__name__)

CLIENT_GONE = 499  #: status, in metrics and traces, of a request whose client disconnected

Header = tuple[bytes, bytes]


class Exchange:
    """One admitted request and its response.

    Attributes:
        caller: who sent the request.
        span: the request's span; None when it is not traced.
        context: set once the chat service has accepted it.
        status: HTTP status of the outcome; `CLIENT_GONE` until there is one.
        version: the policy version that answered; None for other requests.
        errors: how the client's API writes them.
    """

    def __init__(self, request: Request, send: Send, span: Span | None) -> None:
        self.request, self.span = request, span
        self.caller: Caller | None = None
        self.context: RequestContext | None = None
        self.status = CLIENT_GONE
        self.version: int | None = None
        self.errors = OPENAI
        self._send = send
        self._started = False

    @property
    def admitted(self) -> Caller:
        """The caller, in a handler."""
        assert self.caller is not None
        return self.caller

    @property
    def address(self) -> str:
        """The peer's IP address."""
        return self.request.client.host if self.request.client else ""

    async def start(self, status: int, headers: list[Header]) -> None:
        """Send the status line and headers, with the caller's rate limits among them."""
        self._started = True
        limits = self.caller.headers if self.caller is not None else {}
        await self._send({"type": "http.response.start", "status": status, "headers": [
            *headers, *((name.encode(), value.encode()) for name, value in limits.items())]})

    async def write(self, data: bytes, more: bool = False) -> None:
        """Send a part of the body; the last one unless `more`."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(self, response: Response) -> None:
        """Send a whole response."""
        await self.start(response.status_code, response.raw_headers)
        await self.write(bytes(response.body))

    async def fail(self, error: ApiError) -> None:
        """Send an error: as the response, or as the last event of a stream that has begun."""
        self.status = error.status
        if self._started:
            await self.write(self.errors.event + b"data: " + orjson.dumps(self.errors.body(error)) + b"\n\n")
        else:
            await self.respond(error.response(self.errors))

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which sends the response, while the client may have it.

        Raises:
            ClientDisconnect: the client went away; `work` was cancelled.
            ApiError: 401, the key was revoked; `work` was cancelled.
        """
        task = asyncio.create_task(work)
        gone = asyncio.create_task(_disconnected(self.request.receive))
        revoked = asyncio.create_task(self.admitted.revoked.wait())
        try:
            await asyncio.wait((task, gone, revoked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The server itself may be stopping. What the cancelled work records, it records before it ends.
            for each in (task, gone, revoked):
                each.cancel()
            await asyncio.wait((task, gone, revoked))
        if not task.cancelled():
            task.result()
        elif not revoked.cancelled() and gone.cancelled():
            raise ApiError(401, "this api key has been revoked", code="invalid_api_key")
        else:
            raise ClientDisconnect


Handler = Callable[[Exchange], Awaitable[Response | None]]  #: None: it has sent the response itself


class Endpoint:
    """An ASGI application for one route.

    Args:
        api: its name in metrics.
        scope: that a key needs.
        handler: answers an admitted request; raises ApiError or MeshError to refuse it.
        generates: its responses come from the policy, and count as requests also when they succeed.
        errors: how the API writes them.
    """

    def __init__(self, access: Access, metrics: Metrics, api: str, scope: KeyScope, handler: Handler,
                 generates: bool = False, errors: ErrorShape = OPENAI) -> None:
        self._access, self._metrics, self._api, self._scope = access, metrics, api, scope
        self._handler, self._generates = handler, generates
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        # Only requests with content for the policy are traced: clients poll the others.
        traced = request.method == "POST"
        span = request_spans.http("POST", request.url.path, request.headers) if traced else None
        exchange = Exchange(request, send, span)
        exchange.errors = self._errors
        try:
            exchange.caller = self._access.enter(request.headers, exchange.address, self._scope)
            response = await self._handler(exchange)
            if response is not None:
                await exchange.respond(response)
            exchange.status = 200
        except ClientDisconnect:
            exchange.status = CLIENT_GONE
        except Exception as error:
            shaped = _shaped(error, exchange)
            if exchange.caller is None:
                await self._access.hold_back(exchange.address)
            await exchange.fail(shaped)
        finally:
            self._account(exchange)

    def _account(self, exchange: Exchange) -> None:
        """End the caller's request and count its outcome."""
        caller, status = exchange.caller, exchange.status
        if caller is not None:
            self._access.leave(caller)
        name = caller.name if caller is not None else self._access.name(exchange.request.headers)
        self._metrics.client(name, status)
        if self._generates or status != 200:
            self._metrics.answered(self._api, status)
        request_spans.answered(exchange.span, status, exchange.version)


def _shaped(error: Exception, exchange: Exchange) -> ApiError:
    """The error as the client gets it. Unexpected ones are logged and named by the turn or an incident id."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, MeshError):
        return from_mesh(error)
    incident = exchange.context.turn_id if exchange.context is not None else new_id("inc_")
    logger.exception("%s: %s failed", incident, exchange.request.url.path, exc_info=error)
    return from_mesh(errors.internal(incident))


async def _disconnected(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
