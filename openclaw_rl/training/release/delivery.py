"""Delivery of versions to the policy servers, and training's reaction to what these report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.storage.database import Database
from openclaw_rl.training.events import Events
from openclaw_rl.training.release.regression_monitor import RegressionMonitor
from openclaw_rl.training.tables.reasons import VersionState, VersionStatus
from openclaw_rl.training.tables.versions import VersionTable
from openclaw_rl.v1 import policy_pb2, trainer_pb2, weights_pb2
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Replicas

logger = logging.getLogger(__name__)

_E = trainer_pb2


class Delivery:
    """Offers versions and follows the policy server: after a rollback the next version builds on the active one.

    Args:
        database, table: the trainer's, and its versions.
        monitor: told what the policy server answers with.
        events: told of what happens to versions.
        make_publisher: makes the publisher of the versions, once there is a place for them; None: none is published.

    Attributes:
        publisher: to all policy servers; None before `start`.
        policy: what the mesh's own policy server has; None until it was heard from.
    """

    def __init__(self, database: Database, table: VersionTable, monitor: RegressionMonitor, events: Events,
                 make_publisher: Callable[[Delivery, VersionStore], Replicas] | None) -> None:
        self._database = database
        self._table, self._monitor, self._events, self._make_publisher = table, monitor, events, make_publisher
        self._weights: VersionStore | None = None
        self.publisher: Replicas | None = None
        self.policy: policy_pb2.PolicyState | None = None

    async def start(self, weights: VersionStore) -> None:
        """Begin to publish versions, whose weights are on disk now."""
        self._weights = weights
        if self._make_publisher is not None and self.publisher is None:
            self.publisher = self._make_publisher(self, weights)
            await self.publisher.start()

    async def stop(self, grace: float) -> None:
        """End, within so many seconds."""
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            await publisher.stop(grace)

    # Of versions

    def offer(self, version: int) -> None:
        """Offer a version to all policy servers."""
        if self.publisher is not None:
            self.publisher.offer(version)

    def take_back(self, versions: set[int]) -> None:
        """Offer these versions no more."""
        if self.publisher is not None:
            self.publisher.take_back(versions)

    def needed(self) -> set[int]:
        """Return the versions whose weights a policy server has or waits for."""
        kept = set(self.policy.kept_versions if self.policy is not None else ())
        return kept | (self.publisher.needed() if self.publisher is not None else set())

    def keeps(self, version: int) -> bool:
        """Return whether a version's weights are on disk."""
        return self._weights is not None and version in self._weights.versions()

    def sending(self, version: int) -> bool:
        """Return whether a version is on its way to a policy server."""
        return self.publisher is not None and self.publisher.sending(version)

    def deliveries(self, version: int, own: trainer_pb2.VersionDelivery) -> list[trainer_pb2.VersionDelivery]:
        """Return how far each policy server is with a version, given what is known of the mesh's own one."""
        return self.publisher.deliveries(version, own) if self.publisher is not None else []

    def status(self) -> dict[str, Any]:
        """Return the state of the connection to the mesh's own policy server; empty while there is none."""
        return self.publisher.status() if self.publisher is not None else {}

    def alarms(self) -> list[Raised]:
        """Return what is wrong with the policy servers."""
        return list(self.publisher.alarms()) if self.publisher is not None else []

    # Called by the publisher

    async def on_state(self, state: policy_pb2.PolicyState) -> None:
        """Follow the mesh's own policy server."""
        self.policy = state
        self._monitor.answers(state)
        offer, base = await self._database.call(self._follow, state)
        if offer is not None:
            self.offer(offer)
        if base is not None:
            self._events.tell(_E.TRAINING_EVENT_KIND_ROLLED_BACK, f"training goes on from version {base}", version=base)

    def _follow(self, state: policy_pb2.PolicyState) -> tuple[int | None, int | None]:
        """Return a version to offer, and the one that training went back to; None each where there is none."""
        self._table.raise_highest(state.highest_version)
        head, active = self._table.head, state.active_version
        self._table.activated(active, state.activated_at.ToNanoseconds() / 1e9)
        known = self._table.get(active)
        # What was made from a version meanwhile that was taken back is taken back with it.
        line = self._table.lineage(head)
        void = set(state.withdrawn_versions).intersection(line)
        usable = (known is not None and not known.lost
                  and state.active_digest in ("", known.manifest.digest))  # else nothing can be built on it
        if head > active and not void:
            newest = self._table.get(head)
            offered = newest is not None and newest.status.state is not VersionState.REJECTED and self.keeps(head)
            return (head if offered else None), None
        if active == head or not (void or (usable and active > head)):
            return None, None
        # Never on from what was taken back: the policy server would refuse all that is made from it.
        base = active if usable else next((v for v in line if v not in void and self._is_usable(v)), 0)
        taken_back = {*state.withdrawn_versions, *((head,) if void else ())}
        self._table.move_head(base, {
            version: self._monitor.detector.took_back(version) or VersionStatus(VersionState.ROLLED_BACK)
            for version in taken_back})
        logger.info("the policy server went from version %d to %d; training continues from version %d", head, active,
                    base)
        return None, base

    def _is_usable(self, version: int) -> bool:
        known = self._table.get(version)
        return known is not None and not known.lost

    async def on_activated(self, version: int, activated: weights_pb2.WeightActivated) -> None:
        """Note that the mesh's own policy server answers with a version."""
        figures = {"pause_ms": activated.pause_ms, "pause_steps": float(activated.pause_steps)}
        await self._database.call(self._table.activated, version, time.time(), figures if activated.pause_ms else None)
        logger.info("the policy server answers with version %d", version)
        self._events.tell(_E.TRAINING_EVENT_KIND_VERSION_ACTIVATED, f"version {version} is active", version=version)

    async def on_rejected(self, version: int, rejected: weights_pb2.WeightRejected) -> None:
        """Note that the mesh's own policy server will not take a version."""
        logger.error("the policy server rejected version %d: %s", version, rejected.message)
        await self._database.call(self._table.note, version, VersionStatus(VersionState.REJECTED, rejected.message))
        self._events.tell(_E.TRAINING_EVENT_KIND_VERSION_REJECTED, rejected.message, version=version)

    def on_further(self, version: int, address: str, message: str, rejected: bool) -> None:
        """Tell that one of `policy_servers` answers with a version, or will not take it."""
        (logger.error if rejected else logger.info)("%s", message)
        kind = _E.TRAINING_EVENT_KIND_VERSION_REJECTED if rejected else _E.TRAINING_EVENT_KIND_VERSION_ACTIVATED
        self._events.tell(kind, message, version=version)
