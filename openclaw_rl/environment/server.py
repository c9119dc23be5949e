"""The environment server's process: its parts put together."""

from __future__ import annotations

import asyncio
import logging

from openclaw_rl.config import Config
from openclaw_rl.delivery.outbox import Outbox
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.delivery.store import Store
from openclaw_rl.environment import tables
from openclaw_rl.environment.servicer import SERVICE, EnvironmentServicer
from openclaw_rl.environment.sessions import SessionBook
from openclaw_rl.home import Home
from openclaw_rl.journal import Journal
from openclaw_rl.mesh.discovery import resolve
from openclaw_rl.mesh.server import ComponentServer
from openclaw_rl.v1 import component_pb2, environment_pb2_grpc, judge_pb2, judge_pb2_grpc, turn_pb2

log = logging.getLogger(__name__)

NAME = "env_server"
#: Seconds between two looks for sessions that have timed out, at most.
REAP_EVERY = 5.0
#: Looks between two deletions of old summaries.
PRUNE_EVERY = 20
#: Counters of the status, also while they are 0.
COUNTERS = ("turns_main", "turns_side", "turns_unknown", "retries", "transitions_sent", "total_interactions")


async def run(config: Config, home: Home) -> None:
    """Serve until stopped.

    Raises:
        OSError: the port is in use, or the home can't be written.
        StoreError: the state can't be opened.
    """
    settings = config.components.env_server
    store = Store(home.component(NAME) / "state.db", config.durability, tables.SCHEMA)
    outbox = Outbox(store, "transitions", on_rejected=lambda turn_id, reason: book.rejected(turn_id, reason))
    journal = Journal(home.logs, config.journal)
    book = SessionBook(store, outbox, journal, config.session_awareness)
    sender = Sender(outbox, resolve=lambda: resolve(home, config, "prm_judge"),
                    open_stream=lambda channel: judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions,
                    make_request=_request)
    server = ComponentServer(NAME, settings.host, settings.port, home,
                             lambda: status(book, outbox, [*store.problems, journal.problem]))
    server.add(environment_pb2_grpc.add_EnvironmentServiceServicer_to_server, EnvironmentServicer(book, store), SERVICE)
    reaper = None
    try:
        await server.start()
        sender.start()
        interval = min(REAP_EVERY, config.session_awareness.session_timeout / 4)
        reaper = asyncio.create_task(_reap(book, interval), name="reaper")
        await server.run_until_stopped()
    finally:
        if reaper is not None:
            reaper.cancel()
        await sender.stop()
        journal.close()
        store.close()


def status(book: SessionBook, outbox: Outbox, problems: list[str]) -> component_pb2.ComponentStatus:
    """State, detail and figures; `problems` of the parts that the book does not know, empty ones are none."""
    problems = [problem for problem in (*problems, book.trainability.problem) if problem]
    stats = outbox.stats()
    notes = list(problems)
    if stats.pending and not stats.connected:
        notes.append(f"{stats.pending} transitions wait on disk for prm_judge: {stats.last_error or 'connecting'}")
    if stats.rejected:
        notes.append(f"prm_judge has refused {stats.rejected} transitions; ListTurns says why")
    result = component_pb2.ComponentStatus(
        state=component_pb2.COMPONENT_STATE_DEGRADED if problems else component_pb2.COMPONENT_STATE_RUNNING,
        detail="; ".join(notes), policy_version=book.policy_version, outboxes=[stats],
        counters={name: book.counters[name] for name in COUNTERS})
    result.counters["sessions_open"] = book.sessions_open
    return result


def _request(payloads: list[bytes]) -> judge_pb2.JudgeTransitionsRequest:
    return judge_pb2.JudgeTransitionsRequest(transitions=map(turn_pb2.Transition.FromString, payloads))


async def _reap(book: SessionBook, interval: float) -> None:
    """End idle sessions and delete old summaries, for ever. A full disk stops neither the server nor this."""
    looks = 0
    while True:
        await asyncio.sleep(interval)
        try:
            if ended := book.reap():
                log.info("%d sessions timed out", ended)
            looks += 1
            if looks % PRUNE_EVERY == 0:
                book.prune()
        except Exception:
            log.exception("looking for sessions that have timed out; will try again")
