"""An OpenAI-compatible API that answers every chat: as the policy with words, as the judge with a score."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeApi:
    """`url` ends with /v1; `keys` are the bearer keys that it was shown, `asked` the messages of each request.
    A long story takes a second or two."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.asked: list[list[dict[str, Any]]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.keys.add(self.headers.get("Authorization", ""))
                api.asked.append(body["messages"])
                # Only a judge's prompt speaks of scores.
                text = r"Score: \boxed{-1}" if "score" in json.dumps(body).lower() else "A heron is a bird."
                if "long story" in str(body["messages"][-1]["content"]):
                    text = " ".join([text] * 60)
                if body.get("stream"):
                    with contextlib.suppress(ConnectionError):  # who asked has gone
                        self._stream(body, text)
                else:
                    self._json({"id": "c1", "object": "chat.completion", "created": 1, "model": body["model"],
                                "choices": [{"index": 0, "finish_reason": "stop",
                                             "message": {"role": "assistant", "content": text}}],
                                "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}})

            def _json(self, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, body: dict[str, Any], text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                words = [word + " " for word in text.split()]
                for i, word in enumerate([*words, None]):
                    delta = {"content": word} if word else {}
                    event = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": body["model"],
                             "choices": [{"index": 0, "delta": {"role": "assistant", **delta} if i == 0 else delta,
                                          "finish_reason": None if word else "stop"}]}
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    if len(words) > 100:
                        time.sleep(0.005)
                self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
