"""The policy server: engine, HTTP and gRPC on one event loop, and the stream of turns to the environment server."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config, PolicyServerConfig
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.models.api import ensure_api_model
from openclaw_rl.models.api_endpoints import ApiModel, policy_api, uses_api
from openclaw_rl.models.identity import model_id
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.rpc.hosted_server import Inside
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import alone
from openclaw_rl.serving import conversations
from openclaw_rl.serving.admission import FairQueue
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.engines.factory import make_policy, served_name
from openclaw_rl.serving.entrypoints.grpc.servicer import PolicyServicer
from openclaw_rl.serving.entrypoints.grpc.weights_service import WeightsService
from openclaw_rl.serving.entrypoints.openai.entrypoint import HttpEntrypoint
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.forget import PolicyForgetter
from openclaw_rl.serving.heartbeat import SessionHeartbeat
from openclaw_rl.serving.status import StatusReporter
from openclaw_rl.serving.token_policy import Policy, TokenPolicy
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import environment_pb2, environment_pb2_grpc, policy_pb2, policy_pb2_grpc
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from openclaw_rl.weights.transfer.relay import WeightRelay

log = logging.getLogger(__name__)

NAME = "policy_server"
_SERVICE = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name


@alone(NAME)
async def run(config: Config, home: Home, inside: Inside | None = None) -> None:
    """Serve until stopped. The doors open at once and say that the policy is getting ready, which takes seconds.

    Args:
        inside: another program's gRPC server, and `mount`, which takes the HTTP door's application; None has ports.

    Raises:
        ConfigError: an API model without a key, or a model that can't be prepared or loaded.
        OSError: a port is in use, or the home can't be written.
    """
    settings = config.components.policy_server
    api = policy_api(settings, os.environ) if uses_api(settings) else None
    folder = home.component(NAME)
    folder.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:  # unwinds from the last to the first
        http = HttpEntrypoint(config, home, mounted=inside is not None)
        store = Database(folder / "state.db", config.durability, SCHEMA + conversations.SCHEMA)
        stack.callback(store.close)
        outbox = Outbox(store, "turns")
        known = conversations.Conversations(store)
        recorder = TurnRecorder(store, outbox, strict=config.durability == "strict", also=known.save)
        stack.callback(recorder.close)
        engines = await stack.enter_async_context(AsyncExitStack())
        stack.push_async_callback(http.stop)

        presence = SessionHeartbeat(recorder, config.session_awareness.session_timeout)
        aliases = frozenset({settings.model, "default", "openclaw-rl", *settings.aliases})
        turns = ChatService(recorder, served_name(settings), aliases, known.index, presence)
        board = StatusReporter(turns, recorder, outbox, store)
        servicer = PolicyServicer(turns)
        component = ComponentServer(NAME, settings.host, settings.grpc_port, home, board.status, turns.drain, inside)
        component.http_address = http.address
        component.add(policy_pb2_grpc.add_PolicyServiceServicer_to_server, servicer, _SERVICE)
        component.set_serving(False)
        forgetter = PolicyForgetter(NAME, home, store, recorder, known)
        component.on_forget = forgetter.forget
        await component.start()
        serving = asyncio.create_task(component.run_until_stopped())
        stack.push_async_callback(_ended, serving)
        board.door = http.alarms
        app = http.start(turns, client_digest, Metrics(board.gauges, board.alarms))
        if inside is None:
            log.info("%s serves OpenAI's API on %s", NAME, http.address)
        elif inside.mount is not None:
            inside.mount(app)
        sender = Sender(outbox, lambda: resolve(home, config, "env_server"), _open_stream, _record_request,
                        role="env_server")
        sender.start()
        stack.push_async_callback(sender.stop)
        stack.push_async_callback(_ended, asyncio.create_task(recorder.run()))
        stack.push_async_callback(_ended, asyncio.create_task(presence.run()))

        async def get_ready() -> None:
            policy, engine, base = await _policy(settings, api, home, turns, engines)
            versions = PolicyVersions(folder, base, engine, settings.keep_versions)
            await versions.start()
            source = settings.weights_from
            receiver = WeightReceiver(versions)
            servicer.weights = board.weights = WeightsService(versions, receiver, source)
            engines.push_async_callback(servicer.weights.close)
            if source:
                board.relay = WeightRelay(source, versions, receiver)
                engines.push_async_callback(board.relay.stop)
                await board.relay.start()
            servicer.scorer = policy if isinstance(policy, TokenPolicy) else None
            board.engine, board.problems = engine, versions.problems
            forgetter.versions = versions
            if api is None:
                turns.queue = FairQueue(settings.max_batch * max(1, len(getattr(engine, "workers", ()))),
                                        settings.max_waiting)
            turns.mark_ready(policy)
            await component.set_serving(True)
            log.info("%s is ready: model %s, version %d", NAME, turns.model, turns.version)

        getting_ready = asyncio.create_task(get_ready())
        stack.push_async_callback(_ended, getting_ready)
        await asyncio.wait((serving, getting_ready), return_when=asyncio.FIRST_COMPLETED)
        if getting_ready.done():
            getting_ready.result()
        await serving


async def _policy(settings: PolicyServerConfig, api: ApiModel | None, home: Home, turns: ChatService,
                  engines: AsyncExitStack) -> tuple[Policy, Any, Path | None]:
    """The policy, what `PolicyVersions` takes for its engine, and the base model's folder."""
    if api is not None:
        # Imported here, since each kind of engine is slow to import and needs packages that the other does without.
        upstream = await asyncio.to_thread(importlib.import_module, "openclaw_rl.serving.engines.openai.engine")
        base = await asyncio.to_thread(ensure_api_model, api.model, api.base_url, home)
        policy = upstream.UpstreamPolicy(api, model_id(base), names=upstream.Names.of(
            f"components.{NAME}", api.model, settings.api_key_env))
        engines.push_async_callback(policy.stop)
        engines.push_async_callback(_ended, asyncio.create_task(policy.watch()))
        return policy, policy, base
    return await make_policy(settings, home, lambda text: setattr(turns, "state", text), engines)


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _open_stream(channel: Any) -> Any:
    return environment_pb2_grpc.EnvironmentServiceStub(channel).RecordTurns


def _record_request(payloads: list[bytes]) -> environment_pb2.RecordTurnsRequest:
    return environment_pb2.RecordTurnsRequest(
        events=[environment_pb2.PolicyEvent.FromString(payload) for payload in payloads])
