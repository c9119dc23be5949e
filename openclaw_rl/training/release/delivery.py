"""Delivery of versions to the policy servers, and training's reaction to what these report."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.training.events import Events
from openclaw_rl.training.release.regression_monitor import RegressionMonitor
from openclaw_rl.training.store import HeadMoved, TrainerStore
from openclaw_rl.training.tables.reasons import VersionState, VersionStatus
from openclaw_rl.v1 import policy_pb2, trainer_pb2, weights_pb2
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.replicas import Replicas

logger = logging.getLogger(__name__)

_E = trainer_pb2


@dataclass(frozen=True, slots=True)
class _Consequences:
    """What follows from a state of the policy server."""

    offer: int | None = None  #: a version to offer
    base: int | None = None  #: the version that training went back to
    undone: Mapping[int, VersionStatus] = field(default_factory=dict)  #: versions that never will be served, and why


class Delivery:
    """Offers versions and follows the policy server: after a rollback the next version builds on the active one.

    Args:
        store: samples and versions.
        monitor: told what the policy server answers with.
        events: told of what happens to versions.
        make_publisher: makes the publisher of the versions, once there is a place for them; None: none is published.
        undone: called with versions that never will be served; their samples wait again.

    Attributes:
        publisher: to all policy servers; None before `start`.
        policy: what the mesh's own policy server has; None until it was heard from.
    """

    def __init__(self, store: TrainerStore, monitor: RegressionMonitor, events: Events,
                 make_publisher: Callable[[Delivery, VersionStore], Replicas] | None,
                 undone: Callable[[Collection[int]], Awaitable[None]]) -> None:
        self._store, self._database, self._table = store, store.database, store.versions
        self._monitor, self._events, self._make_publisher, self._on_undone = monitor, events, make_publisher, undone
        self._undone: set[int] = set()  # versions that never will be served
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
        """Offer a version to all policy servers, unless one of them went back meanwhile to before it was made."""
        if self.publisher is not None and version not in self._undone:
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
        found = await self._database.call(self._follow, state)
        if found.offer is not None:
            self.offer(found.offer)
        if found.undone:
            self.take_back(set(found.undone))
            for version, status in found.undone.items():
                logger.error("version %d was made in vain: %s", version, status.detail)
                self._events.tell(_E.TRAINING_EVENT_KIND_VERSION_REJECTED, status.detail, version=version)
            await self._on_undone(found.undone)
        if found.base is not None:
            self._events.tell(_E.TRAINING_EVENT_KIND_ROLLED_BACK, f"training goes on from version {found.base}",
                              version=found.base)

    def _follow(self, state: policy_pb2.PolicyState) -> _Consequences:
        """Note what the policy server has, and return what follows from it."""
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
            return _Consequences(offer=head if offered else None)
        if active == head or not (void or (usable and active > head)):
            return _Consequences()
        # Never on from what was taken back: the policy server would refuse all that is made from it.
        base = active if usable else next((v for v in line if v not in void and self._is_usable(v)), 0)
        above = line[:max((line.index(version) for version in void), default=0)]
        undone = self._in_vain(above, void)
        try:
            self._store.go_back(head, base, {
                version: self._monitor.detector.took_back(version) or VersionStatus(VersionState.ROLLED_BACK)
                for version in {*state.withdrawn_versions, *above} - undone.keys()}, undone)
        except HeadMoved:  # a step ended just now: its version is to be judged too
            return self._follow(state)
        self._undone |= undone.keys()
        logger.info("the policy server went from version %d to %d; training continues from version %d", head, active,
                    base)
        return _Consequences(base=base, undone=undone)

    def _in_vain(self, line: Sequence[int], void: set[int]) -> dict[int, VersionStatus]:
        """The versions that were made from one that was taken back before that was known here, and never served; and
        why they never will be.

        Args:
            line: versions that were made from the oldest one that was taken back, newest first.
            void: those that were taken back.
        """
        found: dict[int, VersionStatus] = {}
        for version in line:
            known = self._table.get(version)
            if known is not None and known.activated_at is not None:
                break  # what is older became part of an answer with it
            if version not in void and known is not None:
                count = len(known.manifest.turn_ids)
                found[version] = VersionStatus(VersionState.REJECTED, (
                    f"it was made from version {max(v for v in void if v < version)}, which was taken back meanwhile; "
                    f"its {count} sample{'s wait' if count != 1 else ' waits'} for another step"))
        return found

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
        if version in self._undone:
            return  # all was said already
        logger.error("the policy server rejected version %d: %s", version, rejected.message)
        await self._database.call(self._table.note, version, VersionStatus(VersionState.REJECTED, rejected.message))
        self._events.tell(_E.TRAINING_EVENT_KIND_VERSION_REJECTED, rejected.message, version=version)

    def on_further(self, version: int, address: str, message: str, rejected: bool) -> None:
        """Tell that one of `policy_servers` answers with a version, or will not take it."""
        (logger.error if rejected else logger.info)("%s", message)
        kind = _E.TRAINING_EVENT_KIND_VERSION_REJECTED if rejected else _E.TRAINING_EVENT_KIND_VERSION_ACTIVATED
        self._events.tell(kind, message, version=version)
