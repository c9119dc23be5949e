"""Generated HTTP requests, from well-formed to nonsense, by a seed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

#: Seconds until a response has begun, and bytes of one that are read.
_TIMEOUT, _MOST = 60.0, 1 << 20
#: Seconds for which a server is given time to wait for the rest of a request that has none.
_PATIENCE = 0.5
#: Server errors that the documentation names (openclaw_rl/docs/en/troubles-and-cures.md) and HTTP's own.
DOCUMENTED = {501, 503, 504, 505}
_PATHS = ("/v1/chat/completions", "/v1/models", "/v1/models/x", "/healthz", "/v1/feedback", "/metrics", "/", "/v1",
          "/v1/completions", "/v1/embeddings", "//v1/models", "/v1/chat/completions/", "/v1/%2e%2e/models",
          "/../etc/passwd", "/v1/models?x=%00", "/" + "a" * 9000, "/v1/chat/completions?%ff", "*",
          "http://example.org/v1/models")
#: Those that generate, or act.
_TALK = (*_PATHS[:1] * 5, "/v1/completions", "/v1/feedback")
_TYPES = ("text/plain", "multipart/form-data; boundary=x", "", "text/xml", "application/json; charset=utf-16",
          "application/json;charset=UTF-8", "APPLICATION/JSON", "application/json, text/plain", "application/grpc",
          "application/x-www-form-urlencoded", "application/vnd.api+json", "json", ";", "application/json\x0b")
_ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "cp037", "utf-7")
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "get", "")
_TEXTS = ("", " ", "Hi", "no, that is wrong", "\0", "\ud800", "\u202e", "😀" * 50, "a" * 3000, "{{x}}", "null",
          "<system-reminder>" * 20, "</s><|im_start|>system", "../../etc/passwd", "%s%n", "\u00e9",
          "\r\nX-Injected: 1", "[object Object]")
_ODD: tuple[Any, ...] = (None, True, False, 0, -1, 1, 2**31, 2**63, 2**200, -2**63, 0.5, 1e308, float("nan"),
                         float("inf"), "", "x", [], {}, [None], [[]], {"": None}, {"type": "text"})
_ROLES = ("user", "assistant", "system", "tool", "developer", "function", "", "USER", None, 3)
_FIELDS = ("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "stream",
           "stream_options", "tools", "tool_choice", "response_format", "logprobs", "top_logprobs", "seed", "user",
           "metadata", "frequency_penalty", "presence_penalty", "logit_bias", "parallel_tool_calls", "session_id",
           "turn_type", "session_done", "x" * 300)
_HEADERS = ("X-Session-Id", "X-Turn-Type", "X-Session-Done", "X-OpenClaw-Exact-Version", "X-OpenClaw-Min-Version",
            "Authorization", "traceparent", "Accept", "Accept-Encoding", "Expect", "Range", "If-Match", "Upgrade",
            "X-Forwarded-For", "Content-Encoding", "Cookie", "TE", "Trailer", "X-" + "y" * 300)
_VALUES = ("", "1", "0", "-1", "main", "side", "true", "18446744073709551616", "é", "a" * 5000, "\t", "Bearer x",
           "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-zz", "gzip", "100-continue", "bytes=0-", "h2c",
           "identity;q=0")


#: JSON that is none, or that parsers read differently.
_BODIES = (b'{"messages":' + b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000,
           b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
           b'{"messages": [{"role": "user", "content": "\\u0000"}]}',
           b'{"max_tokens": 1' + b"0" * 5000 + b', "messages": [{"role": "user", "content": "x"}]}',
           b'{"temperature": 1e-99999, "messages": [{"role": "user", "content": "x"}]}',
           b'{"seed": -9223372036854775809, "messages": [{"role": "user", "content": "x"}]}',
           b"{'messages': []}", b'{"messages": [],}', b'// x\n{"messages": []}', b'\xef\xbb\xbf{"messages": []}',
           b'{"messages": [{"role": "user", "role": "system", "content": "x"}]}', b'{"messages": NaN}', b'"x"', b"true",
           b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', b'{"\xff": 1}', b'{"a": "\t"}')


@dataclass
class Tally:
    """What came back: how often, and what must not have been."""

    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class HttpRequests:
    """Makes the bytes of requests; the same seed makes the same.

    Args:
        texts: what stands where a text may.
    """

    def __init__(self, seed: int, texts: Sequence[str] = _TEXTS) -> None:
        self._random, self._texts = random.Random(f"http/{seed}"), texts

    def one(self) -> tuple[bytes, bool]:
        """The next request, from its first line to its last byte, and whether a server must wait for more."""
        rng = self._random
        if rng.random() < 0.04:
            return self._garbage(), True
        path = rng.choice(_PATHS) if rng.random() < 0.2 else rng.choice(_TALK)
        method = "POST" if path in _TALK or rng.random() < 0.3 else "GET"
        if rng.random() < 0.1:
            method = rng.choice(_METHODS)
        headers = {"Host": "127.0.0.1", "Connection": "close", "Content-Type": "application/json"}
        for _ in range(rng.choice((0, 0, 0, 0, 1, 2, 5))):
            headers[rng.choice(_HEADERS)] = rng.choice(_VALUES)
        if rng.random() < 0.05:
            headers.pop(rng.choice(list(headers)))
        if rng.random() < 0.08:
            headers["Content-Type"] = rng.choice(_TYPES)
        body = self._body(path)
        if rng.random() < 0.03:
            body = body.decode("utf-8", "replace").encode(rng.choice(_ENCODINGS), "replace")
        if headers.get("Content-Encoding") == "gzip" or rng.random() < 0.02:
            headers["Content-Encoding"] = "gzip"
            body = gzip.compress(bytes(4 << 20) if rng.random() < 0.2 else body, mtime=0)
        return self._framed(method, path, headers, body)

    def _framed(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[bytes, bool]:
        rng = self._random
        how = rng.random()
        odd = how < 0.1
        if how < 0.05:
            headers["Transfer-Encoding"] = rng.choice(("chunked",) * 6 + (
                "Chunked", "chunked, chunked", "gzip, chunked", "identity", "xchunked", "chunked;q=1"))
            if rng.random() < 0.1:
                headers["Content-Length"] = rng.choice(("0", str(len(body)), "5"))
            body = self._chunks(body)
        elif how < 0.1:
            headers["Content-Length"] = rng.choice((str(len(body) + 7), "-1", "x", "9" * 30, "", f"{len(body)}, 0"))
        else:
            headers["Content-Length"] = str(len(body))
        odd |= "Expect" in headers or "Upgrade" in headers or "Content-Length" not in headers
        version = rng.choice(("HTTP/1.0", "HTTP/2.0", "HTTP/1.9", "FTP/1.1", "")) if rng.random() < 0.05 else "HTTP/1.1"
        lines = [f"{method} {path} {version}", *(f"{key}: {value}" for key, value in headers.items())]
        if rng.random() < 0.03:
            odd = True
            lines.insert(1, rng.choice((" folded", "NoColon", ": empty", "Host: other", "A\0b: c",
                                        "Content-Length: 3")))
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body, odd

    def _chunks(self, body: bytes) -> bytes:
        rng = self._random
        if rng.random() < 0.3:
            size = rng.choice(("zz", "-1", "f" * 20, f"{len(body) + 5:x}", "", "0x10", "1 1", "+1", "1_0"))
            return size.encode() + b"\r\n" + body + b"\r\n0\r\n\r\n"
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice((0, 1, 5, 30))))
        parts = [body[start:end] for start, end in pairwise((0, *cuts, len(body))) if end > start]
        extension = rng.choice((b"", b"", b";a=b", b';a="' + b"x" * 300 + b'"', b" ;", b"\t"))
        trailer = rng.choice((b"", b"", b"X-Session-Id: late\r\n", b"Content-Length: 0\r\n",
                              b"A: " + b"b" * 3000 + b"\r\n"))
        end = rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\n"))
        return b"".join([*(b"%x" % len(part) + extension + end + part + end for part in parts), b"0\r\n", trailer,
                         b"\r\n"])

    def _garbage(self) -> bytes:
        rng = self._random
        return rng.choice((b"\r\n\r\n", b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3" + rng.randbytes(200), rng.randbytes(300),
                           b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50),
                           b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500,
                           b"GET /healthz HTTP/1.1\nHost: 127.0.0.1\n\n", b"\0" * 100,
                           b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * rng.choice((2, 20, 200)),
                           b"GET /healthz HTTP/1.1\rHost: 127.0.0.1\r\r", b"GET\t/healthz\tHTTP/1.1\r\n\r\n",
                           b"G", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"))

    def _body(self, path: str) -> bytes:
        rng = self._random
        chance = rng.random()
        if chance < 0.06:
            return rng.choice((*_BODIES, b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 5000,
                               b'{"messages": ' + b"[" * 3000,
                               b'{"a": 1e999, "messages": []}', b'{"messages": [], "messages": 1}', b"1" * 5000,
                               rng.randbytes(100)))
        made = self._feedback() if "feedback" in path else self._completion() if path == "/v1/completions" else \
            self._chat()
        for _ in range(rng.choice((0, 0, 0, 0, 1, 1, 2, 4))):
            self._mutate(made)
        text = json.dumps(made, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1)))
        if rng.random() < 0.04:  # a key twice: which one counts must not depend on who reads
            text = f"{text[:-1]}, {json.dumps(rng.choice(_FIELDS))}: {json.dumps(rng.choice(_ODD))}}}"
        return text.encode("utf-8", "surrogatepass")

    def _completion(self) -> dict[str, Any]:
        rng = self._random
        return {"max_tokens": 4, "prompt": rng.choice((rng.choice(self._texts), ["a", "b"], [1, 2], [[1], [2]]))}

    def _chat(self) -> dict[str, Any]:
        rng = self._random
        made: dict[str, Any] = {"max_tokens": 4, "messages": [
            {"role": "user" if i % 2 == 0 else "assistant", "content": rng.choice(self._texts)}
            for i in range(rng.choice((1, 1, 3, 9)))]}
        if rng.random() < 0.1:
            made["model"] = rng.choice(("model", "m", "gpt-4o"))
        if rng.random() < 0.1:
            made["messages"][-1]["content"] = [{"type": "text", "text": rng.choice(self._texts)}, rng.choice((
                {"type": "image_url", "image_url": {"url": rng.choice(self._texts)}}, {"type": "input_audio"}))]
        if rng.random() < 0.25:
            made["stream"] = True
        if rng.random() < 0.2:
            made["tools"] = [{"type": "function", "function": {"name": rng.choice(("f", "", "a b", "x" * 200)),
                                                               "parameters": copy.deepcopy(rng.choice(_ODD))}}]
        if rng.random() < 0.1:
            made["messages"].append({"role": "tool", "tool_call_id": rng.choice(("c1", "")), "content": "x"})
        return made

    def _feedback(self) -> dict[str, Any]:
        rng = self._random
        return {"turn_id": rng.choice(("turn_x", "", "a" * 500)), "score": rng.choice((1, -1, 0, 5, 0.5)),
                "comment": rng.choice(self._texts)}

    def _mutate(self, made: Any) -> None:
        """Put something odd somewhere into a body."""
        rng = self._random
        odd = copy.deepcopy(rng.choice(_ODD)) if rng.random() < 0.6 else rng.choice(self._texts)
        if isinstance(made, dict) and made:
            key = rng.choice(list(made))
            if isinstance(made[key], (dict, list)) and made[key] and rng.random() < 0.7:
                self._mutate(made[key])
            elif rng.random() < 0.6:
                made[rng.choice(_FIELDS) if rng.random() < 0.7 else key] = odd
            else:
                made[key] = odd
        elif isinstance(made, list) and made:
            at = rng.randrange(len(made))
            if isinstance(made[at], (dict, list)) and rng.random() < 0.8:
                if isinstance(made[at], dict) and rng.random() < 0.3:
                    made[at]["role"] = rng.choice(_ROLES)
                self._mutate(made[at])
            else:
                made[at] = odd


async def send_all(host: str, port: int, requests: HttpRequests, count: int, at_once: int = 8) -> Tally:
    """Send so many requests, each on a connection of its own."""
    tally = Tally()
    numbers = iter(range(count))

    async def sender() -> None:
        for number in numbers:
            request, incomplete = requests.one()
            try:
                status = await _send(host, port, request, incomplete, tally, number)
            except OSError as error:
                status = "no response"
                tally.wrong.append(f"request {number} got no response ({error!r}): {request[:200]!r}")
            tally.sent += 1
            tally.statuses[status] += 1

    await asyncio.gather(*(sender() for _ in range(at_once)))
    return tally


def _whole(answer: bytes) -> bool:
    """Whether a response has come to its end, though the connection is kept."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found or head.startswith(b"HTTP/1.1 1"):
        return False
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


async def _send(host: str, port: int, request: bytes, incomplete: bool, tally: Tally, number: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    try:
        with contextlib.suppress(OSError):
            writer.write(request)
            await writer.drain()
        try:
            async with asyncio.timeout(_PATIENCE if incomplete else _TIMEOUT):
                while not _whole(answer) and (more := await reader.read(_MOST)):
                    answer = (answer + more)[:_MOST]
        except OSError:  # TimeoutError among them
            if not incomplete and not answer:
                raise
    finally:
        writer.close()
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    if found is None:
        if answer:
            tally.wrong.append(f"request {number}: not HTTP: {answer[:100]!r}")
        return "closed"
    status = int(found[1])
    head, _, body = answer.partition(b"\r\n\r\n")
    if status >= 500 and status not in DOCUMENTED:
        tally.wrong.append(f"request {number}: {status}: {body[:200]!r} to {request[:300]!r}")
    elif b"Traceback" in body or b"X-Injected" in head:
        tally.wrong.append(f"request {number}: {status} shows internals: {answer[:300]!r}")
    return str(status)
