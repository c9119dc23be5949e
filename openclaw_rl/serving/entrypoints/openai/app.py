"""The HTTP door: OpenAI's API as its SDKs know it, and what agents say beside it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openclaw_rl.observability import request_spans as traces
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.auth.keys import Scope as KeyScope
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.access import Access, Caller
from openclaw_rl.serving.entrypoints.openai.errors import ApiError, from_mesh
from openclaw_rl.serving.entrypoints.openai.fields import parse_object
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.entrypoints.openai.replies import DONE, ChatReply, CompletionReply, usage
from openclaw_rl.serving.entrypoints.openai.requests import ApiRequest, parse_chat, parse_completion, parse_feedback
from openclaw_rl.serving.entrypoints.openai.stream import UntilDisconnect, merge
from openclaw_rl.serving.interfaces import End, RequestContext, Start

logger = logging.getLogger(__name__)

_DRAINED = 8  # times the limit: what is read of a body that is too large
_LONG_BODY = 2**18  # bytes; parsing more would hold up the streams that run
_Handler = Callable[[Request, Caller], Awaitable[ASGIApp]]


def create_app(desk: ChatService, client_digest: Callable[[str, str, str], str], access: Access | None = None,
               metrics: Metrics | None = None) -> Starlette:
    """The app.

    Args:
        desk: where requests become turns.
        client_digest: an opaque name for (key, address, user).
        access: who may come in, and what one client may take; default everybody, as much as he likes.
    """
    door = _Door(desk, client_digest, access or Access(), metrics or Metrics())
    routes = [
        Route("/v1/chat/completions", door.guarded("chat.completions", "chat", door.chat), methods=["POST"]),
        Route("/v1/completions", door.guarded("completions", "chat", door.completions), methods=["POST"]),
        Route("/v1/models", door.guarded("models", "read", door.models), methods=["GET"]),
        Route("/v1/models/{model:path}", door.guarded("models", "read", door.model), methods=["GET"]),
        Route("/v1/feedback", door.guarded("feedback", "chat", door.feedback), methods=["POST"]),
        Route("/healthz", door.health, methods=["GET"]),
        Route("/metrics", door.guarded("metrics", "read", door.metrics_text), methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_route})


class _Door:
    def __init__(self, desk: ChatService, client_digest: Callable[[str, str, str], str], access: Access,
                 metrics: Metrics) -> None:
        self._desk, self._digest, self._access, self._metrics = desk, client_digest, access, metrics
        self._started = int(time.time())

    def guarded(self, api: str, scope: KeyScope, handler: _Handler) -> Callable[[Request], Awaitable[ASGIApp]]:
        """Key and limits are checked before, errors become OpenAI's behind the handler. `api` is its name in the
        metrics; `scope` is what a key must have."""
        async def endpoint(request: Request) -> ASGIApp:
            began = time.perf_counter()
            # Models are asked for by clients at every turn or poll; only what is said to the policy is traced.
            span = traces.http("POST", request.url.path, request.headers) if request.method == "POST" else None
            request.state.span = span
            visit: Caller | None = None
            try:
                visit = self._access.enter(request.headers, _address(request), scope)
                answer = await handler(request, visit)
                if not isinstance(answer, UntilDisconnect):  # which ends the span when it is sent
                    traces.answered(span, 200)
                return _Visited(answer, self._access, self._metrics, visit)
            except ClientDisconnect:
                traces.answered(span, 499)
                answer = Response(status_code=400)  # nobody reads it
            except (ApiError, MeshError) as error:
                answer = await self._refused(request, visit, api, _public(error), began)
            except Exception:
                incident = new_id("inc_")
                logger.exception("incident %s: %s failed", incident, request.url.path)
                answer = await self._refused(request, visit, api, from_mesh(errors.internal(incident)), began)
            except BaseException:
                if visit is not None:
                    self._access.leave(visit)
                raise
            return answer if visit is None else _Visited(answer, self._access, self._metrics, visit)

        return endpoint

    async def _refused(self, request: Request, visit: Caller | None, api: str, error: ApiError,
                       began: float) -> Response:
        self._metrics.answered(api, error.status, time.perf_counter() - began)
        traces.answered(request.state.span, error.status)
        if visit is None:
            self._metrics.client(self._access.name(request.headers), error.status)
            await self._access.hold_back(_address(request))
        return error.response()

    async def chat(self, request: Request, visit: Caller) -> ASGIApp:
        asked = await self._parsed(request, parse_chat)
        head = self._open(request, visit, asked, "chat.completions")
        reply = ChatReply(head.turn_id, head.session_id, self._desk.model, int(head.requested_at), len(asked.calls),
                          asked.n, asked.logprobs, asked.include_usage)
        return self._answer(head, asked, reply, visit)

    async def completions(self, request: Request, visit: Caller) -> ASGIApp:
        asked = await self._parsed(request, parse_completion)
        head = self._open(request, visit, asked, "completions")
        reply = CompletionReply(head.turn_id, head.session_id, self._desk.model, int(head.requested_at),
                                len(asked.calls), asked.n, asked.logprobs, asked.include_usage, echo=asked.echo)
        return self._answer(head, asked, reply, visit)

    async def models(self, request: Request, visit: Caller) -> ASGIApp:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request, visit: Caller) -> ASGIApp:
        self._check_model(request.path_params["model"])
        return _json(self._model())

    async def feedback(self, request: Request, visit: Caller) -> ASGIApp:
        feedback = parse_feedback(parse_object(await self._body(request)))
        feedback.client = self._digest(visit.shown, visit.address, "")
        return _json({"object": "feedback", "feedback_id": await self._desk.feedback(feedback)})

    async def health(self, request: Request) -> Response:
        if self._desk.ready:
            return _json({"ok": True})
        return _json({"ok": False, "detail": self._desk.state}, 503, {"Retry-After": "2"})

    async def metrics_text(self, request: Request, visit: Caller) -> ASGIApp:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _body(self, request: Request) -> bytearray:
        if (encoding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            raise ApiError(415, f"The body's Content-Encoding {encoding[:40]!r} is not taken: send it as it is.",
                           param="Content-Encoding", code="unsupported_encoding")
        limit, body, size = self._access.limits.body, bytearray(), 0
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                body += part
            elif size > _DRAINED * limit:
                break
        # One that is too large is read on for a while: few clients look at an answer before they have sent it all.
        if size > limit:
            raise ApiError(413, f"The request's body is larger than {limit} bytes, the most that is taken.",
                           code="request_too_large", headers={"Connection": "close"})
        return body

    async def _parsed(self, request: Request, parse: Callable[[dict[str, Any], Any], ApiRequest]) -> ApiRequest:
        body = await self._body(request)

        def work() -> ApiRequest:
            return parse(parse_object(body), request.headers)

        return await asyncio.to_thread(work) if len(body) > _LONG_BODY else work()

    def _open(self, request: Request, visit: Caller, asked: ApiRequest, api: str) -> RequestContext:
        if asked.model is not None:
            self._check_model(asked.model)
        head = self._desk.open(options=asked.options, client=self._digest(visit.shown, visit.address, asked.user),
                               api=api, messages=asked.calls[0].messages, metadata=asked.metadata,
                               choices=len(asked.calls))
        head.span, head.payer = request.state.span, visit.client
        traces.opened(head.span, head.turn_id, head.session_id)
        return head

    def _check_model(self, model: str) -> None:
        if model != self._desk.model and model not in self._desk.aliases:
            raise ApiError(404, f"The model '{model}' does not exist; there is '{self._desk.model}'.", param="model",
                           code="model_not_found")

    def _model(self) -> dict[str, Any]:
        return {"id": self._desk.model, "object": "model", "created": self._started, "owned_by": "openclaw-rl",
                "policy_version": self._desk.version}

    def _answer(self, head: RequestContext, asked: ApiRequest, reply: ChatReply, visit: Caller) -> ASGIApp:
        answer = _Answer(self._desk, self._metrics, head, asked, reply)
        return UntilDisconnect(answer.send, visit.ended, answer.cut)


class _Visited:
    """A response that tells what is left of the limits, and ends its client's visit."""

    def __init__(self, answer: ASGIApp, access: Access, metrics: Metrics, visit: Caller) -> None:
        self._answer, self._access, self._metrics, self._visit = answer, access, metrics, visit
        self._status = 499

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extra = [(name.encode(), value.encode()) for name, value in self._visit.headers.items()]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        finally:
            self._access.leave(self._visit)
            self._metrics.client(self._visit.name, self._status)


