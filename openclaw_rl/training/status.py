"""Status of the trainer: state, detail, figures and alarms."""

from __future__ import annotations

import time

from openclaw_rl.runtime.alarms import Raised, duration
from openclaw_rl.training.alarms import TrainerAlarms
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.release.delivery import Delivery
from openclaw_rl.training.release.regression_monitor import RegressionMonitor
from openclaw_rl.training.scheduler import Scheduler
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.counters import Counter
from openclaw_rl.training.tables.versions import refused
from openclaw_rl.training.training_loop import TrainingLoop
from openclaw_rl.v1 import component_pb2

#: Gauges of the last step, and the names of their figures.
STEP_GAUGES = {"loss": "loss", "kl": "kl", "step_kl": "step_kl", "grad_norm": "grad_norm",
               "logprob_diff": "logprob_diff_mean", "staleness": "staleness", "step_seconds": "seconds",
               "reward_mean": "reward_mean", "outcome_mean": "outcome_mean", "entropy": "entropy"}
#: What became of groups of episodes.
_GROUPS = (Counter.GROUPS_WHOLE, Counter.GROUPS_INCOMPLETE, Counter.GROUPS_DROPPED, Counter.GROUPS_ALIKE)


class StatusReport:
    """Makes the status from the trainer's parts."""

    def __init__(self, store: TrainerStore, learner: Learner, scheduler: Scheduler, loop: TrainingLoop,
                 delivery: Delivery, monitor: RegressionMonitor, alarms: TrainerAlarms) -> None:
        self._store, self._learner, self._scheduler, self._loop = store, learner, scheduler, loop
        self._delivery, self._monitor, self._alarms = delivery, monitor, alarms

    def missing(self) -> str:
        """Return what the next step waits for and what was dropped, for a person."""
        pending, waiting = self._store.samples.pending(), self._store.episodes.waiting()
        text = self._scheduler.decide(pending, time.time(), waiting).missing
        dropped = self._store.counters.dropped()
        notes = [text, *(f"{count} dropped: {reason}" for reason, count in sorted(dropped.items()))]
        return "; ".join(note for note in notes if note)

    def control_alarms(self) -> list[Raised]:
        """Return what the gate refused and what was rolled back."""
        raised = self._monitor.alarms()
        if self._loop.ready.is_set() and (problem := self._learner.gate.problem):
            raised.append(("gate_cannot_run", f"the gate can't run, so nothing is trained: {problem}"))
        if problem := self._learner.adapter.problem:
            raised.append(("playbook_writer", f"the playbook's writer does not work: {problem}; samples that ask "
                           "for an instruction wait"))
        newest = self._store.versions.newest()
        if newest is not None and refused(newest.manifest):
            m = newest.manifest
            raised.append(("gate_refused", f"the gate refused version {m.version}, training goes on from version "
                           f"{m.parent}: {'; '.join(m.gate.failures)} (`openclaw-rl versions show {m.version}` tells "
                           "its turns and answers)"))
        return raised

    def make(self) -> component_pb2.ComponentStatus:
        """Return the status as it is now."""
        loop, missing, paused = self._loop, self.missing(), self._scheduler.paused is not None
        if not loop.ready.is_set() and not loop.problem:
            state, detail = component_pb2.COMPONENT_STATE_STARTING, "preparing the model"
        else:
            state = component_pb2.COMPONENT_STATE_RUNNING
            detail = (f"a step is running for {duration(time.monotonic() - loop.training_since)}: "
                      f"{self._learner.stage}" if loop.training else missing)
        status = component_pb2.ComponentStatus(
            state=state, detail=detail, policy_version=self._store.versions.head,
            dropped=self._store.counters.dropped(), counters=self._counters(), gauges=self._gauges(paused))
        damaged = self._learner.damaged() if loop.ready.is_set() else []
        self._alarms.report(
            status, paused=paused or loop.training, missing=missing, problem=loop.problem, metrics=loop.metrics,
            policy=self._delivery.policy, line=self._delivery.status(),
            more=[*(("versions_damaged", text) for text in damaged), *self.control_alarms(), *self._delivery.alarms()])
        return status

    def _pending(self) -> int:
        return self._store.samples.pending().total + self._store.episodes.waiting().samples

    def _counters(self) -> dict[str, int]:
        counts = self._store.counters.all()
        return {"samples_accepted": counts.get(Counter.ACCEPTED, 0), "samples_trained": counts.get(Counter.TRAINED, 0),
                "updates": counts.get(Counter.UPDATES, 0), "steps_skipped": counts.get(Counter.STEPS_SKIPPED, 0),
                **{str(name): counts.get(name, 0) for name in _GROUPS}}

    def _rates(self) -> dict[str, float]:
        """Samples in and out within the last hour, or since the start."""
        hour = self._store.counters.last_hour()
        return {"accepted_per_hour": float(hour.accepted), "trained_per_hour": float(hour.trained),
                "dropped_per_hour": float(sum(hour.dropped.values()))}

    def _gauges(self, paused: bool) -> dict[str, float]:
        # After a restart: what the last step measured.
        newest = None if self._loop.metrics else self._store.versions.newest()
        figures = self._loop.metrics if newest is None else newest.manifest.metrics
        return {"training": float(self._loop.training), "pending": float(self._pending()),
                "updates_per_hour": self._loop.updates_per_hour(), **self._rates(),
                "rebuilding": float(self._store.samples.rebuilding()), "paused": float(paused),
                **{gauge: figures[name] for gauge, name in STEP_GAUGES.items() if name in figures}}
