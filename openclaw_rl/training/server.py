"""The trainer's process: its parts put together."""

from __future__ import annotations

import asyncio
import logging

from openclaw_rl.config import Config, ConfigError, TrainerConfig
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.rpc.hosted_server import Inside
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import alone
from openclaw_rl.training.forget_service import TrainerForgetter
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.release.delivery_log import DeliveryLog
from openclaw_rl.training.release.policy_client import GrpcPolicyDoor
from openclaw_rl.training.service import TrainerService
from openclaw_rl.training.servicer import SERVICE, TrainerServicer
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import trainer_pb2_grpc
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Fleet

log = logging.getLogger(__name__)

NAME = "trainer"


@alone(NAME)
async def run(config: Config, home: Home, inside: Inside | None = None) -> None:
    """Serve until stopped; `inside` another program's server where one is given.

    Raises:
        ConfigError: the configured back end can't train such a policy.
        OSError: the port is in use, or the home can't be written.
        StorageError: the state can't be opened.
    """
    settings, policy = config.components.trainer, config.components.policy_server
    folder = home.component(NAME)
    api, keep = uses_api(policy), max(settings.keep_versions, policy.keep_versions)
    check_backend(settings, api)
    store = TrainerStore(folder / "state.db", config.durability, settings, tokens=not api)
    if api:
        from openclaw_rl.training.backends.playbook.material import make_learner  # with the API's client

        learner = make_learner(config, store, folder, home, keep)
    else:
        learner = Learner(settings, store, folder, lambda: ensure_model(policy.model, home), keep)

    def manifest(number: int) -> VersionManifest | None:
        version = store.version(number)
        return version.manifest if version is not None else None

    def fleet(service: TrainerService, versions: VersionStore) -> Fleet:
        return Fleet(lambda: resolve(home, config, "policy_server"), settings.policy_servers, versions,
                     on_state=service.on_state, on_activated=service.on_activated, on_rejected=service.on_rejected,
                     active=int(store.get("active") or 0), manifest=manifest,
                     on_number=store.raise_highest, on_further=service.on_further,
                     history=lambda address: DeliveryLog(store, address), full_every=settings.full_every)

    service = TrainerService(settings, store, learner, fleet,
                             GrpcPolicyDoor(lambda: resolve(home, config, "policy_server")))
    server = ComponentServer(NAME, settings.host, settings.port, home, service.status, service.stop, inside)
    server.on_forget = TrainerForgetter(NAME, home, store, service).forget
    server.add(trainer_pb2_grpc.add_TrainerServiceServicer_to_server, TrainerServicer(service, store), SERVICE)
    try:
        await server.start()
        service.start()
        await server.run_until_stopped()
    finally:
        await service.stop()
        await asyncio.to_thread(learner.release)  # a group of processes ends with it
        store.close()


def check_backend(settings: TrainerConfig, api: bool) -> None:
    """Check that the back end fits the policy.

    Args:
        settings: the trainer's.
        api: the policy is an API model.

    Raises:
        ConfigError: it doesn't.
    """
    if api and settings.backend not in ("auto", "playbook"):
        raise ConfigError(f"components.trainer.backend: {settings.backend} trains weights, and the policy is an API "
                          "model: leave it out, or set playbook")
    if not api and settings.backend == "playbook":
        raise ConfigError("components.trainer.backend: playbook is for API models, and the policy has weights: leave "
                          "it out, or set torch or megatron")
