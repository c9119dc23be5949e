"""All the policy servers that a trainer feeds: the mesh's own one, which decides on rollbacks, and further ones."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from openclaw_rl.runtime.alarms import WAITING_SECONDS
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import PolicyState
from openclaw_rl.v1.trainer_pb2 import VersionDelivery
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.publisher import WeightPublisher
from openclaw_rl.weights.transfer.replica import History, Replica, void

#: Seconds without an answer after which a policy server is reported as unreachable. One that loads its model answers.
UNREACHABLE = WAITING_SECONDS


class Replicas:
    """Brings every policy server to the newest version offered, each at its own pace and over a stream of its own.

    The mesh's own policy server is told of by the same callbacks as a WeightPublisher's. When an operator goes back
    there, the further ones are brought to the same version: by ActivateVersion where they keep it, else by the stream
    when it is newer than theirs; where neither can be, `alarms` says so until the next version arrives.

    Args:
        own: address of the mesh's own policy server, asked before each connection; None while it is not known.
        further: addresses of the others, HOST:PORT.
        store: where the offered versions are.
        on_state, on_activated, on_rejected: of the own one; see WeightPublisher.
        active: the version that the own one answered with when it was last heard of.
        manifest: of a version that the trainer made; None of one that it never made.
        on_number: a version number is in use at a further one; the next version needs a higher one.
        on_further: something happened at a further one: version, address, sentence, whether it is a refusal.
        history: what further ones did with versions; kept by the caller.
        full_every: see WeightPublisher.
    """

    def __init__(self, own: Callable[[], str | None], further: Sequence[str], store: VersionStore, *,
                 on_state: Callable[[PolicyState], Any], on_activated: Callable[[int, pb.WeightActivated], Any],
                 on_rejected: Callable[[int, pb.WeightRejected], Any], active: int,
                 manifest: Callable[[int], pb.VersionManifest | None], on_number: Callable[[int], None],
                 on_further: Callable[[int, str, str, bool], None],
                 history: Callable[[str], History], full_every: int = 10) -> None:
        self._resolve = own
        self._store = store
        self._manifest = manifest
        self._callbacks = on_state, on_activated
        self._active = active
        self._latest = 0  # newest version offered; 0: none
        self._authority: PolicyState | None = None  # what the own one has; None until it is heard of
        self._goal: tuple[Any, int] | None = None  # what it was worked out from, and the goal
        self._own = WeightPublisher(own, store, self._on_state, self._on_activated, on_rejected, full_every=full_every)
        self._replicas = [Replica(address, store, self.goal, lambda: self._authority, manifest, on_number, on_further,
                                    history(address), full_every) for address in dict.fromkeys(further)]

    async def start(self) -> None:
        """Begin to connect; returns at once."""
        await self._own.start()
        for replica in self._replicas:
            await replica.start()

    async def stop(self, grace: float = 5.0) -> None:
        """End all streams; see WeightPublisher.stop."""
        await asyncio.gather(self._own.stop(grace), *(replica.stop(grace) for replica in self._replicas))

    def offer(self, version: int) -> None:
        """Bring all policy servers to this version. On the event loop.

        Raises:
            KeyError: the version is not in the store.
        """
        self._own.offer(version)
        self._latest = version
        self._align()

    def take_back(self, versions: set[int]) -> None:
        """Send none of these versions any more, to nobody; they are void."""
        if self._latest in versions:
            self._latest = 0
        for publisher in self._publishers():
            publisher.take_back(versions)

    def goal(self) -> int:
        """The version that the further ones are to have: the newest offered, unless it was taken back."""
        withdrawn = tuple(self._authority.withdrawn_versions) if self._authority else ()
        known = self._latest, self._active, withdrawn
        if self._goal is None or self._goal[0] != known:  # the way through the ancestors may be long
            newer = self._latest > self._active and not void(self._latest, withdrawn, self._manifest)
            self._goal = known, self._latest if newer else self._active
        return self._goal[1]

    def status(self) -> dict[str, Any]:
        """Of the mesh's own policy server; see WeightPublisher.status."""
        return self._own.status()

    def sending(self, version: int) -> bool:
        """The version is on its way to a policy server."""
        return any(publisher.status()["sending"] == version for publisher in self._publishers())

    def needed(self) -> set[int]:
        """Versions that must stay in the store: see WeightPublisher.needed."""
        return {self.goal()}.union(*(publisher.needed() for publisher in self._publishers()))

    def deliveries(self, version: int, own: VersionDelivery) -> list[VersionDelivery]:
        """How far each policy server is with a version.

        Args:
            own: what is known of the mesh's own one; address and trouble of its line are filled in here.
        """
        status = self._own.status()
        own.address = self._resolve() or ""
        if not own.active and not status["connected"] and version in (status["sending"], status["waiting"]):
            own.detail = f"can't be reached: {status['error'] or 'connecting'}"
        return [own, *(replica.delivery(version) for replica in self._replicas)]

    def alarms(self) -> Iterable[tuple[str, str]]:
        """Policy servers that can't be brought to the version that they should have: name and sentence of each."""
        if self._own.down() > UNREACHABLE:
            yield "policy_server_unreachable", (
                f"the mesh's policy server ({self._resolve() or 'no address yet'}) has not been reached for "
                f"{self._own.down():.0f} s: {self._own.status()['error']}; new versions wait until it is there")
        for replica in self._replicas:
            yield from replica.alarms(UNREACHABLE)

    def _publishers(self) -> list[WeightPublisher]:
        return [self._own, *(replica.publisher for replica in self._replicas)]

    def _align(self) -> None:
        for replica in self._replicas:
            replica.align()

    async def _on_state(self, state: PolicyState) -> None:
        self._authority, self._active = state, state.active_version
        await _call(self._callbacks[0], state)
        self._align()

    async def _on_activated(self, version: int, activated: pb.WeightActivated) -> None:
        if self._authority is not None:
            self._authority.active_version, self._active = version, version
            self._authority.active_digest = self._store.manifest(version).digest
        await _call(self._callbacks[1], version, activated)
        self._align()


async def _call(callback: Callable[..., Any], *args: Any) -> None:
    result = callback(*args)
    if inspect.isawaitable(result):
        await result
