"""Service interface of the trainer: what its RPCs do, and its parts put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence

from openclaw_rl.config import TrainerConfig
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.privacy import Target
from openclaw_rl.rpc.errors import MeshError, failed_precondition, unavailable
from openclaw_rl.training.alarms import TrainerAlarms
from openclaw_rl.training.events import Events
from openclaw_rl.training.forget import Forgotten
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.release.delivery import Delivery
from openclaw_rl.training.release.policy_client import PolicyClient
from openclaw_rl.training.release.regression import RegressionDetector
from openclaw_rl.training.release.regression_monitor import RegressionMonitor
from openclaw_rl.training.scheduler import Scheduler
from openclaw_rl.training.status import StatusReport
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.state import Key
from openclaw_rl.training.training_loop import TrainingLoop
from openclaw_rl.v1 import common_pb2, component_pb2, policy_pb2, trainer_pb2, turn_pb2
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Replicas

logger = logging.getLogger(__name__)


class TrainerService:
    """Everything that TrainerService's RPCs do. Used on the event loop.

    Args:
        config: the trainer's.
        store: samples and versions.
        learner: trains.
        make_publisher: makes what brings versions to the policy servers, once there is a place for them.
        policy: the mesh's own policy server, for rollbacks; None: nothing is rolled back automatically.

    Attributes:
        events: what happens in the trainer.
        delivery: of versions to the policy servers.
        loop: decides when to train.
    """

    def __init__(self, config: TrainerConfig, store: TrainerStore, learner: Learner,
                 make_publisher: Callable[[Delivery, VersionStore], Replicas] | None = None,
                 policy: PolicyClient | None = None) -> None:
        self._config, self._store, self._learner, self._policy_client = config, store, learner, policy
        self.events = Events()
        self._scheduler = Scheduler(config.min_samples, config.update_interval, config.grpo.groups)
        self._scheduler.paused = store.state.get(Key.PAUSED)
        self._monitor = RegressionMonitor(
            RegressionDetector(config.watch, store.versions, store.scores, store.state), store.versions, policy,
            self.events)
        self.delivery = Delivery(store, self._monitor, self.events, make_publisher, self._undone)
        alarms = TrainerAlarms(config, store)
        self.loop = TrainingLoop(config, store, learner, self._scheduler, self.events, self.delivery, alarms)
        self._report = StatusReport(store, learner, self._scheduler, self.loop, self.delivery, self._monitor, alarms)

    def start(self) -> None:
        """Begin to train when there is something to train on."""
        self.loop.start()
        self._monitor.start()

    async def stop(self, grace: float = 5.0) -> None:
        """End. A running step is given up, at the latest behind its present sample; its samples wait on disk."""
        await self.loop.stop(grace)
        await self._monitor.stop(grace)
        await self.delivery.stop(grace)
        await self.loop.join()

    async def accept(self, samples: Sequence[turn_pb2.Sample]) -> list[common_pb2.Ack]:
        """Keep samples; the acks are true once this returns."""
        def keep() -> list[common_pb2.Ack]:
            acks = self._store.intake.accept(samples)
            traces.accepted([sample for sample, ack in zip(samples, acks, strict=True)
                             if ack.status == common_pb2.ACK_STATUS_ACCEPTED and not self._store.intake.forgot(sample)],
                            self._store.samples.statuses)
            return acks

        acks = await self._store.database.call(keep)
        self.loop.wake()
        self._monitor.judged()
        return acks

    async def train_now(self) -> tuple[int, str]:
        """Make the next step due; return how many samples it will have, and a sentence.

        Raises:
            MeshError: training is paused.
        """
        if self._scheduler.paused is not None:
            raise failed_precondition("PAUSED", "training is paused; `openclaw-rl resume` ends that")
        pending, waiting, missing = await self._store.database.read(
            lambda: (self._store.samples.pending(), self._store.episodes.waiting(), self._report.missing()))
        if not pending.signal and not waiting.ready:
            return 0, missing
        self._scheduler.forced = True
        self.loop.wake()
        count = min(pending.total - pending.held, 2 * pending.signal, self._config.max_batch)
        if self._scheduler.decide(pending, time.time(), waiting).episodes:
            count = waiting.samples_ready
        return count, f"a step on {count} samples begins" + (" when the running one has ended" * self.loop.training)

    async def pause(self, reason: str) -> None:
        """Start no further step, also after a restart; a running one is finished."""
        await self._store.database.call(self._store.state.set, Key.PAUSED, reason)
        self._scheduler.paused = reason
        logger.info("paused%s", f": {reason}" if reason else "")

    async def resume(self) -> None:
        """End a pause."""
        await self._store.database.call(self._store.state.set, Key.PAUSED, None)
        self._scheduler.paused = None
        logger.info("resumed")
        self.loop.wake()

    @property
    def paused(self) -> bool:
        """Whether no further step begins until somebody resumes."""
        return self._scheduler.paused is not None

    async def forget(self, target: Target) -> Forgotten:
        """Delete a session's samples and take back what was learned from them; the steps that bring the rest back begin
        at once.

        Raises:
            MeshError: UNAVAILABLE, it is not known yet which versions there are; or the store can't be written.
            OSError: a version's files can't be deleted; it is void all the same, and can be asked for again.
        """
        if not self.loop.ready.is_set():
            raise unavailable(f"the trainer is not ready to forget: {self.loop.problem or 'preparing the model'}",
                              retry_after=5.0)
        usable = self._learner.usable()
        if (policy := await self._policy_now()) is not None:  # it must be able to go back to where training does
            usable.intersection_update({0, *policy.kept_versions})
        done = await self._store.database.call(self._store.forget, target, usable)
        self.delivery.take_back(set(done.void))
        if done.void or done.waited:
            await asyncio.to_thread(self._learner.delete, done.void)
        if done.base is not None:
            logger.warning("a session was forgotten: versions %s are void, training continues from version %d",
                           ", ".join(map(str, done.void)), done.base)
        self.events.tell(trainer_pb2.TRAINING_EVENT_KIND_FORGOTTEN, f"{len(done.target.turn_ids)} turns were forgotten",
                         version=done.base, turn_ids=sorted(done.target.turn_ids))
        self.loop.wake()
        return done

    async def _undone(self, versions: Collection[int]) -> None:
        """Delete what is left of versions that never will be served, and give up a step that builds on them; the next
        one takes their samples."""
        try:
            await asyncio.to_thread(self._learner.delete, versions)
        except OSError as error:
            logger.warning("the files of versions %s can't be deleted: %s", ", ".join(map(str, versions)), error)
        self.loop.wake()

    async def _policy_now(self) -> policy_pb2.PolicyState | None:
        """What the policy server has. While it does not answer, what it had when it last reported: that is not after
        each version."""
        if self._policy_client is not None:
            with contextlib.suppress(MeshError):
                return await self._policy_client.state()
        return self.delivery.policy

    def weights(self) -> VersionStore:
        """Return the versions' weights.

        Raises:
            MeshError: UNAVAILABLE until the model was prepared.
        """
        if not self.loop.ready.is_set():
            raise unavailable("the trainer is preparing the model", retry_after=5.0)
        return self._learner.versions

    def status(self) -> component_pb2.ComponentStatus:
        """Return state, detail and figures."""
        return self._report.make()
