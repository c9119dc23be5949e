"""The trainer as plain Python on the event loop: takes samples, decides when to train, follows the policy server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openclaw_rl.config import TrainerConfig
from openclaw_rl.models.config import ModelError
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.privacy import Target
from openclaw_rl.rpc.errors import MeshError, failed_precondition, unavailable
from openclaw_rl.runtime.runtime import inherited
from openclaw_rl.training.alarms import TrainerAlarms
from openclaw_rl.training.buffer.groups import Waiting
from openclaw_rl.training.events import Events
from openclaw_rl.training.forget import Forgotten
from openclaw_rl.training.learner import CannotTrain, Learner, Skipped
from openclaw_rl.training.release.policy_client import PolicyDoor
from openclaw_rl.training.release.regression import Watch
from openclaw_rl.training.release.regression_monitor import Watcher
from openclaw_rl.training.release.version_table import ROLLED_BACK, refused
from openclaw_rl.training.scheduler import Scheduler
from openclaw_rl.training.store import REJECTED, Pending, TrainerStore
from openclaw_rl.v1 import common_pb2, component_pb2, policy_pb2, trainer_pb2, turn_pb2, weights_pb2
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Replicas

logger = logging.getLogger(__name__)

#: Seconds without a step after which the model is given back; loading it again takes a few.
IDLE_RELEASE = 300.0
#: The model is loaded, which takes seconds, when a step is due within this many seconds.
PREPARE = 60.0
#: Seconds until training is tried again after an error that a person or time must clear.
RETRY = 15.0
#: Neutral samples wait this many intervals, and at most so many of them, for a step to ride along with.
NEUTRAL_INTERVALS, NEUTRAL_LIMIT = 10, 64
#: Niceness of the thread that trains: serving goes first.
NICE = 10

_E = trainer_pb2
#: Gauges of the last step, and the names of their figures.
_GAUGES = {"loss": "loss", "kl": "kl", "step_kl": "step_kl", "grad_norm": "grad_norm",
           "logprob_diff": "logprob_diff_mean", "staleness": "staleness", "step_seconds": "seconds",
           "reward_mean": "reward_mean", "outcome_mean": "outcome_mean", "entropy": "entropy"}
#: What became of groups of episodes.
_GROUPS = ("groups_whole", "groups_incomplete", "groups_dropped", "groups_alike")


class TrainerService:
    """Everything that TrainerService's RPCs do.

    Args:
        config: the trainer's.
        store: samples and versions.
        learner: trains.
        make_publisher: makes what brings versions to the policy servers, once there is a place for them.
        policy: the mesh's own policy server, for the watch; None: nothing goes back by itself.
    """

    def __init__(self, config: TrainerConfig, store: TrainerStore, learner: Learner,
                 make_publisher: Callable[[TrainerService, VersionStore], Replicas] | None = None,
                 policy: PolicyDoor | None = None) -> None:
        self.events = Events()
        self.ready = asyncio.Event()  #: what is on disk has been read
        self._config, self._store, self._learner = config, store, learner
        self._make_publisher = make_publisher
        self._publisher: Replicas | None = None
        self._scheduler = Scheduler(config.min_samples, config.update_interval, config.grpo.groups)
        self._scheduler.paused = store.get("paused")
        self._wake = asyncio.Event()
        self._training = False
        self._problem = ""  # why training fails now
        self._metrics: dict[str, float] = {}
        self._updates: deque[float] = deque()  # when each version of the last hour was made
        self._alarms = TrainerAlarms(config, store)
        self._policy: policy_pb2.PolicyState | None = None  # what the policy server has; None until it was heard of
        self._door = policy
        self._watcher = Watcher(Watch(config.watch, store, store.live), store, policy, self.events)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="train", initializer=_be_nice)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to train when there is something to train on."""
        self._task = asyncio.create_task(self._run(), name="training")
        self._watcher.start()

    async def stop(self, grace: float = 5.0) -> None:
        """End. A running step is given up, at the latest behind its present sample; its samples wait on disk."""
        self._learner.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=grace)
        await self._watcher.stop(grace)
        if self._publisher is not None:
            await self._publisher.stop(grace)
            self._publisher = None
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    # Called by the servicer

    async def accept(self, samples: Sequence[turn_pb2.Sample]) -> list[common_pb2.Ack]:
        """Keep samples; the acks are true once this returns."""
        def keep() -> list[common_pb2.Ack]:
            acks = self._store.accept(samples)
            traces.accepted([sample for sample, ack in zip(samples, acks, strict=True)
                             if ack.status == common_pb2.ACK_STATUS_ACCEPTED and not self._store.forgot(sample)],
                            self._store.statuses)
            return acks

        acks = await self._store.file.call(keep)
        self._wake.set()
        self._watcher.judged()
        return acks

    def train_now(self) -> tuple[int, str]:
        """Make the next step due; how many samples it will have, and a sentence.

        Raises:
            MeshError: training is paused.
        """
        if self._scheduler.paused is not None:
            raise failed_precondition("PAUSED", "training is paused; `openclaw-rl resume` ends that")
        pending = self._store.pending()
        waiting = self._store.waiting()
        if not pending.signal and not waiting.ready:
            return 0, self._missing()
        self._scheduler.forced = True
        self._wake.set()
        count = min(pending.total - pending.held, 2 * pending.signal, self._config.max_batch)
        if self._scheduler.decide(pending, time.time(), waiting).episodes:
            count = waiting.samples_ready
        return count, f"a step on {count} samples begins" + (" when the running one has ended" * self._training)

    def pause(self, reason: str) -> None:
        """Start no further step, also after a restart; a running one is finished."""
        self._store.set("paused", reason)
        self._scheduler.paused = reason
        logger.info("paused%s", f": {reason}" if reason else "")

    def resume(self) -> None:
        """End a pause."""
        self._store.set("paused", None)
        self._scheduler.paused = None
        logger.info("resumed")
        self._wake.set()

    async def forget(self, target: Target) -> Forgotten:
        """Let a session's samples and what was learned from them go; the steps that bring the rest back begin at once.

        Raises:
            MeshError: UNAVAILABLE, it is not known yet which versions there are; or the store can't be written.
            OSError: a version's files can't be deleted; it is void all the same, and can be asked for again.
        """
        if not self.ready.is_set():
            raise unavailable(f"the trainer is not ready to forget: {self._problem or 'preparing the model'}",
                              retry_after=5.0)
        usable = self._learner.usable()
        if (there := await self._policy_now()) is not None:  # it must be able to go back to where training does
            usable.intersection_update({0, *there.kept_versions})
        done = await self._store.file.call(self._store.forget, target, usable)
        if self._publisher is not None:
            self._publisher.take_back(set(done.void))
        if done.void or done.waited:
            await asyncio.to_thread(self._learner.delete, done.void)
        if done.base is not None:
            logger.warning("a session was forgotten: versions %s are void, training goes on from version %d",
                           ", ".join(map(str, done.void)), done.base)
        self.events.tell(_E.TRAINING_EVENT_KIND_FORGOTTEN, f"{len(done.target.turn_ids)} turns were forgotten",
                         version=done.base, turn_ids=sorted(done.target.turn_ids))
        self._wake.set()
        return done

    async def _policy_now(self) -> policy_pb2.PolicyState | None:
        """What the policy server has. While it does not answer, what it had when it last told of itself: that is not
        after each version."""
        if self._door is not None:
            with contextlib.suppress(MeshError):
                return await self._door.state()
        return self._policy

    @property
    def paused(self) -> bool:
        """No further step begins until somebody resumes."""
        return self._scheduler.paused is not None

    # Called by the weight publisher

    def on_state(self, state: policy_pb2.PolicyState) -> None:
        """Follow the policy server: after a rollback the next version builds on the one that is active."""
        self._policy = state
        self._watcher.answers(state)
        self._store.raise_highest(state.highest_version)
        head, active = self._store.head, state.active_version
        self._store.activated(active, state.activated_at.ToNanoseconds() / 1e9)
        known = self._store.version(active)
        # What was made from a version meanwhile that was taken back is taken back with it.
        line = self._store.lineage(head)
        void = set(state.withdrawn_versions).intersection(line)
        usable = (known is not None and not known.lost
                  and state.active_digest in ("", known.manifest.digest))  # else nothing can be built on it
        if head > active and not void:
            newest = self._store.version(head)
            if self._publisher is not None and newest is not None and not newest.rejected and self.keeps(head):
                self._publisher.offer(head)
        elif active != head and (void or (usable and active > head)):
            # Never on from what was taken back: the policy server would refuse all that is made from it.
            base = active if usable else next((v for v in line if v not in void and self._buildable(v)), 0)
            taken_back = {*state.withdrawn_versions, *((head,) if void else ())}
            self._store.move_head(base, {version: self._watcher.watch.took_back(version) or ROLLED_BACK
                                         for version in taken_back})
            logger.info("the policy server went from version %d to %d; training goes on from version %d", head, active,
                        base)
            self.events.tell(_E.TRAINING_EVENT_KIND_ROLLED_BACK, f"training goes on from version {base}", version=base)

    def _buildable(self, version: int) -> bool:
        known = self._store.version(version)
        return known is not None and not known.lost

    def on_activated(self, version: int, activated: weights_pb2.WeightActivated) -> None:
        """A policy server answers with a version."""
        figures = {"pause_ms": activated.pause_ms, "pause_steps": float(activated.pause_steps)}
        self._store.activated(version, time.time(), figures if activated.pause_ms else None)
        logger.info("the policy server answers with version %d", version)
        self.events.tell(_E.TRAINING_EVENT_KIND_VERSION_ACTIVATED, f"version {version} is active", version=version)

    def on_rejected(self, version: int, rejected: weights_pb2.WeightRejected) -> None:
        """A policy server will not take a version."""
        logger.error("the policy server rejected version %d: %s", version, rejected.message)
        self._store.note(version, f"{REJECTED}{rejected.message}")
        self.events.tell(_E.TRAINING_EVENT_KIND_VERSION_REJECTED, rejected.message, version=version)

    def on_further(self, version: int, address: str, message: str, rejected: bool) -> None:
        """One of `policy_servers` answers with a version, or will not take it."""
        (logger.error if rejected else logger.info)("%s", message)
        kind = (_E.TRAINING_EVENT_KIND_VERSION_REJECTED if rejected else _E.TRAINING_EVENT_KIND_VERSION_ACTIVATED)
        self.events.tell(kind, message, version=version)

    # Training

    def weights(self) -> VersionStore:
        """Where the versions' weights are.

        Raises:
            MeshError: UNAVAILABLE until the model was prepared.
        """
        if not self.ready.is_set():
            raise unavailable("the trainer is preparing the model", retry_after=5.0)
        return self._learner.versions

    def keeps(self, version: int) -> bool:
        """The version's weights are on disk."""
        return self.ready.is_set() and version in self._learner.versions.versions()

    def sending(self, version: int) -> bool:
        """The version is on its way to a policy server."""
        return self._publisher is not None and self._publisher.sending(version)

    def deliveries(self, version: int, own: trainer_pb2.VersionDelivery) -> list[trainer_pb2.VersionDelivery]:
        """How far each policy server is with a version, given what is known of the mesh's own one."""
        return self._publisher.deliveries(version, own) if self._publisher is not None else []

    async def _run(self) -> None:
        opened = False
        while True:
            try:
                if not opened:
                    await self._on_thread(self._learner.open)
                    opened = True
                    self._updates.extend(v.manifest.created_at.ToNanoseconds() / 1e9 for v in self._store.versions()
                                         if v.manifest.version)
                    self.ready.set()
                    if self._make_publisher is not None:
                        self._publisher = self._make_publisher(self, self._learner.versions)
                        await self._publisher.start()
                await self._turn(self._learner)
            except Exception as error:  # samples wait; whatever it was, the component goes on taking them
                expected = isinstance(error, CannotTrain | ModelError | MeshError)
                text = str(error) if expected else f"{type(error).__name__}: {error}"
                if text != self._problem:
                    logger.error("can't train: %s", text, exc_info=not expected)
                self._problem = text
                await asyncio.sleep(RETRY)

    async def _turn(self, learner: Learner) -> None:
        """Train if a step is due, else wait until one may be."""
        self._wake.clear()

        def look() -> tuple[int, Pending, Waiting]:
            self._store.settle(time.time())  # first: what is settled can be trained on before it is stale
            self._store.drop_stale()
            return self._store.rebuilding(), self._store.pending(), self._store.waiting()

        rebuilding, pending, waiting = await self._store.file.call(look)
        # What was taken back for the sake of other turns comes back at once.
        self._scheduler.forced = self._scheduler.forced or rebuilding > 0
        now = time.time()
        decision = self._scheduler.decide(pending, now, waiting)
        if decision.due:
            await self._step(learner, decision.episodes)
            return
        if self._scheduler.paused is None:
            await self._store.file.call(
                self._store.drop_neutral, now - NEUTRAL_INTERVALS * self._config.update_interval, NEUTRAL_LIMIT)
        seconds = IDLE_RELEASE if decision.wait is None else decision.wait
        if decision.wait is not None and decision.wait <= PREPARE:
            await self._on_thread(learner.prepare)
        elif decision.wait is not None:
            seconds -= PREPARE
        self._problem = ""
        if not await self._sleep(seconds) and decision.wait is None:
            await self._on_thread(learner.release)

    async def _step(self, learner: Learner, episodes: bool) -> None:
        self._scheduler.forced = False
        self._scheduler.last_on_episodes = episodes
        self._training = True
        try:
            await self._on_thread(learner.prepare)
            self.events.tell(_E.TRAINING_EVENT_KIND_STEP_STARTED, "a step began")
            result = await self._on_thread(learner.train, episodes)
            self._problem = ""
        finally:
            self._training = False
        if result is not None:
            self._alarms.step(result.reason if isinstance(result, Skipped) else "")
        if isinstance(result, Skipped):
            self.events.tell(_E.TRAINING_EVENT_KIND_STEP_SKIPPED, result.reason, turn_ids=result.turn_ids)
        elif result is not None:
            self._metrics = dict(result.metrics)
            self._updates.append(time.time())
            logger.info("version %d: trained on %d turns in %.1f s%s", result.version, len(result.turn_ids),
                        result.metrics["seconds"],
                        f", loss {result.metrics['loss']:.4f}" if "loss" in result.metrics else "")
            self.events.tell(_E.TRAINING_EVENT_KIND_VERSION_CREATED, f"version {result.version} was made",
                             version=result.version, turn_ids=result.turn_ids, metrics=self._metrics)
            needed = set(self._policy.kept_versions if self._policy is not None else ())
            if refused(result):
                self._tell_refused(result)
            elif self._publisher is not None:
                self._publisher.offer(result.version)
            if self._publisher is not None:
                needed |= self._publisher.needed()
            await self._on_thread(learner.tidy, needed)

    def _tell_refused(self, manifest: weights_pb2.VersionManifest) -> None:
        why = "; ".join(manifest.gate.failures)
        logger.error("the gate refused version %d, training goes on from version %d: %s", manifest.version,
                     manifest.parent, why)
        self.events.tell(_E.TRAINING_EVENT_KIND_VERSION_REFUSED, why, version=manifest.version,
                         turn_ids=manifest.turn_ids, metrics=dict(manifest.gate.metrics))

    async def _on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, inherited(function, *args))

    async def _sleep(self, seconds: float) -> bool:
        """Wait until something happens (true) or the time has passed."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
            return True
        except TimeoutError:
            return False

    # Status

    def _missing(self) -> str:
        text = self._scheduler.decide(self._store.pending(), time.time(), self._store.waiting()).missing
        dropped = self._dropped()
        notes = [text, *(f"{count} dropped: {reason}" for reason, count in sorted(dropped.items()))]
        return "; ".join(note for note in notes if note)

    def _updates_per_hour(self) -> float:
        """Versions made within the last hour."""
        while self._updates and self._updates[0] < time.time() - 3600:
            self._updates.popleft()
        return float(len(self._updates))

    def _dropped(self) -> dict[str, int]:
        return {name.removeprefix("dropped:"): count for name, count in self._store.counters().items()
                if name.startswith("dropped:")}

    def control_alarms(self) -> list[tuple[str, str]]:
        """What the gate keeps from being served and what the watch took back, by alarm name."""
        raised = self._watcher.alarms()
        if self.ready.is_set() and (problem := self._learner.gate.problem):
            raised.append(("gate_cannot_run", f"the gate can't run, so nothing is trained: {problem}"))
        if (problem := self._learner.material.problem):
            raised.append(("playbook_writer", f"the playbook's writer does not work: {problem}; samples that ask "
                           "for an instruction wait"))
        newest = self._store.newest()
        if newest is not None and refused(newest.manifest):
            m = newest.manifest
            raised.append(("gate_refused", f"the gate refused version {m.version}, training goes on from version "
                           f"{m.parent}: {'; '.join(m.gate.failures)} (`openclaw-rl versions show {m.version}` tells "
                           "its turns and answers)"))
        return raised

    def status(self) -> component_pb2.ComponentStatus:
        """State, detail and figures."""
        total, counters = self._store.pending().total + self._store.waiting().samples, self._store.counters()
        missing = self._missing()
        if not self.ready.is_set() and not self._problem:
            state, detail = component_pb2.COMPONENT_STATE_STARTING, "preparing the model"
        else:
            state = component_pb2.COMPONENT_STATE_RUNNING
            detail = "a step is running" if self._training else missing
        newest = None if self._metrics else self._store.newest()  # after a restart: what the last step measured
        figures = self._metrics if newest is None else newest.manifest.metrics
        status = component_pb2.ComponentStatus(
            state=state, detail=detail, policy_version=self._store.head,
            dropped=self._dropped(),
            counters={"samples_accepted": counters.get("accepted", 0), "samples_trained": counters.get("trained", 0),
                      "samples_pending": total, "updates": counters.get("updates", 0),
                      "steps_skipped": counters.get("steps_skipped", 0),
                      **{name: counters.get(name, 0) for name in _GROUPS}},
            gauges={"training": float(self._training), "pending": float(total),
                    "updates_per_hour": self._updates_per_hour(),
                    "rebuilding": float(self._store.rebuilding()), "paused": float(self.paused),
                    **{gauge: figures[name] for gauge, name in _GAUGES.items() if name in figures}})
        damaged = self._learner.damaged() if self.ready.is_set() else []
        self._alarms.report(
            status, paused=self._scheduler.paused is not None or self._training, missing=missing,
            problem=self._problem, metrics=self._metrics, policy=self._policy,
            line=self._publisher.status() if self._publisher is not None else {},
            more=[*(("versions_damaged", text) for text in damaged), *self.control_alarms(),
                  *(self._publisher.alarms() if self._publisher is not None else ())])
        return status


def _be_nice() -> None:
    """Lower the priority of this thread, and of those that PyTorch starts from it."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    except (OSError, AttributeError):
        os.nice(NICE)  # no priorities of single threads here
