"""The judge's process: its parts put together."""

from __future__ import annotations

from collections.abc import Iterable

from openclaw_rl.config import Config, PrmJudgeConfig
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy.erase import handler
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.interface import InstantJudge
from openclaw_rl.reward.judges.plugins import load_judge
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.reward.panel import Panel
from openclaw_rl.reward.queue import SCHEMA, JudgeQueue
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.reward.servicer import SERVICE, JudgeServicer
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.rpc.hosted_server import Inside
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.alarms import Raised, outbox_alarms
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import alone
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2, judge_pb2_grpc, trainer_pb2, trainer_pb2_grpc, turn_pb2

NAME = "prm_judge"
#: Votes of a judge that is not instant, when the configuration does not say.
MODEL_VOTES = 3


@alone(NAME)
async def run(config: Config, home: Home, inside: Inside | None = None) -> None:
    """Serve until stopped; `inside` another program's server where one is given.

    Raises:
        ConfigError: there is no such judge, or it lacks something (a key).
        OSError: the port is in use, or the home can't be written.
        StorageError: the state can't be opened.
    """
    settings = config.components.prm_judge
    panel = make_panel(settings)
    store = Database(home.component(NAME) / "state.db", config.durability, SCHEMA)
    samples = Outbox(store, "samples")
    journal = Journal(home.logs, config.journal)
    service = JudgeService(panel, JudgeQueue(store, samples), Broadcast(), journal, settings.workers)
    sender = Sender(samples, resolve=lambda: resolve(home, config, "trainer"),
                    open_stream=lambda channel: trainer_pb2_grpc.TrainerServiceStub(channel).SubmitSamples,
                    make_request=_request, role="trainer")
    server = ComponentServer(NAME, settings.host, settings.port, home,
                             lambda: status(service, samples, [*(("state_damaged", problem) for problem in
                                                                 store.problems), ("journal", journal.problem)]),
                             on_drain=service.stop, inside=inside)
    server.on_forget = handler(home, NAME, store, service.forget)
    server.add(judge_pb2_grpc.add_JudgeServiceServicer_to_server, JudgeServicer(service), SERVICE)
    try:
        await server.start()
        service.start()
        sender.start()
        await server.run_until_stopped()
    finally:
        await service.stop()
        await sender.stop()
        journal.close()
        store.close()


def make_panel(settings: PrmJudgeConfig) -> Panel:
    """The configured judge with its votes; beside a judge other than the rules these stand guard.

    Raises:
        ConfigError: there is no such judge, or it can't be made.
    """
    judge = load_judge(settings)
    instant = isinstance(judge, InstantJudge)
    return Panel(judge, settings.votes or (1 if instant else MODEL_VOTES), settings.vote_timeout,
                 guard=None if isinstance(judge, RulesJudge) else RulesJudge())


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


def _request(payloads: list[bytes]) -> trainer_pb2.SubmitSamplesRequest:
    return trainer_pb2.SubmitSamplesRequest(samples=map(turn_pb2.Sample.FromString, payloads))
