"""The policy server's figures: momentary ones and counts."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_rl.runtime.alarms import Alarms, Raised, outbox_alarms
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.engines.interface import Engine, EngineStatus
from openclaw_rl.serving.entrypoints.grpc.weights_service import WeightsService
from openclaw_rl.serving.event_recorder import TurnRecorder
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import component_pb2
from openclaw_rl.weights.transfer.relay import WeightRelay


class StatusReporter:
    """What the component tells of itself."""

    def __init__(self, turns: ChatService, recorder: TurnRecorder, outbox: Outbox, store: Database) -> None:
        self._turns, self._recorder, self._outbox, self._store = turns, recorder, outbox, store
        self._alarms = Alarms()
        self.engine: Engine | None = None  #: once it has started
        self.problems: list[str] = []  #: of the versions on disk
        self.weights: WeightsService | None = None  #: once it is there
        self.relay: WeightRelay | None = None  #: brings the versions, where the trainer does not
        self.door: Callable[[], list[Raised]] = list  #: what is wrong with the HTTP door's keys and certificate

    def status(self) -> component_pb2.ComponentStatus:
        """The status, without what the server fills in."""
        turns, recorder = self._turns, self._recorder
        stats = self._outbox.stats()
        status = component_pb2.ComponentStatus(
            state=component_pb2.COMPONENT_STATE_RUNNING if turns.ready else component_pb2.COMPONENT_STATE_STARTING,
            detail="; ".join(filter(None, [turns.state, self._pin(), self._source(),
                                               self._workers()])), counters=recorder.counters,
            gauges=self.gauges(), outboxes=[stats])
        self._alarms.report(status, [
            *(("state_damaged", problem) for problem in self._store.problems),
            *(("versions_damaged", problem) for problem in self.problems),
            *self._engine().alarms,
            *(("weights_from", problem) for problem in (self.relay.problems() if self.relay else [])),
            ("turns_not_written", recorder.problem), *self.door(), *(self.weights.alarms() if self.weights else []),
            *outbox_alarms(stats, "env_server", self._outbox.last_rejected)])
        if turns.ready:
            status.policy_version = turns.version
        return status

    def alarms(self) -> list[str]:
        """Names of the alarms that hold now."""
        return [alarm.name for alarm in self.status().alarms]

    def _pin(self) -> str:
        return self.weights.pin if self.weights else ""

    def _workers(self) -> str:
        """How many of an engine's workers answer; empty for an engine that has none."""
        workers = self._engine().workers
        if self.engine is None or not workers:
            return ""
        serving = sum(worker.state == "serving" for worker in workers)
        return f"{serving} of {len(workers)} {self.engine.info.name} workers serve"

    def _engine(self) -> EngineStatus:
        return self.engine.status() if self.engine is not None else EngineStatus()

    def _source(self) -> str:
        """Where the versions come from, unless it is the trainer."""
        if self.relay is None:
            return ""
        relay = self.relay.status()
        fetching = "" if relay["fetching"] is None else f", fetching {relay['fetching']}"
        return f"copies its versions from {self.relay.address}{fetching}"

    def gauges(self) -> dict[str, float]:
        """Momentary figures by name."""
        stats = self._engine().gauges
        queue = self._turns.queue
        queued = float(queue.waiting) if queue else 0.0
        return {"qps": self._turns.meter.rate(), "running": float(self._turns.running), "tokens_per_s": 0.0,
                "version": float(self._turns.version), **self._turns.latency.gauges(), **stats,
                "waiting": stats.get("waiting", 0.0) + queued,
                "background_waiting": float(queue.background_waiting) if queue else 0.0}
