"""The small policy server's HTTP door, and wrong ones."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from openclaw_rl.rpc.messages import new_id, now
from openclaw_rl.v1 import component_pb2, environment_pb2, turn_pb2
from tests.conformance.wrong_weights.right import SmallPolicy

_SAID = "word0 word1 "


class WithDoor(SmallPolicy):
    """The right one with a door. Each method is a place where a wrong one does otherwise."""

    def __init__(self, data: Path, environment: str = "") -> None:
        super().__init__(data, environment)
        policy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.answer(200, policy.models() if self.path == "/v1/models" else {})

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    body = json.loads(content)
                except ValueError:
                    self.answer(400, policy.error("the body is no JSON", None))
                    return
                if bad := policy.bad_field(body):
                    self.answer(400, policy.error(f"{bad} is not right", bad))
                    return
                turn_id = policy.turn_id()
                policy.from_door(turn_id, self.headers)
                headers = policy.headers(turn_id)
                if body.get("stream"):
                    self.answer(200, policy.events(), headers, "text/event-stream")
                else:
                    self.answer(200, policy.completion(), headers)

            def answer(self, status: int, body: Any, headers: dict[str, str] | None = None,
                       kind: str = "application/json") -> None:
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**(headers or {}), "Content-Type": kind, "Content-Length": len(data)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(data)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    async def GetStatus(self, request: Any, context: Any) -> component_pb2.GetStatusResponse:
        answer = await super().GetStatus(request, context)
        answer.status.http_address = f"http://127.0.0.1:{self._http.server_address[1]}"
        return answer

    def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "small", "object": "model"}]}

    def bad_field(self, body: dict[str, Any]) -> str:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return "messages"
        return "temperature" if body.get("temperature", 0) < 0 else ""

    def error(self, text: str, field: str | None) -> Any:
        return {"error": {"message": text, "type": "invalid_request_error", "param": field, "code": None}}

    def headers(self, turn_id: str) -> dict[str, str]:
        return {"X-OpenClaw-Turn-Id": turn_id, "X-OpenClaw-Policy-Version": str(self.versions.active)}

    def completion(self) -> dict[str, Any]:
        return {"id": new_id("chat_"), "object": "chat.completion", "model": "small", "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": _SAID}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}

    def events(self) -> str:
        chunks = [{"delta": {"role": "assistant", "content": _SAID}, "finish_reason": None},
                  {"delta": {}, "finish_reason": "stop"}]
        return "".join(f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [chunk]})}\n\n"
                       for chunk in chunks) + self.done()

    def done(self) -> str:
        return "data: [DONE]\n\n"

    def from_door(self, turn_id: str, headers: Any) -> None:
        at = now()
        self.outbox.put(environment_pb2.PolicyEvent(turn=turn_pb2.Turn(
            turn_id=turn_id, session_id=self.session_of(headers), declared_type=headers.get("X-Turn-Type", ""),
            model="small", api="chat.completions", requested_at=at, finished_at=at,
            messages=[turn_pb2.ChatMessage(role="user", content="Say hello.")],
            response=turn_pb2.ChatMessage(role="assistant", content=_SAID),
            finish_reason=turn_pb2.FINISH_REASON_STOP, policy_version=self.versions.active)))

    def session_of(self, headers: Any) -> str:
        return headers.get("X-Session-Id") or new_id("ses_")


class NoDoorHeaders(WithDoor):
    def headers(self, turn_id: str) -> dict[str, str]:
        return {}


class NoDone(WithDoor):
    def done(self) -> str:
        return ""


class OtherModels(WithDoor):
    def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "gpt-4", "object": "model"}]}


class ErrorsAsText(WithDoor):
    def error(self, text: str, field: str | None) -> Any:
        return {"detail": text}


class IgnoresSessionHeader(WithDoor):
    def session_of(self, headers: Any) -> str:
        return new_id("ses_")


#: Wrong door -> the check that must fail, and part of what it must say.
DOORS: dict[type[WithDoor], tuple[str, str]] = {
    NoDoorHeaders: ("policy.http.chat", "has no header x-openclaw-turn-id"),
    NoDone: ("policy.http.stream", "does not end with `data: [DONE]`"),
    OtherModels: ("policy.http.models", "/v1/models lists ['gpt-4']; the model is 'small'"),
    ErrorsAsText: ("policy.http.errors", "was refused without OpenAI's error body"),
    IgnoresSessionHeader: ("policy.http.turns", "the turn of a chat with X-Session-Id"),
}
