"""A connection to the HTTP entrypoint: uvicorn's protocol with limits on time and size.

uvicorn leaves these limits to a proxy in front of it: how long a request may take to arrive, how long its headers may
be, how many requests may be pipelined, and what happens to a client that reads no response. It has no public interface
for them, so its protocol classes are subclassed: pyproject.toml caps its version, and test_uvicorn.py names what is
relied on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import httptools
import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from openclaw_rl.serving.entrypoints.openai.errors import ApiError

#: Limits: bytes of a request line with its headers, number of headers, pipelined requests.
HEAD_BYTES, HEADERS, PIPELINE = 64 * 2**10, 100, 16
_CHUNKS, _CHUNK_BYTES = 1000, 64  # beyond so many chunks, bytes they must have on average
_DISCARDED = 4 * 2**20  # bytes still read of a refused request, so that its sender sees the response


@dataclass(frozen=True)
class ClientTimeouts:
    """Time limits for clients, in seconds."""

    handshake: float = 10.0  #: for the first byte and the TLS handshake
    head: float = 15.0  #: for a whole request line with its headers
    body: float = 30.0  #: for a body, plus one second for each `body_rate` bytes received
    body_rate: int = 4 * 2**10
    write: float = 60.0  #: for a client that does not read its response
    idle: int = 75  #: between two requests
    linger: float = 3.0  #: for the peer to close


class Connection(HttpToolsProtocol):
    """A client's connection. `HttpServer` calls `check_timeouts` periodically."""

    timeouts = ClientTimeouts()
    on_lost: Callable[[], None] = staticmethod(lambda: None)  #: called when the connection is lost
    on_refused: Callable[[str], None] = staticmethod(lambda _why: None)  #: called with a reason for the metrics

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: Literal["head", "body"] | None = "head"
        self._since = time.monotonic()  # when waiting for it began
        self._head = self._raw = self._body = 0  # bytes: of headers, of an incomplete head, of a body
        self._begun = self._chunks = 0  # requests, and chunks of a body
        self._headers_done = False
        self._open: deque[RequestResponseCycle] = deque()  # requests without a complete response, oldest first
        self._stuck_since: float | None = None  # the client stopped reading
        self._closed_at: float | None = None  # by us; written data may still be unread
        self._refused_at: float | None = None
        self._discarded = 0
        self._refusal = ApiError(400, "The request is not valid HTTP.", code="bad_http")

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = _Flow(transport, lambda: bool(self.pipeline))

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._open:  # uvicorn notifies the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused_at is not None:
            self._discarded += len(data)
            if self._discarded > _DISCARDED:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if self._awaited is None and not self._open:
            self._await("head")  # also for data that begins no request, such as endless empty lines
        begun = self._begun
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Some clients offer HTTP/2 or the like with every request. The offer is ignored; the parser takes what
            # follows for the other protocol, so it is fed the request again without the offer.
            head = self._without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + data[upgrade.args[0]:])
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        if self._awaited == "head":
            self._raw = self._raw + len(data) if begun == self._begun else 0
            if self._raw > HEAD_BYTES:
                self._refuse(_TOO_LONG)

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._headers_done = False
        self._begun += 1
        self._head = 0
        if self._awaited is None:
            self._await("head")
        if len(self._open) >= PIPELINE:
            self._stop(ApiError(400, f"More than {PIPELINE} requests wait on this connection for their responses.",
                                code="too_many_pipelined"))

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > HEAD_BYTES:
            self._stop(_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headers_done:
            return  # trailers after a body must not become headers of the running request
        super().on_header(name, value)
        self._head += len(name) + len(value) + 4
        if self._head + len(self.url) > HEAD_BYTES or len(self.headers) > HEADERS:
            self._stop(_TOO_LONG)

    def on_headers_complete(self) -> None:
        self._headers_done = True
        if not self.url.startswith((b"/", b"http://", b"https://")):
            self._stop(ApiError(400, "The request's target must be a path, such as /v1/models.", code="bad_target"))
        if self.parser.get_method() == b"CONNECT":
            self._stop(ApiError(405, "Not allowed to CONNECT.", code="bad_method"))
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            self.cycle.send = _without_chunks(self.cycle)  # type: ignore[assignment, method-assign]
        self._open.append(self.cycle)
        self._await("body")

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        if self.cycle.response_complete and self._body > _DISCARDED:
            self.transport.abort()  # it keeps sending a refused request
            return
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Count the chunks of a body: each costs time, however small."""
        self._chunks += 1
        if self._chunks > _CHUNKS and self._body < _CHUNK_BYTES * self._chunks:
            self._stop(ApiError(400, f"The body's chunks are too small: at least {_CHUNK_BYTES} bytes on average are "
                                     "needed.", code="tiny_chunks"))

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._awaited = None
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._open:
            self._open.popleft()
        if self.transport.is_closing():
            self._closed_at = time.monotonic()
        super().on_response_complete()

    # Pace of the client

    def pause_writing(self) -> None:
        self._stuck_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stuck_since = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._closed_at = time.monotonic()

    def check_timeouts(self, now: float) -> None:
        """Close the connection if its client has exceeded a time limit."""
        timeouts = self.timeouts
        if self._refused_at is not None:
            if now - self._refused_at > timeouts.linger:
                self.transport.abort()
        elif self._closed_at is not None:
            if now - self._closed_at > timeouts.write:
                self.transport.abort()
        elif self._stuck_since is not None and now - self._stuck_since > timeouts.write:
            self.on_refused("slow_reader")
            self.transport.abort()
        elif self._awaited is not None and self.flow.read_paused:
            self._since, self._body = now, 0  # we paused reading
        elif self._awaited == "head" and now - self._since > timeouts.head:
            if not self._begun and not self._raw:  # it sent nothing, so there is nothing to respond to
                self._refused_at = now
                self.transport.close()
                return
            self._refuse(ApiError(408, f"The request did not arrive within {timeouts.head:g} s.",
                                  code="request_timeout"))
        elif self._awaited == "body" and now - self._since > timeouts.body + self._body / timeouts.body_rate:
            self._refuse(ApiError(408, "The request's body arrives too slowly.", code="request_timeout"))

    def _without_upgrade(self) -> bytes:
        """Rebuild the request's head without the offer of another protocol."""
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        for name, value in self.headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _await(self, what: Literal["head", "body"]) -> None:
        self._awaited, self._since, self._body, self._chunks = what, time.monotonic(), 0, 0

    def _stop(self, refusal: ApiError) -> None:
        """Abort parsing with a refusal."""
        self._refusal = refusal
        raise ValueError(refusal.code)

    def _refuse(self, error: ApiError) -> None:
        """Respond and close; just close where a response has begun or another one is due first."""
        self.on_refused(error.code or "")
        self._refused_at = time.monotonic()
        asked = list(self._open)
        answerable = not asked if self._awaited != "body" else (
            asked == [self.cycle] and not self.cycle.response_started)
        for cycle in asked:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        if not answerable or self.transport.is_closing():
            self.transport.abort()
            return
        body = orjson.dumps(error.body())
        self.transport.write(b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                             b"connection: close\r\n\r\n" % (error.status, HTTPStatus(error.status).phrase.encode(),
                                                             len(body)) + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()  # and keep reading: closing at once could discard the response
        else:
            self.transport.close()


def _without_chunks(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """`cycle.send` for HTTP/1.0, which has no chunks (RFC 9112, 6.1): the end of the connection ends a response of
    unknown length, which may be a stream all the same. nginx asks so by default."""
    send, unbounded = cycle.send, False

    async def sending(message: Any) -> None:
        nonlocal unbounded
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            unbounded = b"content-length" not in names
            if unbounded:
                cycle.chunked_encoding = False
        elif unbounded:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return sending


class _Flow(FlowControl):
    """Flow control that pauses reading while requests wait in the pipeline."""

    def __init__(self, transport: Any, full: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._full = full

    def resume_reading(self) -> None:
        if not self._full():
            super().resume_reading()


_TOO_LONG = ApiError(431, f"The request line and its headers are too long: at most {HEAD_BYTES} bytes and {HEADERS} "
                          "headers are accepted.", code="headers_too_large")
