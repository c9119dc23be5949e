"""Web pages in a real browser: one that the configuration names, one of a stranger, one that rebinds its name."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.entrypoint import HttpEntrypoint
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from tests.serving.entrypoints.test_entrypoint import config
from tests.serving.stub import EOS, StubEngine
from tests.support.browser import chromium  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: What a page tries: requests with and without a preflight, and to read responses.
SCRIPT = """
async (door) => {
  const ask = {messages: [{role: "user", content: "Train on this."}], session_id: "page", stream: true};
  const kinds = {
    json: {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(ask)},
    plain: {method: "POST", headers: {"Content-Type": "text/plain"}, body: JSON.stringify(ask)},
    opaque: {method: "POST", mode: "no-cors", body: JSON.stringify(ask)},
    untyped: {method: "POST", mode: "no-cors", body: new Blob([JSON.stringify(ask)])},
    read: {},
  };
  const results = {};
  for (const [name, options] of Object.entries(kinds)) {
    const path = name === "read" ? "/v1/models" : "/v1/chat/completions";
    try {
      const response = await fetch(door + path, options);
      results[name] = {status: response.status, text: await response.text(),
                       turn: response.headers.get("x-openclaw-turn-id")};
    } catch (error) {
      results[name] = {error: String(error)};
    }
  }
  return results;
}
"""


class Door:
    """An entrypoint with a stub behind it, on a loop of another thread."""

    def __init__(self, folder: Path, template: ChatTemplate, origins: list[str]) -> None:
        self._folder, self._template, self._origins = folder, template, origins
        self.engine = StubEngine(lambda _prompt: [*template.encode("Hello there!"), EOS])
        self.events: list[Any] = []
        self._up, self._down = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @contextmanager
    def opened(self) -> Iterator[Door]:
        self._thread.start()
        try:
            assert self._up.wait(30)
            yield self
        finally:
            self._down.set()
            self._thread.join(30)

    async def _run(self) -> None:
        home = Home(self._folder / "home").create()
        entrypoint = HttpEntrypoint(config(policy={"cors_origins": self._origins}), home, {})
        store = Database(home.root / "state.db", "group", SCHEMA)
        self.outbox = Outbox(store, "turns")
        service = ChatService(TurnRecorder(store, self.outbox), "stub")
        service.mark_ready(TokenPolicy(self.engine, self._template))
        entrypoint.start(service, client_digest, Metrics())
        self.address = entrypoint.address
        self._up.set()
        try:
            await asyncio.to_thread(self._down.wait)
        finally:
            await entrypoint.stop()
            store.close()


@contextmanager
def site(beyond: int = 0) -> Iterator[int]:
    """A web server of one page; its port. What else is asked for goes to the port `beyond`, as it does when the name
    of the site points to another server meanwhile."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self._answer(200, b"<!doctype html><title>A page</title>", {"Content-Type": "text/html"})
            elif not beyond:
                self._answer(404, b"", {})
            else:
                self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = http.client.HTTPConnection("127.0.0.1", beyond, timeout=30)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            self._answer(response.status, response.read(), {"Content-Type": response.headers["Content-Type"]})
            connection.close()

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tried(chromium: Any, url: str, door: str) -> dict[str, Any]:  # noqa: F811
    context = chromium.new_context()
    try:
        page = context.new_page()
        page.goto(url)
        results: dict[str, Any] = page.evaluate(SCRIPT, door)
        return results
    finally:
        context.close()


def test_pages(chromium: Any, tmp_path: Path, template: ChatTemplate) -> None:  # noqa: F811
    with site() as good, site() as evil:
        door = Door(tmp_path, template, [f"http://chat.test:{good}"])
        with door.opened(), site(door.port) as rebinding:
            address = f"http://127.0.0.1:{door.port}"
            stranger = tried(chromium, f"http://evil.test:{evil}/", address)
            assert all("error" in stranger[kind] for kind in ("json", "plain", "read")), stranger
            assert stranger["opaque"]["status"] == stranger["untyped"]["status"] == 0  # a page can't tell
            # Same site for the browser, another origin for us.
            neighbour = tried(chromium, f"http://127.0.0.1:{evil}/", address)
            assert all("error" in neighbour[kind] for kind in ("json", "plain", "read")), neighbour
            own = tried(chromium, f"http://evil.test:{rebinding}/", f"http://evil.test:{rebinding}")
            assert {kind: result.get("status") for kind, result in own.items()} == dict.fromkeys(own, 421), own
            assert not door.engine.prompts and door.outbox.stats().pending == 0
            friend = tried(chromium, f"http://chat.test:{good}/", address)
    assert friend["json"]["status"] == 200 and friend["json"]["text"].endswith("data: [DONE]\n\n")
    assert friend["json"]["turn"].startswith("turn_")
    assert friend["read"]["status"] == 200 and "stub" in json.loads(friend["read"]["text"])["data"][0]["id"]
    assert friend["plain"]["status"] == 415 and friend["opaque"]["status"] == 0
    assert len(door.engine.prompts) == 1
