"""The policy server's status: state, alarms, gauges and counters."""

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
    """Reports the status of the policy server."""

    def __init__(self, service: ChatService, recorder: TurnRecorder, outbox: Outbox, store: Database) -> None:
        self._service, self._recorder, self._outbox, self._store = service, recorder, outbox, store
        self._alarms = Alarms()
        self.engine: Engine | None = None  #: once it has started
        self.problems: list[str] = []  #: with the versions on disk
        self.weights: WeightsService | None = None  #: once it is ready
        self.relay: WeightRelay | None = None  #: None where the trainer sends the versions
        self.entrypoint_alarms: Callable[[], list[Raised]] = list  #: problems with keys and certificate

    def status(self) -> component_pb2.ComponentStatus:
        """The status, without the fields that the server fills in."""
        service, recorder = self._service, self._recorder
        stats = self._outbox.stats()
        status = component_pb2.ComponentStatus(
            state=component_pb2.COMPONENT_STATE_RUNNING if service.ready else component_pb2.COMPONENT_STATE_STARTING,
            detail="; ".join(filter(None, [service.state, self._pin(), self._source(), self._workers(),
                                          *self._engine().notes])),
            counters={**recorder.counters, **self._engine().counters}, gauges=self.gauges(), outboxes=[stats])
        self._alarms.report(status, [
            *self._store.alarms(),
            *(("versions_damaged", problem) for problem in self.problems),
            *self._engine().alarms,
            *(("weights_from", problem) for problem in (self.relay.problems() if self.relay else [])),
            ("turns_not_written", recorder.problem), *self.entrypoint_alarms(),
            *(self.weights.alarms() if self.weights else []),
            *outbox_alarms(stats, "env_server", self._outbox.last_rejected)])
        if service.ready:
            status.policy_version = service.version
        return status

    def engine_counters(self) -> dict[str, int]:
        """Counts of the engine since its start, by name."""
        return dict(self._engine().counters)

    def alarms(self) -> list[str]:
        """Names of the active alarms."""
        return [alarm.name for alarm in self.status().alarms]

    def _pin(self) -> str:
        return self.weights.pin if self.weights else ""

    def _workers(self) -> str:
        """How many workers serve; empty for an engine without workers."""
        workers = self._engine().workers
        if self.engine is None or not workers:
            return ""
        serving = sum(worker.state == "serving" for worker in workers)
        return f"{serving} of {len(workers)} {self.engine.info.name} workers serve"

    def _engine(self) -> EngineStatus:
        return self.engine.status() if self.engine is not None else EngineStatus()

    def _source(self) -> str:
        """The source of versions, unless it is the trainer."""
        if self.relay is None:
            return ""
        relay = self.relay.status()
        fetching = "" if relay["fetching"] is None else f", fetching {relay['fetching']}"
        return f"copies its versions from {self.relay.address}{fetching}"

    def gauges(self) -> dict[str, float]:
        """Current values by name."""
        stats = self._engine().gauges
        queue = self._service.queue
        queued = float(queue.waiting) if queue else 0.0
        return {"qps": self._service.meter.rate(), "running": float(self._service.running), "tokens_per_s": 0.0,
                "version": float(self._service.version), **self._service.latency.gauges(), **stats,
                "waiting": stats.get("waiting", 0.0) + queued,
                "background_waiting": float(queue.background_waiting) if queue else 0.0}
