"""The environment server's process: its parts put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from openclaw_rl.config import EMBEDDED_MODEL, Config
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy.erase import handler
from openclaw_rl.rollouts.environments.factory import configured_environments
from openclaw_rl.rollouts.episodes.policy_client import PolicyCaller
from openclaw_rl.rollouts.episodes.runner import STOPPED, Episodes
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.leases.status import tell
from openclaw_rl.rollouts.sandboxes.factory import remove_leftovers
from openclaw_rl.rollouts.servicer import SERVICE, EnvironmentServicer
from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.rpc.hosted_server import Inside
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.alarms import Alarms, Raised, outbox_alarms, quarantine_alarm
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import alone
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2, environment_pb2_grpc, judge_pb2, judge_pb2_grpc, turn_pb2

log = logging.getLogger(__name__)

NAME = "env_server"
#: Seconds between two looks for sessions that have timed out, at most.
REAP_EVERY = 5.0
#: Looks between two deletions of old summaries.
PRUNE_EVERY = 20
#: Counters of the status, also while they are 0.
COUNTERS = ("turns_main", "turns_side", "turns_unknown", "retries", "transitions_sent", "feedback_ignored",
            "total_interactions", "episodes_done", "episodes_broken")


@alone(NAME)
async def run(config: Config, home: Home, inside: Inside | None = None) -> None:
    """Serve until stopped; `inside` another program's server where one is given.

    Raises:
        OSError: the port is in use, or the home can't be written.
        StorageError: the state can't be opened.
    """
    settings = config.components.env_server
    store = Database(home.component(NAME) / "state.db", config.durability, tables.SCHEMA)
    outbox = Outbox(store, "transitions", on_rejected=lambda *refused: tracker.rejected(*refused))
    journal = Journal(home.logs, config.journal)
    tracker = SessionTracker(store, outbox, journal, config.session_awareness)
    sender = Sender(outbox, resolve=lambda: resolve(home, config, "prm_judge"),
                    open_stream=lambda channel: judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions,
                    make_request=_request, role="prm_judge")
    pool = LeasePool(configured_environments(settings, home), ttl=settings.lease_ttl, max_waiting=settings.max_waiting)
    board = StatusBoard(tracker, outbox, lambda: [*(("state_damaged", problem) for problem in store.problems),
                                               ("journal", journal.problem)], pool)

    policy = PolicyCaller(lambda: resolve(home, config, "policy_server"))
    embedded = config.components.policy_server.model == EMBEDDED_MODEL
    episodes = Episodes(pool, tracker, store, policy, settings.episodes.model_copy(update={
        "tool_choice": settings.episodes.tool_choice or ("required" if embedded else "auto")}))

    async def drain(_: float) -> None:
        await episodes.close()
        await pool.close()

    server = ComponentServer(NAME, settings.host, settings.port, home, board.status, drain, inside)
    server.on_forget = handler(home, NAME, store, tracker.forget)
    server.add(environment_pb2_grpc.add_EnvironmentServiceServicer_to_server,
               EnvironmentServicer(tracker, store, pool, episodes), SERVICE)
    reaper = None
    if broken := tracker.break_off_episodes(STOPPED):
        log.info("%d episodes ran when the last environment server ended: they are broken off", broken)
    try:
        await server.start()
        sender.start()
        if left := await asyncio.to_thread(remove_leftovers, home.root):
            log.info("removed what %d sandboxes of a killed environment server had left", left)
        pool.start()
        interval = min(REAP_EVERY, config.session_awareness.session_timeout / 4)
        reaper = asyncio.create_task(_reap(tracker, interval, settings.episodes.keep), name="reaper")
        await server.run_until_stopped()
    finally:
        if reaper is not None:
            reaper.cancel()
        await episodes.close()
        await pool.close()
        await policy.close()
        await sender.stop()
        journal.close()
        store.close()


class StatusBoard:
    """What the component tells of itself.

    Args:
        problems: name and message of the alarms of the parts that the tracker does not know; empty ones are none.
        pool: None tells nothing of environments.
    """

    def __init__(self, tracker: SessionTracker, outbox: Outbox, problems: Callable[[], Iterable[Raised]],
                 pool: LeasePool | None = None) -> None:
        self._tracker, self._outbox, self._problems, self._pool = tracker, outbox, problems, pool
        self._alarms = Alarms()

    def status(self) -> component_pb2.ComponentStatus:
        """State, detail, figures and alarms."""
        tracker, stats = self._tracker, self._outbox.stats()
        result = component_pb2.ComponentStatus(
            state=component_pb2.COMPONENT_STATE_RUNNING, policy_version=tracker.policy_version, outboxes=[stats],
            counters={name: tracker.counters[name] for name in COUNTERS})
        result.counters["sessions_open"] = tracker.sessions_open
        raised = [*self._problems(), ("no_trainable_turns", tracker.trainability.problem),
                  quarantine_alarm("events", tracker.quarantine.count, tracker.quarantine.last),
                  *outbox_alarms(stats, "prm_judge", self._outbox.last_rejected)]
        if self._pool is not None:
            raised += tell(self._pool, result)
        if stats.pending and not stats.connected and not any(name == "transitions_waiting" for name, _ in raised):
            result.detail = (f"{stats.pending} transitions wait on disk for prm_judge: "
                             f"{stats.last_error or 'connecting'}")
        self._alarms.report(result, raised)
        return result


def _request(payloads: list[bytes]) -> judge_pb2.JudgeTransitionsRequest:
    return judge_pb2.JudgeTransitionsRequest(transitions=map(turn_pb2.Transition.FromString, payloads))


async def _reap(tracker: SessionTracker, interval: float, keep_episodes: int) -> None:
    """End idle sessions and delete old summaries, for ever. A full disk stops neither the server nor this."""
    looks = 0
    while True:
        await asyncio.sleep(interval)
        try:
            if ended := tracker.reap():
                log.info("%d sessions timed out", ended)
            looks += 1
            if looks % PRUNE_EVERY == 0:
                tracker.prune(keep_episodes=keep_episodes)
        except Exception:
            log.exception("looking for sessions that have timed out; will try again")
