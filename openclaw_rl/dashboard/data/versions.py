"""Versions: which there are, what made each, what lies between two; and what an operator may do to them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...client import facts
from ...client import versions as client
from ...v1 import weights_pb2
from .parts import FAILURES, part

if TYPE_CHECKING:
    from ...client.facts import Version
    from ...client.versions import VersionDiff, VersionStory
    from ..mesh import MeshData

#: Figures of a step that a list shows, the first of them that there are.
FIGURES = ("loss", "kl", "grad_norm", "mean_score", "advantage_std")
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


async def every(mesh: MeshData) -> VersionList:
    """
    Raises:
        MeshError, ConfigError: neither trainer nor policy server answers.
    """
    known, (policy, no_policy), (trainer, no_trainer) = await asyncio.gather(
        asyncio.to_thread(facts.known_versions, mesh.home, addresses(mesh)),
        part(lambda: mesh.policy().get_policy(timeout=10)),
        part(lambda: mesh.component("trainer").get_status(timeout=10)))
    result = VersionList(down=[name for name, why in (("policy_server", no_policy), ("trainer", no_trainer)) if why])
    found = [facts.version_facts(version, known) for _, version in sorted(known.versions.items())]
    result.active = known.active
    if policy is not None:
        result.pinned, result.kept = policy.state.pinned, set(policy.state.kept_versions)
    if trainer is not None:
        result.trainer = trainer.status.detail
        result.paused = trainer.status.detail.startswith("paused")
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
    return await asyncio.to_thread(client.show, mesh.home, number, addresses=addresses(mesh))


async def diff(mesh: MeshData, old: int, new: int) -> VersionDiff:
    """What turns one version into another.

    Raises:
        MeshError, ConfigError: as `story`.
    """
    return await asyncio.to_thread(client.diff, mesh.home, old, new, addresses=addresses(mesh))


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


def addresses(mesh: MeshData) -> dict[str, str]:
    """Where the components are, by name, as far as that is known."""
    found = {}
    for name in ("policy_server", "env_server", "prm_judge", "trainer"):
        try:
            found[name] = mesh.component(name).address
        except FAILURES:
            continue
    return found
