"""Runs of episodes: groups of attempts at tasks, with bounded concurrency."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from openclaw_rl.config.environment import EpisodesConfig
from openclaw_rl.rollouts.episodes import task_draw
from openclaw_rl.rollouts.episodes.episode import EpisodeDriver, RunContext
from openclaw_rl.rollouts.episodes.interact import LiveSession
from openclaw_rl.rollouts.episodes.plan_supply import PlanSupply
from openclaw_rl.rollouts.episodes.policy_client import PolicyCaller
from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.rollouts.tracking import episode_table
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.rpc.errors import failed_precondition, unavailable
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import environment_pb2 as pb
from openclaw_rl.v1.turn_pb2 import OnBehalfOf

logger = logging.getLogger(__name__)

#: Events that a client may lag behind; beyond these, steps are dropped.
_LARGEST_LAG = 2000
CANCELLED = "cancelled"
STOPPED = "the environment server ended"


@dataclass(eq=False)
class _Run:
    """A run and its events."""

    id: str
    total: int
    ended: int = 0
    cancel_reason: str = CANCELLED  #: error of episodes that are cancelled
    events: asyncio.Queue[pb.RunEpisodesResponse | None] = field(default_factory=asyncio.Queue)
    workers: list[asyncio.Task[None]] = field(default_factory=list)

    def emit(self, kind: pb.EpisodeEventKind.ValueType, episode: pb.Episode, action: str, observation: str) -> None:
        self.ended += kind == pb.EPISODE_EVENT_KIND_ENDED
        if kind == pb.EPISODE_EVENT_KIND_STEP and self.events.qsize() >= _LARGEST_LAG:
            return
        self.events.put_nowait(pb.RunEpisodesResponse(
            kind=kind, episode=episode, action_json=action, observation_text=observation, ended=self.ended,
            total=self.total))


class Episodes:
    """Runs episodes, in any number of concurrent runs."""

    def __init__(self, pool: LeasePool, tracker: SessionTracker, store: Database, policy: PolicyCaller,
                 settings: EpisodesConfig) -> None:
        self._pool, self._tracker, self._store, self._policy, self._settings = pool, tracker, store, policy, settings
        self._runs: dict[str, _Run] = {}
        self._closed = False

    @property
    def running(self) -> int:
        """Episodes in progress or waiting for a sandbox."""
        return sum(not worker.done() for run in self._runs.values() for worker in run.workers)

    async def close(self) -> None:
        """End all runs; their episodes get the reason as their error."""
        self._closed = True
        workers = [worker for run in self._runs.values() for worker in run.workers]
        for run in self._runs.values():
            run.cancel_reason = STOPPED
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def run(self, request: pb.RunEpisodesRequest) -> AsyncIterator[pb.RunEpisodesResponse]:
        """Run episodes. Closing the iterator cancels those in progress and releases their sandboxes.

        Raises:
            MeshError: NOT_FOUND, there is no such environment or task; INVALID_ARGUMENT; FAILED_PRECONDITION, the
                environment or all of its tasks can't be used, or there already is a run of this id.
        """
        task_draw.validate_request(request)
        warm_pool = self._pool.warm_pool(request.type)
        await warm_pool.availability.require()
        tasks = await self._pool.catalog.load(request.type)
        plans, reserve = await asyncio.to_thread(
            task_draw.draw_episodes, request, tasks, await self._rates(request), self._settings.extra_groups)
        run = await self._open(request.run_id or new_id("run_"), len(plans))
        try:
            context = RunContext(
                run.id, request.type, self._pool, self._tracker, self._store, self._policy, self._settings,
                request.max_steps, request.sampling, run.emit, lambda: run.cancel_reason)
            at_once = min(request.parallel or warm_pool.capacity, warm_pool.capacity, len(plans))
            supply = PlanSupply(plans, reserve)
            run.workers = [asyncio.create_task(_work(context, run, supply), name=f"episodes of {run.id}")
                           for _ in range(at_once)]
            logger.info("run %s: %d episodes of %s, %d at once", run.id, run.total, request.type, at_once)
            ending = asyncio.create_task(_finish(run))
            try:
                while (event := await run.events.get()) is not None:
                    yield event
            finally:
                ending.cancel()
            if self._closed:
                raise unavailable(STOPPED)
        finally:
            for worker in run.workers:
                worker.cancel()
            await asyncio.gather(*run.workers, return_exceptions=True)
            del self._runs[run.id]
            logger.info("run %s: %d of %d episodes are over", run.id, run.ended, run.total)

    async def _rates(self, request: pb.RunEpisodesRequest) -> dict[str, task_draw.SuccessRate] | None:
        if not self._settings.curriculum or request.no_train:
            return None
        rates = await self._store.read(episode_table.success_rates, self._store, request.type)
        return {task: task_draw.SuccessRate(*rate) for task, rate in rates.items()}

    async def _open(self, id: str, total: int) -> _Run:
        over = await self._store.read(self._store.query, "SELECT 1 FROM episodes WHERE run = ? LIMIT 1", (id,))
        if self._closed:
            raise unavailable("the environment server is stopping")
        is_or_was = "is" if id in self._runs else "was"
        if id in self._runs or over:
            raise failed_precondition("FAILED_PRECONDITION", (
                f"there {is_or_was} a run {id!r}: ListEpisodes with this run_id tells its episodes; another run needs "
                "another id"))
        run = self._runs[id] = _Run(id, total)
        return run

    def live_session(self, user: OnBehalfOf) -> LiveSession:
        """Open a live session for a client."""
        return LiveSession(self._policy, self._tracker, self._store, user)

    def page(self, request: pb.ListEpisodesRequest) -> pb.ListEpisodesResponse:
        """List episodes, newest first; see `episode_table.page`. Blocks."""
        return episode_table.page(self._store, request)


async def _work(context: RunContext, run: _Run, supply: PlanSupply) -> None:
    """Run one episode after another until none is left."""
    while (plan := await supply.next()) is not None:
        driver = EpisodeDriver(context, plan)
        try:
            await driver.run()
        finally:
            run.total += supply.ended(plan, driver.episode.outcome if driver.episode.HasField("outcome") else None)


async def _finish(run: _Run) -> None:
    """End the events when all workers have finished."""
    results: Sequence[object] = await asyncio.gather(*run.workers, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            logger.error("a run of episodes failed", exc_info=result)
    run.events.put_nowait(None)
