"""Versions: list, origin, comparison, and the operator's actions on them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from openclaw_rl.client import facts
from openclaw_rl.client import versions as client
from openclaw_rl.dashboard.data.parts import part
from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.v1 import trainer_pb2, weights_pb2

if TYPE_CHECKING:
    from openclaw_rl.client.facts import Version
    from openclaw_rl.client.versions import VersionDiff, VersionStory
    from openclaw_rl.monitoring.mesh import MeshData
    from openclaw_rl.v1.trainer_pb2 import PolicyVersion

#: Figures of a step that a list shows, the first of them that there are.
FIGURES = ("loss", "kl", "grad_norm", "mean_score", "advantage_std")
#: Seconds after which versions are asked for again though nothing is known to have changed.
_AGAIN = 10.0
#: Seconds for an activation, which waits for the decode step under way and may load weights from the disk.
_ACT = 120.0
_VERDICTS = {weights_pb2.GATE_VERDICT_PASSED: "passed", weights_pb2.GATE_VERDICT_FAILED: "failed"}


@dataclass(frozen=True)
class Branch:
    """A version's place in the tree."""

    version: Version
    depth: int  #: branches that it is away from the line that answers
    parent_live: dict[str, float] | None  #: live score of its parent
    served: bool  #: it is the active one or one of its ancestors
    gate: str = ""  #: "passed" or "failed"; empty: it was not tried, or nobody who answers knows


@dataclass
class VersionList:
    """All versions, newest first."""

    rows: list[Branch] = field(default_factory=list)
    active: int | None = None
    pinned: bool = False
    kept: set[int] = field(default_factory=set)  #: those that can be activated
    paused: bool = False
    trainer: str = ""  #: the trainer's word on what it waits for
    down: list[str] = field(default_factory=list)


class _Versions:
    """The trainer's versions, which many pages ask for again and again. Only the newest are asked for again, when
    something has changed or some time has passed; older ones are asked for once."""

    def __init__(self) -> None:
        self._known: dict[int, PolicyVersion] = {}
        self._state: object = None
        self._asked = 0.0
        self._lock = asyncio.Lock()

    async def all(self, mesh: MeshData, state: object) -> dict[int, PolicyVersion]:
        async with self._lock:
            if state != self._state or time.monotonic() - self._asked > _AGAIN:
                answer = await mesh.trainer().list_versions(timeout=10)
                fresh = {one.manifest.version: one for one in answer.versions}
                while answer.more and fresh:
                    first = min(fresh)
                    if first - 1 in self._known:
                        fresh |= {number: one for number, one in self._known.items() if number < first}
                        break
                    answer = await mesh.trainer().list_versions(before=first, timeout=10)
                    fresh |= {one.manifest.version: one for one in answer.versions}
                self._known, self._state, self._asked = fresh, state, time.monotonic()
            return dict(self._known)


_kept_by: WeakKeyDictionary[MeshData, _Versions] = WeakKeyDictionary()


async def every(mesh: MeshData) -> VersionList:
    """
    Raises:
        MeshError, ConfigError: neither trainer nor policy server answers.
    """
    (policy, no_policy), (trainer, no_trainer) = await asyncio.gather(
        part(lambda: mesh.policy().get_policy(timeout=10)),
        part(lambda: mesh.component("trainer").get_status(timeout=10)))
    result = VersionList(down=[name for name, why in (("policy_server", no_policy), ("trainer", no_trainer)) if why])
    versions: dict[int, PolicyVersion] = {}
    if policy is not None:
        result.active, result.pinned, result.kept = (
            policy.state.active_version, policy.state.pinned, set(policy.state.kept_versions))
        versions = {made.version: trainer_pb2.PolicyVersion(manifest=made) for made in policy.manifests}
    if trainer is not None:
        result.trainer, result.paused = trainer.status.detail, trainer.status.gauges["paused"] > 0
        state = (result.active, result.pinned, tuple(sorted(result.kept)), trainer.status.policy_version,
                 trainer.status.counters["updates"])
        versions |= await _kept_by.setdefault(mesh, _Versions()).all(mesh, state)
        if policy is None:
            result.active = max((number for number, one in versions.items() if one.active), default=None)
    elif policy is None:
        raise unavailable(f"neither trainer nor policy server answers: {no_trainer}")
    known = facts.Known(versions, result.active, result.pinned)
    found = [facts.version_facts(version, known) for _, version in sorted(known.versions.items())]
    gates = {number: _VERDICTS.get(version.manifest.gate.verdict, "") for number, version in known.versions.items()}
    result.rows = [replace(one, gate=gates[one.version.version]) for one in tree(found, result.active)]
    return result


def tree(versions: list[Version], active: int | None) -> list[Branch]:
    """Versions newest first, each with how many branches it is off the line of the one that answers."""
    known = {version.version: version for version in versions}
    line: set[int] = set()
    at = active if active is not None else max(known, default=None)
    while at is not None and at in known and at not in line:
        line.add(at)
        at = known[at].parent
    depth: dict[int, int] = {}
    heirs: dict[int, int] = {}  # the child that goes on with its parent's branch
    for version in versions:
        parent = version.parent
        if version.version in line or parent is None or parent not in depth:
            depth[version.version] = 0
        elif parent in line or parent in heirs:
            depth[version.version] = depth[parent] + 1
        else:
            heirs[parent] = version.version
            depth[version.version] = depth[parent]
    return [Branch(version, depth[version.version],
                   known[version.parent].live if version.parent in known else None, version.version in line)
            for version in reversed(versions)]


async def story(mesh: MeshData, number: int) -> VersionStory:
    """One version with what made it.

    Raises:
        MeshError, ConfigError: there is no such version, or neither trainer nor policy server answers.
    """
    return await asyncio.to_thread(client.show, mesh.home, number)


async def diff(mesh: MeshData, old: int, new: int) -> VersionDiff:
    """What turns one version into another.

    Raises:
        MeshError, ConfigError: as `story`.
    """
    return await asyncio.to_thread(client.diff, mesh.home, old, new)


async def activate(mesh: MeshData, version: int, why: str) -> tuple[int, float]:
    """Make a kept version the active one.

    Returns:
        The version that answers now, and the milliseconds for which decoding paused.

    Raises:
        MeshError, ConfigError: it isn't kept, another one is pinned, or the policy server doesn't answer.
    """
    done = await mesh.policy().activate_version(version=version, reason=why, timeout=_ACT)
    return done.state.active_version, done.pause_ms


async def pin(mesh: MeshData, version: int | None, why: str, pinned: bool) -> int:
    """Pin a version (None: the active one), or lift the pin. Gives the version that answers now.

    Raises:
        MeshError, ConfigError: as `activate`.
    """
    named: dict[str, Any] = {} if version is None else {"version": version}
    done = await mesh.policy().activate_version(pin=pinned, reason=why, timeout=_ACT, **named)
    return done.state.active_version


async def pause(mesh: MeshData, why: str) -> None:
    """Let the trainer start no further step.

    Raises:
        MeshError, ConfigError: the trainer doesn't answer.
    """
    await mesh.trainer().pause(reason=why)


async def resume(mesh: MeshData) -> None:
    """End a pause.

    Raises:
        MeshError, ConfigError: the trainer doesn't answer.
    """
    await mesh.trainer().resume()


async def train_now(mesh: MeshData) -> tuple[int, str]:
    """Train on the samples that are there. Gives their number and a sentence of the trainer's.

    Raises:
        MeshError, ConfigError: there is nothing to train on, training is paused, or the trainer doesn't answer.
    """
    begun = await mesh.trainer().train_now()
    return begun.samples, begun.message
