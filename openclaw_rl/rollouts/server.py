"""The environment server as a component of the mesh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from openclaw_rl.config import EMBEDDED_MODEL, Config
from openclaw_rl.delivery.requests import make_request
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy.erase import handler
from openclaw_rl.rollouts.environments.factory import configured_environments
from openclaw_rl.rollouts.episodes.policy_client import PolicyCaller
from openclaw_rl.rollouts.episodes.runner import STOPPED, Episodes
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.leases.status import add_to_status
from openclaw_rl.rollouts.sandboxes.factory import remove_leftovers
from openclaw_rl.rollouts.servicer import SERVICE, EnvironmentServicer
from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.rpc.component_run import ComponentRun
from openclaw_rl.rpc.discovery import resolve
from openclaw_rl.rpc.membership import current_mesh
from openclaw_rl.runtime.alarms import Alarms, Raised, outbox_alarms, quarantine_alarm
from openclaw_rl.runtime.component import Component, Listener, Service
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Runtime
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2, environment_pb2_grpc, judge_pb2, judge_pb2_grpc

logger = logging.getLogger(__name__)

NAME = "env_server"
#: Seconds between two looks for sessions that have timed out, at most.
REAP_EVERY = 5.0
#: Looks between two deletions of old summaries.
PRUNE_EVERY = 20
#: Counters of the status, also while they are 0.
COUNTERS = ("turns_main", "turns_side", "turns_unknown", "retries", "transitions_sent", "feedback_ignored",
            "total_interactions", "episodes_done", "episodes_broken")


class EnvironmentComponent(Component):
    """The environment server: sessions and their turns, episodes, leased environments, and the stream of transitions to
    the judge.

    Raises:
        OSError: the home can't be written.
        StorageError: the state can't be opened.
    """

    name = NAME

    def __init__(self, runtime: Runtime, *, mounted: bool = False) -> None:
        super().__init__(runtime, mounted=mounted)
        config, home, resources = runtime.config, runtime.home, runtime.resources
        settings = self._settings = config.components.env_server
        self.listener = Listener(settings.host, settings.port)
        store = self._store = Database(home.component(NAME) / "state.db", config.durability, tables.SCHEMA,
                                       tables.RECOVERY)
        resources.push_async_callback(asyncio.to_thread, store.close)
        outbox = Outbox(store, "transitions", on_rejected=lambda *refused: self._tracker.rejected(*refused))
        journal = Journal(home.logs, config.journal)
        resources.callback(journal.close)
        self._tracker = SessionTracker(store, outbox, journal, config.session_awareness, current_mesh())
        self._sender = Sender(outbox, resolve=lambda: resolve(home, config, "prm_judge"),
                              open_stream=lambda channel: judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions,
                              make_request=partial(make_request, judge_pb2.JudgeTransitionsRequest, "transitions"),
                              role="prm_judge")
        resources.push_async_callback(self._sender.stop)
        policy = PolicyCaller(lambda: resolve(home, config, "policy_server"))
        resources.push_async_callback(policy.close)
        self._pool = LeasePool(configured_environments(settings, home), ttl=settings.lease_ttl,
                               max_waiting=settings.max_waiting)
        resources.push_async_callback(self._pool.close)
        embedded = config.components.policy_server.model == EMBEDDED_MODEL
        self._episodes = Episodes(self._pool, self._tracker, store, policy, settings.episodes.model_copy(update={
            "tool_choice": settings.episodes.tool_choice or ("required" if embedded else "auto")}))
        resources.push_async_callback(self._episodes.close)
        self._board = StatusBoard(self._tracker, outbox, lambda: [
            *store.alarms(), ("journal", journal.problem)], self._pool)
        self.forget = handler(home, NAME, store, self._tracker.forget)
        if broken := self._tracker.break_off_episodes(STOPPED):
            logger.info("%d episodes ran when the last environment server ended: they are broken off", broken)

    def services(self) -> list[Service]:
        return [Service(environment_pb2_grpc.add_EnvironmentServiceServicer_to_server,
                        EnvironmentServicer(self._tracker, self._store, self._pool, self._episodes), SERVICE)]

    async def start(self) -> None:
        self._sender.start()
        if left := await asyncio.to_thread(remove_leftovers, self.runtime.home.root):
            logger.info("removed what %d sandboxes of a killed environment server had left", left)
        self._pool.start()
        interval = min(REAP_EVERY, self.runtime.config.session_awareness.session_timeout / 4)
        reaper = asyncio.create_task(_reap(self._tracker, self._store, interval, self._settings.episodes.keep),
                                     name="reaper")
        self.runtime.resources.callback(reaper.cancel)

    async def drain(self, grace: float) -> None:
        await self._episodes.close()
        await self._pool.close()

    def status(self) -> component_pb2.ComponentStatus:
        return self._board.status()


async def run(config: Config, home: Home) -> None:
    """Run the environment server in a process of its own until it is stopped. Raises as `EnvironmentComponent`."""
    await ComponentRun(EnvironmentComponent, config, home, process=True).run()


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
            counters={name: tracker.counters[name] for name in COUNTERS},
            gauges={"sessions_open": tracker.sessions_open})
        raised = [*self._problems(), ("no_trainable_turns", tracker.trainability.problem),
                  quarantine_alarm("events", tracker.quarantine.count, tracker.quarantine.last),
                  *outbox_alarms(stats, "prm_judge", self._outbox.last_rejected)]
        if self._pool is not None:
            raised += add_to_status(self._pool, result)
        if stats.pending and not stats.connected and not any(name == "transitions_waiting" for name, _ in raised):
            result.detail = (f"{stats.pending} transitions wait on disk for prm_judge: "
                             f"{stats.last_error or 'connecting'}")
        self._alarms.report(result, raised)
        return result


async def _reap(tracker: SessionTracker, database: Database, interval: float, keep_episodes: int) -> None:
    """End idle sessions and delete old summaries, for ever. A full disk stops neither the server nor this."""
    looks = 0
    while True:
        await asyncio.sleep(interval)
        try:
            if ended := await database.call(tracker.reap):
                logger.info("%d sessions timed out", ended)
            looks += 1
            if looks % PRUNE_EVERY == 0:
                await database.call(lambda: tracker.prune(keep_episodes=keep_episodes))
        except StorageError as error:  # an alarm tells it
            logger.warning("sessions that have timed out are looked for again later: %s", error)
        except Exception:
            logger.exception("looking for sessions that have timed out; will try again")
