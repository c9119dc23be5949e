"""A tiny stand-in for the policy server's HTTP door: echoes, streams, and remembers what it was sent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeDoor:
    """`url` is where it listens; `requests` are (path, body, headers); `fail` is an error to answer with."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.fail: tuple[int, str] | None = None
        self.break_off = False
        door = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._json(200, {"data": [{"id": "the-model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                door.requests.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
                if door.fail:
                    self._json(door.fail[0], {"error": {"message": door.fail[1]}})
                elif self.path == "/v1/feedback":
                    self._json(200, {"feedback_id": "fb_1"})
                else:
                    self._stream(body)

            def _json(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, body: dict[str, Any]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("X-OpenClaw-Turn-Id", f"turn_{len(door.requests)}")
                self.send_header("X-OpenClaw-Policy-Version", "7")
                self.end_headers()
                session = body.get("session_id", "ses_new")
                for word in ("You said: ", body["messages"][-1]["content"]):
                    event = {"session_id": session, "choices": [{"delta": {"content": word}}]}
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                if door.break_off:
                    self.wfile.write(b'data: {"error": {"message": "the engine failed"}}\n\n')
                else:
                    self.wfile.write(b"data: [DONE]\n\n")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
