"""A real uvicorn on a free port, in front of a stub engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openclaw_rl.config import Config
from openclaw_rl.config.security import LimitsConfig
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.auth.keys import KeyRing
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.access import Access
from openclaw_rl.serving.entrypoints.openai.app import create_app
from openclaw_rl.serving.entrypoints.openai.connection import ClientTimeouts
from openclaw_rl.serving.entrypoints.openai.http import HttpServer
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, turn_pb2
from tests.serving.stub import EOS, StubEngine, write_tokenizer


@dataclass
class Entrypoint:
    """What a test needs of the running server."""

    url: str
    engine: StubEngine
    template: ChatTemplate
    service: ChatService
    outbox: Outbox
    access: Access

    def says(self, text: str, end: bool = True) -> None:
        """Make the engine answer with `text`."""
        ids = self.template.encode(text)
        self.engine.script = lambda _prompt: [*ids, *([EOS] if end else [])]

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def http(self, **kwargs: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, verify=False,
                                 **{"headers": {"Content-Type": "application/json"}, **kwargs})

    def prompt(self, index: int = -1) -> str:
        """The prompt that the engine was given, as text."""
        return b"".join(self.template.tokens.table[i] for i in self.engine.prompts[index]).decode()

    def events(self) -> list[environment_pb2.PolicyEvent]:
        return [environment_pb2.PolicyEvent.FromString(row.payload) for row in self.outbox.window(0, 1000, 2**24)]

    def turns(self) -> list[turn_pb2.Turn]:
        return [event.turn for event in self.events() if event.WhichOneof("event") == "turn"]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate(write_tokenizer(Path(tmp_path_factory.mktemp("tokenizer"))))


OpenEntrypoint = Callable[..., Awaitable[Entrypoint]]


@pytest.fixture
async def open_entrypoint(tmp_path: Path, template: ChatTemplate) -> AsyncIterator[OpenEntrypoint]:
    """Opens servers with settings of their own."""
    async with AsyncExitStack() as stack:
        async def open_one(api_keys: tuple[str, ...] = (), ready: bool = True, ring: KeyRing | None = None,
                           timeouts: ClientTimeouts | None = None, **limits: Any) -> Entrypoint:
            engine = StubEngine(lambda _prompt: [EOS])
            store = Database(tmp_path / "state.db", "group", SCHEMA)
            stack.callback(store.close)
            outbox = Outbox(store, "turns")
            service = ChatService(TurnRecorder(store, outbox), "stub", frozenset({"default"}))
            if ready:
                service.mark_ready(TokenPolicy(engine, template))
            settings = LimitsConfig.model_validate({"body": 2**20, "requests_per_minute": 10**6, **limits})
            fixed = Config.model_validate({"components": {"policy_server": {"api_keys": api_keys}}})
            metrics = Metrics()
            access = Access(ring or KeyRing.of(fixed, Home(tmp_path / "home"), {}), settings)
            http = HttpServer("127.0.0.1", 0, connections=settings.connections, timeouts=timeouts)
            http.start(create_app(service, client_digest, access, metrics), metrics.refused, access.unlimited)
            stack.push_async_callback(http.stop)
            entrypoint = Entrypoint(http.address, engine, template, service, outbox, access)
            entrypoint.says("Hello there!")
            return entrypoint

        yield open_one


@pytest.fixture
async def entrypoint(open_entrypoint: OpenEntrypoint) -> Entrypoint:
    return await open_entrypoint()
