"""An OpenAI-compatible API on a free port that answers as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: (status, body or the answer's text, headers)
Reply = tuple[int, Any, dict[str, str]]


class FakeApi:
    """`requests` holds the bodies asked for, `keys` the bearer keys shown; `answer` decides each reply."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answer: Callable[[dict[str, Any]], Reply | str] = lambda _: '{"score": 1}'
        self.url = ""


@contextmanager
def serve() -> Iterator[FakeApi]:
    """The API for as long as the block lasts."""
    api = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.requests.append(body)
            api.keys.append(self.headers.get("Authorization", ""))
            reply = api.answer(body)
            status, content, headers = (200, reply, {}) if isinstance(reply, str) else reply
            if isinstance(content, str):
                content = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}]}
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)),
                                    **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                pass  # The judge did not wait.

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def error(status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None) -> Reply:
    """OpenAI's error body."""
    return status, {"error": {"message": message, "type": "e", "param": None, "code": code}}, headers or {}
