"""Spans of the policy server's entrypoints: the request, and the generation of each response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.trace import Span, SpanKind

from openclaw_rl.observability import content, context, names
from openclaw_rl.observability.state import current, guarded
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.common_pb2 import TraceContext, VersionSpan

_FINISHED = {turn_pb2.FINISH_REASON_STOP: "stop", turn_pb2.FINISH_REASON_LENGTH: "length",
             turn_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls", turn_pb2.FINISH_REASON_CANCELLED: "cancelled",
             turn_pb2.FINISH_REASON_ERROR: "error"}


@guarded
def http(method: str, route: str, headers: Mapping[str, str]) -> Span:
    """A request came over HTTP; its span joins the caller's trace (`traceparent`)."""
    return context.start(f"{method} {route}", context.extract(headers), {
        "http.request.method": method, "http.route": route, "url.path": route, "url.scheme": "http",
        "user_agent.original": headers.get("user-agent", "")[:200]}, kind=SpanKind.SERVER)


@guarded
def rpc(method: str, metadata: Iterable[tuple[str, str | bytes]]) -> Span:
    """A request came over gRPC, such as "openclaw_rl.v1.PolicyService/Chat"; its span joins the trace that the call's
    metadata names."""
    service, _, name = method.rpartition("/")
    carrier = {key: value for key, value in metadata if key in ("traceparent", "tracestate") and isinstance(value, str)}
    return context.start(method, context.extract(carrier), {
        "rpc.system": "grpc", "rpc.service": service, "rpc.method": name}, kind=SpanKind.SERVER)


@guarded
def opened(span: Span | None, turn_id: str, session_id: str) -> None:
    """The request is turn `turn_id`; with several choices, the first of its turns."""
    if span is not None and span.is_recording():
        span.set_attributes({names.TURN: turn_id, names.SESSION: session_id, names.CONVERSATION: session_id})


@guarded
def answered(span: Span | None, status: int | str, version: int | None = None) -> None:
    """The request has ended: with an HTTP status (499: the client went away), or with the name of a gRPC one."""
    if span is None or not span.is_recording():
        return
    key = "http.response.status_code" if isinstance(status, int) else "rpc.response.status_code"
    span.set_attribute(key, status)
    if version is not None:
        span.set_attribute(names.VERSION, version)
    failed = status >= 500 if isinstance(status, int) else status not in ("OK", "CANCELLED")
    if failed:
        span.set_attribute(names.ERROR, str(status))
    context.finish(span, str(status) if failed else "")


@guarded
def generated(request: Span | None, *, turn_id: str, session_id: str, api: str, model: str,
              messages: Sequence[turn_pb2.ChatMessage], sampling: turn_pb2.SamplingParams,
              response: Callable[[], turn_pb2.ChatMessage] | None, finish_reason: int, prompt_tokens: int | None,
              completion_tokens: int, spans: Sequence[VersionSpan], version: int, began: float,
              first_token_at: float | None, episode: turn_pb2.EpisodeStep | None = None) -> TraceContext | None:
    """A response has ended, or was cut short: its span, under the request's.

    Args:
        request: span of the request; None opens a trace.
        response: gives the message; asked only when content is captured. None: neither it nor `messages` is ever.
        prompt_tokens: None when the engine tells none (an API model).
        began, first_token_at: seconds since the epoch.

    Returns:
        The context that the turn carries on: all that follows is below this span.
    """
    reason = _FINISHED.get(finish_reason, "")  # type: ignore[call-overload]
    parent = context.of_span(request) if request is not None else None
    own = prompt_tokens is not None
    attributes: dict[str, Any] = {
        names.OPERATION: names.operation(api),
        names.PROVIDER: "openclaw_rl" if own else "openai",
        names.REQUEST_MODEL: model, names.RESPONSE_MODEL: model, names.RESPONSE_ID: turn_id,
        names.CONVERSATION: session_id, names.SESSION: session_id, names.TURN: turn_id, names.VERSION: version,
        "gen_ai.request.temperature": sampling.temperature if sampling.HasField("temperature") else None,
        "gen_ai.request.top_p": sampling.top_p if sampling.HasField("top_p") else None,
        "gen_ai.request.max_tokens": sampling.max_tokens if sampling.HasField("max_tokens") else None,
        names.FINISH_REASONS: [reason] if reason else None, "openclaw.api": api}
    if episode is not None:
        attributes |= {names.EPISODE: episode.episode_id, names.GROUP: episode.group_id}
    if own:
        attributes |= {names.INPUT_TOKENS: prompt_tokens, names.OUTPUT_TOKENS: completion_tokens,
                       names.SPANS: [f"{span.version}:{span.begin}-{span.end}" for span in spans]}
    if current().capture_content and response is not None:
        attributes |= {names.INPUT_MESSAGES: content.messages(messages),
                       names.OUTPUT_MESSAGES: content.messages([response()])}
    failed = finish_reason == turn_pb2.FINISH_REASON_ERROR
    if failed:
        attributes[names.ERROR] = "engine"
    operation = attributes[names.OPERATION]
    span = context.start(f"{operation} {model}", parent, attributes, begin=int(began * 1e9),
                         kind=SpanKind.INTERNAL if own else SpanKind.CLIENT)
    if first_token_at is not None:
        span.add_event("first token", timestamp=int(first_token_at * 1e9))
    context.finish(span, "the response failed" if failed else "", time.time_ns())
    return context.to_message(span)
