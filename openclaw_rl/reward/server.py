"""The judge as a component of the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from openclaw_rl.config import Config, PrmJudgeConfig
from openclaw_rl.delivery.requests import make_request
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy.erase import handler
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.interface import InstantJudge
from openclaw_rl.reward.judges.classifier import ClassifierJudge
from openclaw_rl.reward.judges.plugins import load_judge
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.reward.panel import Panel
from openclaw_rl.reward.queue import RECOVERY, SCHEMA, JudgeQueue
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.reward.servicer import SERVICE, JudgeServicer
from openclaw_rl.rpc.component_run import ComponentRun
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.runtime.alarms import Raised, outbox_alarms
from openclaw_rl.runtime.component import Component, Listener, Service
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Runtime
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2, judge_pb2_grpc, trainer_pb2, trainer_pb2_grpc

NAME = "prm_judge"
#: Votes of a judge whose votes differ, when the configuration does not say.
MODEL_VOTES = 3


class JudgeComponent(Component):
    """The judge: its panel, its queue on disk, and the stream of samples to the trainer.

    Raises:
        ConfigError: there is no such judge, or it lacks something (a key).
        OSError: the home can't be written.
        StorageError: the state can't be opened.
    """

    name = NAME

    def __init__(self, runtime: Runtime, *, mounted: bool = False) -> None:
        super().__init__(runtime, mounted=mounted)
        config, home, resources = runtime.config, runtime.home, runtime.resources
        settings = config.components.prm_judge
        self.listener = Listener(settings.host, settings.port)
        panel = make_panel(settings)
        self._store = Database(home.component(NAME) / "state.db", config.durability, SCHEMA, RECOVERY)
        resources.push_async_callback(asyncio.to_thread, self._store.close)
        self._samples = Outbox(self._store, "samples")
        self._journal = Journal(home.logs, config.journal)
        resources.callback(self._journal.close)
        self._sender = Sender(self._samples, resolve=lambda: resolve(home, config, "trainer"),
                              open_stream=lambda channel: trainer_pb2_grpc.TrainerServiceStub(channel).SubmitSamples,
                              make_request=partial(make_request, trainer_pb2.SubmitSamplesRequest, "samples"),
                              role="trainer")
        resources.push_async_callback(self._sender.stop)
        self._service = JudgeService(panel, JudgeQueue(self._store, self._samples), Broadcast(), self._journal,
                                     settings.workers)
        resources.push_async_callback(self._service.stop)
        self.forget = handler(home, NAME, self._store, self._service.forget)

    def services(self) -> list[Service]:
        return [Service(judge_pb2_grpc.add_JudgeServiceServicer_to_server, JudgeServicer(self._service), SERVICE)]

    async def start(self) -> None:
        self._service.start()
        self._sender.start()

    async def drain(self, grace: float) -> None:
        await self._service.stop(grace)

    def status(self) -> component_pb2.ComponentStatus:
        return status(self._service, self._samples, [
            *self._store.alarms(), ("journal", self._journal.problem)])


async def run(config: Config, home: Home) -> None:
    """Run the judge in a process of its own until it is stopped. Raises as `JudgeComponent`."""
    await ComponentRun(JudgeComponent, config, home, process=True).run()


def make_panel(settings: PrmJudgeConfig) -> Panel:
    """The configured judge with its votes; beside a judge that does not contain the rules these stand guard.

    Raises:
        ConfigError: there is no such judge, or it can't be made.
    """
    judge = load_judge(settings)
    own = isinstance(judge, (RulesJudge, ClassifierJudge))
    votes = settings.votes or (1 if own or isinstance(judge, InstantJudge) else MODEL_VOTES)
    return Panel(judge, votes, settings.vote_timeout, guard=None if own else RulesJudge())


def status(service: JudgeService, samples: Outbox, alarms: Iterable[Raised]) -> component_pb2.ComponentStatus:
    """The service's status with that of its outbox; `alarms` of the other parts, empty ones are none."""
    stats = samples.stats()
    result = service.status([*alarms, *outbox_alarms(stats, "trainer", samples.last_rejected)])
    result.outboxes.append(stats)
    notes = [result.detail]
    if stats.pending and not stats.connected and not any(alarm.name == "samples_waiting" for alarm in result.alarms):
        notes.append(f"{stats.pending} samples wait on disk for trainer: {stats.last_error or 'connecting'}")
    result.detail = "; ".join(filter(None, notes))
    return result
