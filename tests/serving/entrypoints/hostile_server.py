"""An entrypoint with a stub behind it, over HTTP and HTTPS, in its own process. Argument: a folder."""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import Future
from pathlib import Path

from openclaw_rl.config.security import LimitsConfig
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.access import Access
from openclaw_rl.serving.entrypoints.openai.app import create_app
from openclaw_rl.serving.entrypoints.openai.connection import ClientTimeouts
from openclaw_rl.serving.entrypoints.openai.http import HttpServer
from openclaw_rl.serving.entrypoints.openai.https import Certificate
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import turn_pb2
from tests.serving.stub import EOS, StubEngine, write_tokenizer

TIMEOUTS = ClientTimeouts(handshake=1.0, head=1.0, body=1.0, write=1.0, idle=2, linger=1.0)
CONNECTIONS = 150


class Recorder(TurnRecorder):
    """Counts the turns that were cut short."""

    cancelled = 0

    def turn_now(self, turn: turn_pb2.Turn) -> Future[None]:
        self.cancelled += turn.finish_reason == turn_pb2.FINISH_REASON_CANCELLED and len(turn.tokens.response_ids) > 0
        return super().turn_now(turn)


async def main(folder: Path) -> None:
    template = ChatTemplate(write_tokenizer(folder / "tokenizer"))
    long, short = [*template.encode("word " * 8) * 4000], [*template.encode("Hello!"), EOS]
    engine = StubEngine(lambda prompt: long if len(prompt) > 100 else short, context=200_000)
    database = Database(folder / "state.db", "group", SCHEMA)
    recorder = Recorder(database, Outbox(database, "turns"))
    service = ChatService(recorder, "stub")
    service.mark_ready(TokenPolicy(engine, template))
    metrics = Metrics(lambda: {"cancelled": recorder.cancelled, "running": service.running})
    access = Access(None, LimitsConfig(requests_per_minute=10**6, body=2**20))
    certificate = Certificate(folder / "entrypoint.crt", folder / "entrypoint.key")
    servers = [HttpServer("127.0.0.1", 0, tls, CONNECTIONS, TIMEOUTS) for tls in (None, certificate.context)]
    for entrypoint in servers:
        entrypoint.start(create_app(service, client_digest, access, metrics), metrics.refused)
    print(json.dumps([entrypoint.address for entrypoint in servers]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
