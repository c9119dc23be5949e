"""The loop that trains: when a step is due, it runs on a thread of low priority."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.config import ModelError
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.runtime import inherited
from openclaw_rl.storage.database import StorageError
from openclaw_rl.training.alarms import TrainerAlarms
from openclaw_rl.training.buffer.groups import WaitingGroups
from openclaw_rl.training.events import Events
from openclaw_rl.training.learner import CannotTrain, Learner, Skipped
from openclaw_rl.training.release.delivery import Delivery
from openclaw_rl.training.scheduler import Scheduler
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.samples import PendingCount
from openclaw_rl.training.tables.versions import refused
from openclaw_rl.v1 import trainer_pb2, weights_pb2

logger = logging.getLogger(__name__)

#: Seconds without a step after which the model is unloaded; loading it again takes a few.
IDLE_RELEASE = 300.0
#: The model is loaded, which takes seconds, when a step is due within this many seconds.
PREPARE = 60.0
#: Seconds until training is tried again after an error that a person or time must clear.
RETRY = 15.0
#: Neutral samples wait this many intervals, and at most so many of them, for a step to ride along with.
NEUTRAL_INTERVALS, NEUTRAL_LIMIT = 10, 64
#: Pause between two looks at what waits, in times of what the first took: samples are accepted meanwhile.
LOOK_PAUSE = 9
#: Niceness of the thread that trains: serving goes first.
NICE = 10

_E = trainer_pb2
_T = TypeVar("_T")


class TrainingLoop:
    """Trains when the scheduler says so.

    Args:
        config: the trainer's.
        store: samples and versions.
        learner: trains.
        scheduler: decides when.
        events: told of steps.
        delivery: gets new versions.
        alarms: told of steps that were skipped.

    Attributes:
        ready: set once what is on disk has been read.
        training: a step is running.
        training_since: monotonic time at which it, or the last one, began.
        problem: why training fails now; empty when it does not.
        metrics: figures of the last step since the start.
    """

    def __init__(self, config: TrainerConfig, store: TrainerStore, learner: Learner, scheduler: Scheduler,
                 events: Events, delivery: Delivery, alarms: TrainerAlarms) -> None:
        self._config, self._store, self._learner = config, store, learner
        self._scheduler, self._events, self._delivery, self._alarms = scheduler, events, delivery, alarms
        self.ready = asyncio.Event()
        self.training, self.training_since = False, 0.0
        self.problem = ""
        self.metrics: dict[str, float] = {}
        self._updates: deque[float] = deque()  # when each version of the last hour was made
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="train", initializer=_be_nice)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to train when there is something to train on."""
        self._task = asyncio.create_task(self._run(), name="training")

    async def stop(self, grace: float) -> None:
        """End. A running step is given up, at the latest behind its present sample; its samples wait on disk."""
        self._learner.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=grace)

    async def join(self) -> None:
        """Wait for the end of the thread, after `stop`."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def wake(self) -> None:
        """Decide anew whether a step is due."""
        self._wake.set()

    def updates_per_hour(self) -> float:
        """Return the number of versions made within the last hour."""
        while self._updates and self._updates[0] < time.time() - 3600:
            self._updates.popleft()
        return float(len(self._updates))

    async def _run(self) -> None:
        opened = False
        while True:
            try:
                if not opened:
                    await self._on_thread(self._learner.open)
                    opened = True
                    versions = await self._store.database.read(self._store.versions.all)
                    self._updates.extend(v.manifest.created_at.ToNanoseconds() / 1e9
                                         for v in versions if v.manifest.version)
                    self.ready.set()
                    await self._delivery.start(self._learner.versions)
                await self._tick()
            except Exception as error:  # samples wait; whatever it was, the component goes on taking them
                expected = isinstance(error, CannotTrain | ModelError | MeshError)
                text = str(error) if expected else f"{type(error).__name__}: {error}"
                if text != self.problem:
                    known = expected or isinstance(error, OSError | StorageError)  # a disk that is full or read-only
                    logger.error("can't train: %s", text, exc_info=not known)
                self.problem = text
                await asyncio.sleep(RETRY)

    async def _tick(self) -> None:
        """Train if a step is due, else wait until one may be."""
        self._wake.clear()
        began = time.monotonic()
        rebuilding, pending, waiting = await self._store.database.call(self._look)
        looking = time.monotonic() - began
        # What was taken back for the sake of other turns comes back at once.
        self._scheduler.forced = self._scheduler.forced or rebuilding > 0
        now = time.time()
        decision = self._scheduler.decide(pending, now, waiting)
        if decision.due:
            await self._step(decision.episodes)
            return
        if self._scheduler.paused is None:
            left = await self._store.database.call(self._drop_neutral, now)
            if left is not None and decision.wait is None and left < IDLE_RELEASE:
                await self._sleep(left)
                return
        seconds = IDLE_RELEASE if decision.wait is None else decision.wait
        if decision.wait is not None and decision.wait <= PREPARE:
            await self._on_thread(self._learner.prepare)
        elif decision.wait is not None:
            seconds -= PREPARE
        self.problem = ""
        if not await self._sleep(seconds) and decision.wait is None:
            await self._on_thread(self._learner.release)
        # Every batch that comes wakes this, and with a large backlog a look takes long.
        await asyncio.sleep(LOOK_PAUSE * looking)

    def _drop_neutral(self, now: float) -> float | None:
        """Drop the neutral samples that have waited for too long; return the seconds after which the next one has, None
        when none waits."""
        patience = NEUTRAL_INTERVALS * self._config.update_interval
        self._store.samples.drop_neutral(now - patience, NEUTRAL_LIMIT)
        oldest = self._store.samples.oldest_neutral()
        return None if oldest is None else max(oldest + patience - now, 0.1)

    def _look(self) -> tuple[int, PendingCount, WaitingGroups]:
        """Settle groups and drop what is stale; return what is being rebuilt, and what waits."""
        self._store.episodes.settle(time.time())  # first: what is settled can be trained on before it is stale
        self._store.samples.drop_stale()
        return self._store.samples.rebuilding(), self._store.samples.pending(), self._store.episodes.waiting()

    async def _step(self, episodes: bool) -> None:
        self._scheduler.forced = False
        self._scheduler.last_on_episodes = episodes
        self.training, self.training_since = True, time.monotonic()
        self._learner.stage = "loading the model"
        try:
            await self._on_thread(self._learner.prepare)
            self._events.tell(_E.TRAINING_EVENT_KIND_STEP_STARTED, "a step began")
            result = await self._on_thread(lambda: self._learner.train(episodes))
            self.problem = ""
        finally:
            self.training = False
        if isinstance(result, Skipped):
            self._alarms.step(str(result.why))
            self._events.tell(_E.TRAINING_EVENT_KIND_STEP_SKIPPED, str(result.why), turn_ids=result.turn_ids)
        elif result is not None:
            self._alarms.step()
            await self._created(result)

    async def _created(self, manifest: weights_pb2.VersionManifest) -> None:
        """Offer a new version, unless the gate refused it."""
        self.metrics = dict(manifest.metrics)
        self._updates.append(time.time())
        logger.info("version %d: trained on %d turns in %.1f s%s", manifest.version, len(manifest.turn_ids),
                    manifest.metrics["seconds"],
                    f", loss {manifest.metrics['loss']:.4f}" if "loss" in manifest.metrics else "")
        self._events.tell(_E.TRAINING_EVENT_KIND_VERSION_CREATED, f"version {manifest.version} was made",
                          version=manifest.version, turn_ids=manifest.turn_ids, metrics=self.metrics)
        if refused(manifest):
            why = "; ".join(manifest.gate.failures)
            logger.error("the gate refused version %d, training goes on from version %d: %s", manifest.version,
                         manifest.parent, why)
            self._events.tell(_E.TRAINING_EVENT_KIND_VERSION_REFUSED, why, version=manifest.version,
                              turn_ids=manifest.turn_ids, metrics=dict(manifest.gate.metrics))
        else:
            self._delivery.offer(manifest.version)
        needed = self._delivery.needed()
        await self._on_thread(lambda: self._learner.tidy(needed))

    async def _on_thread(self, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, inherited(function))

    async def _sleep(self, seconds: float) -> bool:
        """Wait until something happens (true) or the time has passed."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
            return True
        except TimeoutError:
            return False


def _be_nice() -> None:
    """Lower the priority of this thread, and of those that PyTorch starts from it."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    except (OSError, AttributeError):
        os.nice(NICE)  # no priorities of single threads here
