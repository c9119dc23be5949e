"""The policy server as a component of the mesh."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from openclaw_rl.config import Config, PolicyServerConfig
from openclaw_rl.delivery.requests import make_request
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.models.api_endpoints import ApiModel, policy_api, uses_api
from openclaw_rl.models.identity import model_id
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.component_run import ComponentRun, ended
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.runtime import notify
from openclaw_rl.runtime.component import Component, Listener, Service
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Runtime, activated
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
from openclaw_rl.serving.turn_lookup import TurnLookup
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2, environment_pb2, environment_pb2_grpc, policy_pb2, policy_pb2_grpc
from openclaw_rl.weights.api_model import ensure_api_model
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from openclaw_rl.weights.transfer.relay import WeightRelay

logger = logging.getLogger(__name__)

NAME = "policy_server"
_SERVICE = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name


class PolicyComponent(Component):
    """The policy server: engine, HTTP and gRPC, and the stream of turns to the environment server.

    It listens at once and answers that the policy is getting ready, which takes seconds.

    Raises:
        ConfigError: an API model without a key, or (of `ready`) a model that can't be prepared or loaded.
        OSError: a port is in use, or the home can't be written.
        StorageError: the state can't be opened.
    """

    name = NAME
    serves_at_once = False

    def __init__(self, runtime: Runtime, *, mounted: bool = False) -> None:
        super().__init__(runtime, mounted=mounted)
        config, home, resources = runtime.config, runtime.home, runtime.resources
        settings = self._settings = config.components.policy_server
        self.listener = Listener(settings.host, settings.grpc_port)
        self._api = policy_api(settings, os.environ) if uses_api(settings) else None
        self._folder = home.component(NAME)
        self._folder.mkdir(parents=True, exist_ok=True)
        store = self.database = Database(self._folder / "state.db", config.durability, SCHEMA + conversations.SCHEMA)
        resources.push_async_callback(asyncio.to_thread, store.close)
        outbox = Outbox(store, "turns")
        known = conversations.Conversations(store, idle=config.session_awareness.session_timeout)
        self._recorder = TurnRecorder(store, outbox, also=known.save)
        resources.push_async_callback(asyncio.to_thread, self._recorder.close)
        self._engines = AsyncExitStack()
        resources.push_async_callback(self._engines.aclose)
        self._http = HttpEntrypoint(config, home, mounted=mounted)
        self.http_address = self._http.address
        resources.push_async_callback(self._http.stop)

        self._presence = SessionHeartbeat(self._recorder, config.session_awareness.session_timeout)
        aliases = frozenset({settings.model, "default", "openclaw-rl", *settings.aliases})
        self._turns = ChatService(self._recorder, served_name(settings), aliases, known.index, self._presence)
        self._board = StatusReporter(self._turns, self._recorder, outbox, store)
        self._board.entrypoint_alarms = self._http.alarms
        self._servicer = PolicyServicer(self._turns)
        self._forgetter = PolicyForgetter(NAME, home, store, self._recorder, known)
        self._forgetter.history = self._turns.history
        self.forget = self._forgetter.forget
        env_server = partial(resolve, home, config, "env_server")
        self._turns.missing = TurnLookup(outbox, env_server).missing
        self._sender = Sender(outbox, env_server, _open_stream,
                              partial(make_request, environment_pb2.RecordTurnsRequest, "events"), role="env_server")

    def services(self) -> list[Service]:
        return [Service(policy_pb2_grpc.add_PolicyServiceServicer_to_server, self._servicer, _SERVICE)]

    def status(self) -> component_pb2.ComponentStatus:
        return self._board.status()

    async def drain(self, grace: float) -> None:
        await self._turns.drain(grace)

    async def start(self) -> None:
        resources = self.runtime.resources
        metrics = Metrics(self._board.gauges, self._board.alarms, self._board.engine_counters, model=self._turns.model,
                          provider="openclaw_rl" if self._api is None else "openai")
        self._turns.on_ended = metrics.generations.ended
        app = self._http.start(self._turns, client_digest, metrics)
        if self.mounted:
            self.application = self._in_runtime(app)
        else:
            logger.info("%s serves OpenAI's API on %s", NAME, self.http_address)
        self._sender.start()
        resources.push_async_callback(self._sender.stop)
        resources.push_async_callback(ended, asyncio.create_task(self._recorder.run()))
        resources.push_async_callback(ended, asyncio.create_task(self._presence.run()))

    async def ready(self) -> None:
        settings, turns, engines = self._settings, self._turns, self._engines
        policy, engine, base = await _policy(settings, self._api, self.runtime.home, turns, engines)
        versions = PolicyVersions(self._folder, base, engine, settings.keep_versions)
        await versions.start()
        source = settings.weights_from
        receiver = WeightReceiver(versions)
        self._servicer.weights = self._board.weights = WeightsService(versions, receiver, source)
        engines.push_async_callback(self._servicer.weights.close)
        if source:
            self._board.relay = WeightRelay(source, versions, receiver)
            engines.push_async_callback(self._board.relay.stop)
            await self._board.relay.start()
        self._servicer.scorer = policy if isinstance(policy, TokenPolicy) else None
        self._board.engine, self._board.problems = engine, versions.problems
        self._forgetter.versions = versions
        if self._api is None:
            self._forgetter.engine, turns.on_forgotten = engine, engine.clear_prefixes
            turns.queue = FairQueue(settings.max_batch * max(1, len(engine.status().workers)),
                                    settings.max_waiting)
        turns.mark_ready(policy)
        logger.info("%s is ready: model %s, version %d", NAME, turns.model, turns.version)

    def _in_runtime(self, app: ASGIApp) -> ASGIApp:
        """The application, for another program's web server, whose tasks know nothing of this component."""
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            with activated(self.runtime):
                await app(scope, receive, send)

        return application


async def run(config: Config, home: Home) -> None:
    """Run the policy server in a process of its own until it is stopped. Raises as `PolicyComponent`."""
    await ComponentRun(PolicyComponent, config, home, process=True).run()


async def _policy(settings: PolicyServerConfig, api: ApiModel | None, home: Home, turns: ChatService,
                  engines: AsyncExitStack) -> tuple[Policy, Any, Path | None]:
    """The policy, what `PolicyVersions` takes for its engine, and the base model's folder."""
    if api is not None:
        # Imported here, since each kind of engine is slow to import and needs packages that the other does without.
        upstream = await asyncio.to_thread(importlib.import_module, "openclaw_rl.serving.engines.openai.engine")
        base = await asyncio.to_thread(ensure_api_model, api.model, api.base_url, home)
        policy = upstream.UpstreamPolicy(api, model_id(base), names=upstream.Names.of(
            f"components.{NAME}", api.model, settings.api_key_env), image_hosts=settings.image_hosts)
        engines.push_async_callback(policy.stop)
        engines.push_async_callback(ended, asyncio.create_task(policy.monitor()))
        return policy, policy, base

    def say(text: str) -> None:
        turns.state = text
        notify.progress(text)

    return await make_policy(settings, home, say, engines)


def _open_stream(channel: Any) -> Any:
    return environment_pb2_grpc.EnvironmentServiceStub(channel).RecordTurns
