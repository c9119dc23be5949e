"""The trainer as a component of the mesh."""

from __future__ import annotations

import asyncio

from openclaw_rl.config import Config, ConfigError, TrainerConfig
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.rpc.component_run import ComponentRun
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.rpc.membership import current_mesh
from openclaw_rl.runtime.component import Component, Listener, Service
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Runtime
from openclaw_rl.training.forget_service import TrainerForgetter
from openclaw_rl.training.learner_factory import make_learner
from openclaw_rl.training.release.delivery import Delivery
from openclaw_rl.training.release.delivery_log import DeliveryLog
from openclaw_rl.training.release.policy_client import GrpcPolicyClient
from openclaw_rl.training.service import TrainerService
from openclaw_rl.training.servicer import SERVICE, TrainerServicer
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import component_pb2, trainer_pb2_grpc
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Replicas

NAME = "trainer"


class TrainerComponent(Component):
    """The trainer: buffer, learner, and the releases that it sends to the policy servers.

    Raises:
        ConfigError: the configured back end can't train such a policy.
        OSError: the home can't be written.
        StorageError: the state can't be opened.
    """

    name = NAME
    status_blocks = True

    def __init__(self, runtime: Runtime, *, mounted: bool = False) -> None:
        super().__init__(runtime, mounted=mounted)
        config, home, resources = runtime.config, runtime.home, runtime.resources
        settings, policy = config.components.trainer, config.components.policy_server
        self.listener = Listener(settings.host, settings.port)
        folder = home.component(NAME)
        api, keep = uses_api(policy), max(settings.keep_versions, policy.keep_versions)
        check_backend(settings, api)
        store = self._store = TrainerStore(folder / "state.db", config.durability, settings, tokens=not api,
                                           mesh_id=current_mesh())
        resources.push_async_callback(asyncio.to_thread, store.close)
        learner = make_learner(config, store, folder, home, keep)
        resources.push_async_callback(asyncio.to_thread, learner.release)  # a group of processes ends with it

        def policy_address() -> str | None:
            return resolve(home, config, "policy_server")

        def manifest(number: int) -> VersionManifest | None:
            version = store.versions.get(number)
            return version.manifest if version is not None else None

        def replicas(delivery: Delivery, versions: VersionStore) -> Replicas:
            return Replicas(policy_address, settings.policy_servers, versions,
                         on_state=delivery.on_state, on_activated=delivery.on_activated,
                         on_rejected=delivery.on_rejected,
                         active=store.versions.active or 0, manifest=manifest,
                         on_number=store.versions.raise_highest, on_further=delivery.on_further,
                         history=lambda address: DeliveryLog(store.state, address), full_every=settings.full_every)

        self._service = TrainerService(settings, store, learner, replicas, GrpcPolicyClient(policy_address))
        resources.push_async_callback(self._service.stop)
        self.forget = TrainerForgetter(NAME, home, store, self._service).forget

    def services(self) -> list[Service]:
        return [Service(trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
                        TrainerServicer(self._service, self._store), SERVICE)]

    async def start(self) -> None:
        self._service.start()

    async def drain(self, grace: float) -> None:
        await self._service.stop(grace)

    def status(self) -> component_pb2.ComponentStatus:
        return self._service.status()


async def run(config: Config, home: Home) -> None:
    """Run the trainer in a process of its own until it is stopped. Raises as `TrainerComponent`."""
    await ComponentRun(TrainerComponent, config, home, process=True).run()


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
