"""The HTTP API as an ASGI application: its routes and their handlers."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from openclaw_rl.rpc.auth.web_pages import HostNames
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.dialects.anthropic import ANTHROPIC, parse_messages_request
from openclaw_rl.serving.entrypoints.dialects.anthropic_reply import MessagesReply
from openclaw_rl.serving.entrypoints.dialects.responses import parse_response_request
from openclaw_rl.serving.entrypoints.dialects.responses_reply import ResponsesReply
from openclaw_rl.serving.entrypoints.dialects.tokens import parse_detokenize, parse_tokenize, tokenized
from openclaw_rl.serving.entrypoints.openai.access import Access
from openclaw_rl.serving.entrypoints.openai.errors import OPENAI, ApiError, ErrorShape
from openclaw_rl.serving.entrypoints.openai.fields import Fields, parse_object
from openclaw_rl.serving.entrypoints.openai.generation import Generation
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.entrypoints.openai.pipeline import Endpoint, Exchange, Handler
from openclaw_rl.serving.entrypoints.openai.replies import ChatReply, CompletionReply
from openclaw_rl.serving.entrypoints.openai.requests import ApiRequest, parse_chat, parse_completion, parse_feedback
from openclaw_rl.serving.entrypoints.openai.site_guard import guarded
from openclaw_rl.serving.interfaces import Origin, RequestContext
from openclaw_rl.serving.long_input import PromptLimits, off_loop

T = TypeVar("T")

_DRAIN_FACTOR = 8  # an oversized body is read up to this multiple of the limit


def create_app(service: ChatService, client_digest: Callable[[str, str, str], str], access: Access | None = None,
               metrics: Metrics | None = None, *, hosts: HostNames | None = None, origins: Iterable[str] = (),
               secure: bool = False) -> ASGIApp:
    """Build the application.

    Args:
        service: runs the requests.
        client_digest: an opaque name for (key, address, user).
        access: authentication and limits; default none.
        hosts, origins, secure: see `SiteGuard`.
    """
    access, metrics = access or Access(), metrics or Metrics()
    api = _Api(service, client_digest, access.limits.body, metrics)

    def post(path: str, name: str, handler: Handler, generates: bool = False, errors: ErrorShape = OPENAI) -> Route:
        return Route(path, Endpoint(access, metrics, name, "chat", handler, generates, errors), methods=["POST"])

    def get(path: str, name: str, handler: Handler) -> Route:
        return Route(path, Endpoint(access, metrics, name, "read", handler), methods=["GET"])

    app = Starlette(exception_handlers={HTTPException: _no_route}, routes=[
        post("/v1/chat/completions", "chat.completions", api.chat, generates=True),
        post("/v1/completions", "completions", api.completions, generates=True),
        post("/v1/responses", "responses", api.responses, True, ErrorShape(ApiError.body, b"event: error\n")),
        post("/v1/messages", "messages", api.messages, True, ANTHROPIC),
        post("/v1/messages/count_tokens", "messages.count_tokens", api.count_tokens, errors=ANTHROPIC),
        post("/tokenize", "tokenize", api.tokenize),
        post("/detokenize", "detokenize", api.detokenize),
        post("/v1/feedback", "feedback", api.feedback),
        get("/v1/models", "models", api.models),
        get("/v1/models/{model:path}", "models", api.model),
        get("/metrics", "metrics", api.metrics),
        *(Route(path, api.health, methods=["GET"]) for path in ("/healthz", "/health")),  # Kubernetes', other engines'
    ])
    return guarded(app, hosts, lambda: access.open, origins, secure, metrics.refused)


class _Api:
    """Handlers of the routes."""

    def __init__(self, service: ChatService, client_digest: Callable[[str, str, str], str], most_bytes: int,
                 metrics: Metrics) -> None:
        self._service, self._digest, self._most_bytes, self._metrics = service, client_digest, most_bytes, metrics
        self._started = int(time.time())

    async def chat(self, exchange: Exchange) -> None:
        _, asked = await self._parsed(exchange, parse_chat, "messages")
        context = self._open(exchange, asked, "chat.completions")
        reply = ChatReply(context.turn_id, context.session_id, self._service.model, int(context.requested_at),
                          len(asked.calls), asked.n, asked.logprobs, asked.include_usage, token_ids=asked.token_ids)
        await exchange.run(Generation(self._service, exchange, context, asked, reply).run())

    async def completions(self, exchange: Exchange) -> None:
        _, asked = await self._parsed(exchange, parse_completion, "prompt")
        context = self._open(exchange, asked, "completions")
        reply = CompletionReply(context.turn_id, context.session_id, self._service.model, int(context.requested_at),
                                len(asked.calls), asked.best_of, asked.logprobs, asked.include_usage, best=asked.n,
                                token_ids=asked.token_ids)
        await exchange.run(Generation(self._service, exchange, context, asked, reply).run())

    async def messages(self, exchange: Exchange) -> None:
        _, asked = await self._parsed(exchange, parse_messages_request, "messages")
        context = self._open(exchange, asked, "messages")
        reply = MessagesReply(context.turn_id, context.session_id, self._service.model, int(context.requested_at))
        await exchange.run(Generation(self._service, exchange, context, asked, reply).run())

    async def count_tokens(self, exchange: Exchange) -> Response:
        _, asked = await self._parsed(exchange, parse_messages_request, "messages")
        self._check_model(asked.model)
        return _json({"input_tokens": len((await self._service.tokenizer().prompt(asked.calls[0])).ids)})

    async def responses(self, exchange: Exchange) -> None:
        caller = exchange.admitted

        def parse(data: dict[str, Any], headers: Mapping[str, str], limits: PromptLimits | None) -> ApiRequest:
            name = Fields(data).text("previous_response_id")
            return parse_response_request(data, headers, limits,
                                          self._service.history.find(name, caller.client) if name else None)

        data, asked = await self._parsed(exchange, parse, "input")
        context = self._open(exchange, asked, "responses")
        if data.get("store") is not False:
            context.kept_messages = asked.calls[0].messages[1 if data.get("instructions") else 0:]
        reply = ResponsesReply(context.turn_id, context.session_id, self._service.model, int(context.requested_at),
                               data)
        await exchange.run(Generation(self._service, exchange, context, asked, reply).run())

    async def tokenize(self, exchange: Exchange) -> Response:
        data, call = await self._parsed(exchange, parse_tokenize, "prompt")
        self._check_model(data.get("model"))
        policy = self._service.tokenizer()
        return _json(tokenized(data, (await policy.prompt(call)).ids, policy))

    async def detokenize(self, exchange: Exchange) -> Response:
        data, ids = await self._parsed(exchange, parse_detokenize, "tokens")
        self._check_model(data.get("model"))
        return _json({"prompt": self._service.tokenizer().text(ids)})

    async def models(self, exchange: Exchange) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, exchange: Exchange) -> Response:
        self._check_model(exchange.request.path_params["model"])
        return _json(self._model())

    async def feedback(self, exchange: Exchange) -> Response:
        body = await self._body(exchange.request)
        feedback = await off_loop(len(body), lambda: parse_feedback(parse_object(body)))
        caller = exchange.admitted
        feedback.client = self._digest(caller.shown, caller.address, "")
        await self._service.check_known(feedback)
        return _json({"object": "feedback", "feedback_id": await self._service.feedback(feedback)})

    async def metrics(self, exchange: Exchange) -> Response:
        text, content_type = self._metrics.text(exchange.request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def health(self, request: Request) -> Response:
        if self._service.ready:
            return _json({"ok": True})
        return _json({"ok": False, "detail": self._service.state}, 503, {"Retry-After": "2"})

    async def _parsed(self, exchange: Exchange, parse: Callable[..., T], prompt: str) -> tuple[dict[str, Any], T]:
        """Read and parse a request; returns its body as JSON and as `parse` reads it. `prompt` names the field that is
        most of it."""
        limits = self._service.prompt_limits

        def check(size: int) -> None:
            if limits is not None:
                limits.check_request(size, prompt)

        body = await self._body(exchange.request, check)

        def work() -> tuple[dict[str, Any], T]:
            data = parse_object(body)
            return data, parse(data, exchange.request.headers, limits)

        return await off_loop(len(body), work)

    async def _body(self, request: Request, check: Callable[[int], None] = lambda _: None) -> bytearray:
        """Read the body.

        Args:
            check: called with its size in bytes, once that is known; raises to refuse it.
        """
        if (encoding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            raise ApiError(415, f"The body's Content-Encoding {encoding[:40]!r} is not taken: send it as it is.",
                           param="Content-Encoding", code="unsupported_encoding")
        limit, body, size = self._most_bytes, bytearray(), 0
        declared = request.headers.get("content-length", "")
        refused = self._refused(int(declared), check) if declared.isdecimal() else None
        if refused is not None and request.headers.get("expect", "").lower() == "100-continue":
            raise refused  # the client waits, and sends nothing then
        async for part in request.stream():
            size += len(part)
            refused = self._refused(size, check) or refused
            if refused is None:
                body += part
            # Else it is drained for a while: few clients look at a response before they have sent it all.
            elif size > _DRAIN_FACTOR * limit:
                break
        if refused is not None:
            raise refused
        return body

    def _refused(self, size: int, check: Callable[[int], None]) -> ApiError | MeshError | None:
        """The error for a body of so many bytes, or more; None where it may be read."""
        if size > self._most_bytes:
            return ApiError(413, f"The request's body is larger than {self._most_bytes} bytes, the most that is taken.",
                            code="request_too_large", headers={"Connection": "close"})
        try:
            check(size)
        except MeshError as error:
            return error
        return None

    def _open(self, exchange: Exchange, asked: ApiRequest, api: str) -> RequestContext:
        self._check_model(asked.model)
        caller = exchange.admitted
        origin = Origin(client=self._digest(caller.shown, caller.address, asked.user), payer=caller.client, api=api,
                        span=exchange.span)
        context = self._service.open(origin, asked.options, asked.calls[0].messages, asked.metadata, len(asked.calls),
                                     asked.digests, asked.calls[0].tools)
        exchange.context = context
        return context

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._service.model and model not in self._service.aliases:
            raise ApiError(404, f"The model '{model}' does not exist; there is '{self._service.model}'.",
                           param="model", code="model_not_found")

    def _model(self) -> dict[str, Any]:
        limits = self._service.prompt_limits
        return {"id": self._service.model, "object": "model", "created": self._started, "owned_by": "openclaw-rl",
                "policy_version": self._service.version, **({"max_model_len": limits.tokens} if limits else {})}


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(data), status, headers, "application/json")


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    text = {404: f"Unknown request URL: {request.method} {path}. {_there_is(path, request.app.routes)}",
            405: f"Not allowed to {request.method} on {path}."}.get(error.status_code, error.detail)
    return ApiError(error.status_code, text, code="unknown_url" if error.status_code == 404 else None,
                    headers=dict(error.headers or {})).response()


def _there_is(path: str, routes: list[Route]) -> str:
    """What was meant by a path, or all that there is."""
    methods = {route.path: next(iter((route.methods or set()) - {"HEAD"})) for route in routes}
    close = difflib.get_close_matches(path, methods, 1, 0.7)
    if not close:
        return f"There is {', '.join(methods)}."
    root = " (a client's base URL ends with /v1)" if close[0].startswith("/v1/") else ""
    return f"There is {methods[close[0]]} {close[0]}{root}."