class _Answer:
    """Makes the responses of one request and sends them, whole or as server-sent events."""

    def __init__(self, desk: ChatService, metrics: Metrics, head: RequestContext, asked: ApiRequest,
                 reply: ChatReply) -> None:
        self._desk, self._metrics, self._head, self._asked, self._reply = desk, metrics, head, asked, reply
        self._began = time.perf_counter()
        self._streaming = False  # the status line is out
        self._ends: dict[int, End] = {}

    async def send(self, send: Send) -> None:
        """The response; raises CancelledError when the client has gone."""
        status = 499
        version: int | None = None
        try:
            version = await self._responses(send)
            status = 200
        except (ApiError, MeshError) as error:
            status = await self._failed(send, _public(error))
        except Exception:
            logger.exception("request %s failed", self._head.turn_id)
            status = await self._failed(send, from_mesh(errors.internal(self._head.turn_id)))
        finally:
            self._metrics.answered(self._head.api, status, time.perf_counter() - self._began)
            traces.answered(self._head.span, status, version)

    async def cut(self, send: Send) -> None:
        """End the response, whose `send` has ended: the client's key has been revoked."""
        await self._failed(send, ApiError(401, "this api key has been revoked", code="invalid_api_key"))

    async def _responses(self, send: Send) -> int:
        """Send; gives the version that answered."""
        reply, asked = self._reply, self._asked
        streams = [self._desk.run(self._head, call, i) for i, call in enumerate(asked.calls)]
        version: int | None = None
        async with aclosing(merge(streams)) as events:
            async for choice, event in events:
                data = b""
                if isinstance(event, Start):
                    if version is None:
                        version = event.version
                        self._metrics.first_token(time.perf_counter() - self._began)
                        if asked.stream:
                            await self._start(send, 200, version, b"text/event-stream; charset=utf-8")
                            self._streaming = True
                    data = reply.opening(choice)
                elif isinstance(event, End):
                    self._ends[choice] = event
                    data = reply.ending(choice, event)
                elif asked.stream:
                    data = reply.chunk(choice, event)
                else:
                    reply.note(choice, event)
                if data and asked.stream:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        ends = [self._ends[choice] for choice in range(len(asked.calls))]
        self._metrics.tokens(usage(ends, asked.n))
        if asked.stream:
            tail = reply.usage_chunk(ends) + DONE if asked.include_usage else DONE
        else:
            tail = reply.whole(ends)
            await self._start(send, 200, version or 0, b"application/json", len(tail))
        await send({"type": "http.response.body", "body": tail})
        return version or 0

    async def _start(self, send: Send, status: int, version: int, kind: bytes, size: int | None = None) -> None:
        headers = [(b"content-type", kind), (b"x-openclaw-turn-id", self._head.turn_id.encode()),
                   (b"x-openclaw-policy-version", str(version).encode()),
                   (b"x-request-id", self._head.turn_id.encode())]
        if size is None:
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]  # proxies must not collect
        else:
            headers.append((b"content-length", str(size).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})

    async def _failed(self, send: Send, error: ApiError) -> int:
        if self._streaming:
            # The status is out already: SDKs raise an APIError for an event that has an `error`.
            data = b"data: " + orjson.dumps(error.body()) + b"\n\n"
            await send({"type": "http.response.body", "body": data})
            return error.status
        await error.response()({"type": "http"}, _never, send)
        return error.status


async def _never() -> Any:
    raise RuntimeError("the response reads no request")


def _public(error: ApiError | MeshError) -> ApiError:
    return error if isinstance(error, ApiError) else from_mesh(error)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(data), status, headers, "application/json")


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: f"Unknown request URL: {request.method} {request.url.path}.",
            405: f"Not allowed to {request.method} on {request.url.path}."}.get(error.status_code, error.detail)
    return ApiError(error.status_code, text, code="unknown_url" if error.status_code == 404 else None,
                    headers=dict(error.headers or {})).response()
