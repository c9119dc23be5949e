"""A stand-in for an SGLang server: its HTTP interface as far as the engine uses it, and a script of what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from openclaw_rl.serving.engines.sglang import request_tag


class FakeSglang:
    """Counts up from the last token of the prompt, one token each `delay` seconds, and keeps a list of its calls."""

    def __init__(self, model_path: str, *, port: int = 0, delay: float = 0.002) -> None:
        self.model_path, self.port, self.delay = model_path, port, delay
        self.version = "default"
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.refuse: dict[str, int] = {}  #: path -> how often it says no
        self.forget_version = False  #: /update_weight_version has no effect
        self.hook = True  #: whether the marks are answered
        self.break_after: int | None = None  #: tokens after which a response's connection breaks, once
        self.context_length, self.tp_size = 4096, 1
        self.running = 0
        self.hangs = False  #: connections are taken, and nothing is answered
        self._free = asyncio.Event()
        self._free.set()
        self._aborted: set[str] = set()
        self._server: uvicorn.Server | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        """What was called, without what only looks."""
        return [path for path, _ in self.calls if path not in ("/model_info", "/server_info", "/generate")]

    def requests(self) -> list[dict[str, Any]]:
        return [body for path, body in self.calls if path == "/generate" and body["sampling_params"].get(
            "temperature") != 2.0]

    async def start(self) -> None:
        routes = [Route("/generate", self._generate, methods=["POST"]),
                  Route("/{path:path}", self._command, methods=["GET", "POST"])]
        config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=self.port, log_level="error",
                                lifespan="off")
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[method-assign]
        self._task = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """At once: what runs breaks off."""
        if self._server:
            self._server.should_exit = self._server.force_exit = True
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
            await self._task
            self._server = None

    async def _command(self, request: Request) -> Response:
        path = "/" + request.path_params["path"]
        body = json.loads(await request.body() or b"{}")
        self.calls.append((path, body))
        while self.hangs:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self.refuse.get(path, 0) > 0:
            self.refuse[path] -= 1
            return JSONResponse({"success": False, "message": "the shapes do not fit"}, 400)
        if path == "/pause_generation":
            assert body["mode"] == "in_place"
            self._free.clear()
        elif path == "/continue_generation":
            self._free.set()
        elif path == "/abort_request":
            assert body["abort_all"] is False
            self._aborted.add(body["rid"])
        elif path == "/update_weight_version":
            assert body["abort_all_requests"] is False
            if not self.forget_version:
                self.version = body["new_version"]
        elif path == "/model_info":
            return JSONResponse({"weight_version": self.version, "model_path": self.model_path})
        elif path == "/server_info":
            return JSONResponse({"context_length": self.context_length, "tp_size": self.tp_size, "dp_size": 1})
        return JSONResponse({"success": True})

    async def _generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.calls.append(("/generate", body))
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        ids, sampling = body["input_ids"], body["sampling_params"]
        self.running += 1
        made: list[int] = []
        versions: list[str] = []
        try:
            if sampling["max_new_tokens"] == 0:
                rows = [[None, ids[0], None], *([-float(token) / 10, token, None] for token in ids[1:])]
                yield _event({"output_ids": [], "meta_info": {
                    "finish_reason": {"type": "length"}, "completion_tokens": 0, "input_token_logprobs": rows,
                    **({"input_top_logprobs": [None, *[[[-0.1, 9, None]]] * len(ids[1:])]}
                       if body["top_logprobs_num"] else {})}})
            while len(made) < sampling["max_new_tokens"]:
                await asyncio.sleep(self.delay)
                while self.hangs:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await self._free.wait()
                if body["rid"] in self._aborted:
                    return
                if self.break_after == len(made):
                    self.break_after = None
                    raise ConnectionResetError
                made.append(((made or ids)[-1] + 1) % 120)
                versions.append(self.version)
                stopped = made[-1] in sampling.get("stop_token_ids", ())
                reason = ({"type": "stop", "matched": made[-1]} if stopped else {"type": "length"}
                          if len(made) == sampling["max_new_tokens"] else None)
                number = int(self.version) if self.version.isdecimal() else -1
                marks = [-0.5, -0.25, number] if self.hook else [-9.0, -9.0, -9.0]
                meta: dict[str, Any] = {
                    "finish_reason": reason, "completion_tokens": len(made), "cached_tokens": len(ids) - 1,
                    "output_token_ids_logprobs": [[[value, 0, None] for value in marks]],
                    "output_top_logprobs": [
                        [[-0.5, made[-1], None], [-1.5, 3, None]][:body.get("top_logprobs_num", 0)]]}
                assert request_tag.asked(body["token_ids_logprob"])
                if reason:
                    meta["weight_versions"] = [{"version": version, "start": i, "end": i + 1}
                                               for i, version in enumerate(versions)]
                yield _event({"output_ids": [made[-1]], "meta_info": meta})
                if reason:
                    break
            yield b"data: [DONE]\n\n"
        finally:
            self.running -= 1


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
