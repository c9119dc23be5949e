"""Alarms of the trainer; README.md lists them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from openclaw_rl.config import TrainerConfig
from openclaw_rl.runtime.alarms import Alarms, Raised, duration, quarantine_alarm
from openclaw_rl.training.buffer import backlog
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import DropReason, Fate, VersionState
from openclaw_rl.v1 import component_pb2, policy_pb2

#: Tokens that engine and trainer are compared on before their difference is an alarm.
ALARM_TOKENS = 128
#: Intervals, and seconds, for which a sample may wait: the longer of the two.
WAITING_INTERVALS, WAITING_SECONDS = 10, 3600.0
#: The newest samples, when none of so many can be learned from.
NEWEST = 50
#: Samples dropped as stale within an hour, and their share of these and those that were trained on, that are too many.
STALE, STALE_SHARE = 10, 0.1
#: Steps skipped, and versions rejected, one after the other.
IN_A_ROW = 3


class TrainerAlarms:
    """Detects what is wrong with training, and remembers since when."""

    def __init__(self, config: TrainerConfig, store: TrainerStore) -> None:
        self._config, self._store = config, store
        self._alarms = Alarms()
        self._skipped: deque[str] = deque(maxlen=IN_A_ROW)  # why each of the last steps was

    def step(self, skipped: str = "") -> None:
        """Note the end of a step; `skipped`: why it made no version."""
        if skipped:
            self._skipped.append(skipped)
        else:
            self._skipped.clear()

    def report(self, status: component_pb2.ComponentStatus, *, paused: bool, missing: str, problem: str,
               metrics: Mapping[str, float], policy: policy_pb2.PolicyState | None, line: Mapping[str, Any],
               more: Iterable[Raised]) -> None:
        """Add the alarms that hold now to a status.

        Args:
            paused: an operator paused the training.
            missing: what the next step waits for, for a person.
            problem: why training fails now.
            metrics: of the last step.
            policy: what the policy server has; None until it was heard of.
            line: of the weight stream to it, see WeightPublisher.status; empty while there is none.
            more: alarms of the other parts.
        """
        quarantine = self._store.samples.quarantine
        self._alarms.report(status, [
            *self._store.database.alarms(),
            ("cannot_train", f"can't train: {problem}" * bool(problem)),
            ("steps_skipped", self._skipping()), ("samples_waiting", self._waiting(paused, missing)),
            ("samples_stale", self._stale()), *self._useless(), ("blind_votes", self._blind()),
            ("logprobs_apart", self._apart(metrics)), ("versions_rejected", self._rejected()),
            *self._policy(policy, line), quarantine_alarm("samples", quarantine.count, quarantine.last), *more])

    def _skipping(self) -> str:
        if len(self._skipped) < IN_A_ROW:
            return ""
        return (f"the last {IN_A_ROW} steps were skipped and their samples dropped, the last one because of "
                f"{self._skipped[-1]}; a lower learning_rate, or `openclaw-rl rollback` to an older version, may help")

    def _waiting(self, paused: bool, missing: str) -> str:
        """Samples that no step takes; a pause is the operator's own."""
        oldest = None if paused else self._store.oldest()
        waited = 0.0 if oldest is None else time.time() - oldest
        if waited <= max(WAITING_INTERVALS * self._config.update_interval, WAITING_SECONDS):
            return ""
        return (f"samples wait for a step, the oldest for {duration(waited)} ({missing or 'a step is due'}): "
                f"min_samples ({self._config.min_samples}) counts only those with a score or a hint, of one session at "
                f"most max_per_session ({self._config.max_per_session}) and of one branch max_per_branch "
                f"({self._config.max_per_branch}); lower min_samples, or `openclaw-rl train-now`")

    def _stale(self) -> str:
        """Samples that were lost since more came than steps take."""
        hour, config = self._store.counters.last_hour(), self._config
        stale = hour.dropped.get(DropReason.STALE, 0)
        if stale < STALE or stale < STALE_SHARE * (stale + hour.trained):
            return ""
        return (f"{stale} samples were dropped as stale within the last hour, {hour.trained} were trained on and "
                f"{hour.accepted} came: more come than steps take, though a step may grow to {backlog.MOST} times "
                f"max_batch ({config.max_batch}), and of one session to {backlog.MOST} times max_per_session "
                f"({config.max_per_session}). Raise these, or components.trainer.max_staleness "
                f"({config.max_staleness}); samples that came late, since the judge or the trainer was away, are lost "
                "to max_staleness alone")

    def _blind(self) -> str:
        """Judges whose votes on episodes count in full, though they see only whether an action ran."""
        judges = self._store.episodes.blind_votes
        return (f"grpo.step_rewards is full, but the judge ({judges}) is not shown the task: an agent that is paid for "
                "whatever runs unlearns the task. Use `bounded`, or a model as judge" if judges else "")

    def _useless(self) -> list[Raised]:
        """Newest samples that can't be learned from."""
        newest = self._store.samples.newest(NEWEST)
        if len(newest) < NEWEST:
            return []
        dropped = Counter(reason for fate, reason, _ in newest if fate is Fate.DROPPED
                          and reason is not DropReason.NO_SIGNAL)
        if dropped.total() == NEWEST:
            reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.most_common(3))
            return [("samples_dropped", f"all of the last {NEWEST} samples were dropped: {reasons}; `openclaw-rl docs "
                     "troubles-and-cures` tells the setting behind each reason")]
        if not any(signal for _, _, signal in newest):
            return [("no_signal", f"none of the last {NEWEST} samples has a score or a hint that algorithm "
                     f"{self._config.algorithm} learns from: check the judge (`openclaw-rl turns` shows its scores)")]
        return []

    def _apart(self, metrics: Mapping[str, float]) -> str:
        apart, limit = metrics.get("logprob_diff_mean", 0.0), self._config.logprob_alarm
        if apart <= limit or metrics.get("logprob_diff_tokens", 0) < ALARM_TOKENS:
            return ""
        return (f"the log-probabilities of engine and trainer were {apart:.2f} nats apart in the last step, "
                f"logprob_alarm is {limit:g}: check that the policy server serves this trainer's model and versions")

    def _rejected(self) -> str:
        newest = self._store.versions.newest_statuses(IN_A_ROW)
        if len(newest) < IN_A_ROW or any(
                status.state is not VersionState.REJECTED for _, status in newest):
            return ""
        version, status = newest[0]
        return (f"the policy server rejected the last {IN_A_ROW} versions, so nothing that is learned reaches the "
                f"users; version {version}: {status.detail}")

    def _policy(self, policy: policy_pb2.PolicyState | None, line: Mapping[str, Any]) -> list[Raised]:
        """Faults of the policy server, or of the connection to it."""
        if line.get("reason") == "ANOTHER_TRAINER":
            return [("two_trainers", f"the policy server does not take this trainer's versions: {line['error']}")]
        if policy is None or not policy.accepts_weights:
            return []
        base, version = self._store.versions.get(0), policy.active_version
        if base is not None and policy.model_id and policy.model_id != base.manifest.model_id:
            return [("wrong_model", f"the policy server serves another base model ({policy.model}) than this trainer "
                     "trains: set components.policy_server.model to the same on both, and start them again")]
        known = self._store.versions.get(version)
        if known is None:
            return [("unknown_version", f"the policy server answers with version {version}, which this trainer never "
                     f"made: it is another trainer's, or this trainer's state was lost. The next version builds on "
                     f"{self._store.versions.head} and replaces it")]
        if policy.active_digest and known.manifest.digest != policy.active_digest:
            return [("wrong_weights", f"the policy server's version {version} has other weights "
                     f"({policy.active_digest[:12]}) than the one that this trainer made "
                     f"({known.manifest.digest[:12]}): another trainer brought them, or somebody changed them. The "
                     "next version replaces them; `openclaw-rl rollback 0` goes back to the base model")]
        return []
