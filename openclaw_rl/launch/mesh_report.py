"""The state of a mesh and its components, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.rpc.errors import MeshError
    from openclaw_rl.v1.component_pb2 import Alarm, ComponentStatus

State = Literal["RUNNING", "STARTING", "DEGRADED", "STOPPED", "FAILED"]

#: Seconds that a component has to answer.
_ANSWER_SECONDS = 2.0
#: Starts one after the other that did not last, after which a component is DEGRADED rather than STARTING.
CRASHES = 3


@dataclass
class ComponentReport:
    """One component."""

    name: str
    state: State
    pid: int | None = None
    address: str | None = None
    detail: str = ""
    status: ComponentStatus | None = None  #: its own; None when it did not answer
    host: str = ""  #: that it runs on, or was to; empty when that isn't known
    crashes: int = 0  #: starts one after the other that did not last
    ours: bool = True  #: this mesh started it; not so with `components.NAME.address`, where it may be of another make

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "host": self.host or None, "pid": self.pid,
                "address": self.address, "detail": self.detail, "alarms": [
                    {"name": alarm.name, "message": alarm.message, "since": alarm.since.ToJsonString()}
                    for alarm in self.alarms]}

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms in its own status."""
        return list(self.status.alarms) if self.status is not None else []

    @property
    def note(self) -> str:
        """The detail without the alarms' sentences, with which it begins."""
        alarms = "; ".join(alarm.message for alarm in self.alarms)
        return self.detail.removeprefix(alarms).removeprefix("; ") if alarms else self.detail


@dataclass
class MeshReport:
    """All four, in the order of the ring."""

    components: list[ComponentReport] = field(default_factory=list)
    jaeger: dict[str, str] | None = None  #: `state` and `address` of the one that was started beside the mesh
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of a mesh on several hosts: `state` (up, reachable, gone), `since` and `detail` of each, as far as this machine
    knows."""
    own_problems: list[str] = field(default_factory=list)  #: of this machine's certificate for people's tools

    def __getitem__(self, name: str) -> ComponentReport:
        return next(component for component in self.components if component.name == name)

    @property
    def problems(self) -> list[str]:
        """Problems of the mesh as a whole, for people."""
        versions: dict[str, list[str]] = {}
        for component in self.components:
            if component.ours and component.status is not None and component.status.package_version:
                versions.setdefault(component.status.package_version, []).append(component.name)
        if len(versions) < 2:
            return list(self.own_problems)
        told = ", ".join(f"{version} ({', '.join(names)})" for version, names in sorted(versions.items()))
        return [*self.own_problems,
                f"the components have different versions of openclaw-rl: {told}; install the same one everywhere and "
                "restart those that have another"]

    @property
    def all_running(self) -> bool:
        return all(component.state == "RUNNING" for component in self.components)

    def counter(self, component: str, name: str) -> int | None:
        """A component's counter, or None when it did not answer."""
        status = self[component].status
        return None if status is None else status.counters.get(name, 0)

    def gauge(self, component: str, name: str) -> float | None:
        """A component's gauge, or None when it did not answer."""
        status = self[component].status
        return None if status is None else status.gauges.get(name, 0.0)

    @property
    def policy_version(self) -> int | None:
        status = self["policy_server"].status
        return status.policy_version if status is not None and status.HasField("policy_version") else None

    def json(self) -> dict[str, Any]:
        """The output of `openclaw-rl status --json`. A figure whose component does not answer is null."""
        trainer, pending = self["trainer"].status, self.gauge("trainer", "pending")
        beside: dict[str, Any] = {"jaeger": self.jaeger} if self.jaeger else {}
        if self.hosts:
            beside["hosts"] = self.hosts
        return {
            "components": [component.json() for component in self.components],
            "problems": self.problems,
            "policy_version": self.policy_version,
            "turns": {name: self.counter("env_server", f"turns_{name}") for name in ("main", "side", "unknown")},
            "samples": {
                **{name: self.counter("trainer", f"samples_{name}") for name in ("accepted", "trained")},
                "pending": None if pending is None else int(pending),
                "dropped": dict(sorted(trainer.dropped.items())) if trainer is not None else {},
                "per_hour": {name: self.gauge("trainer", f"{name}_per_hour")
                             for name in ("accepted", "trained", "dropped")},
            },
            **beside,
        }


def answering(name: str, status: ComponentStatus, address: str | None, *, ours: bool = True) -> ComponentReport:
    """The report of what answers; one that is not ours may be another component, or of another contract."""
    from openclaw_rl.rpc import contract
    from openclaw_rl.rpc.errors import MeshError
    from openclaw_rl.v1 import component_pb2 as pb

    try:
        contract.check(status, name, address or "")
    except MeshError as error:
        right = status if status.name == name else None
        return ComponentReport(name, "FAILED", right and (right.pid or None), address, error.message + (
            "" if ours else f" (components.{name}.address)"), right, right.host if right else "", ours=ours)
    states: dict[int, State] = {pb.COMPONENT_STATE_STARTING: "STARTING", pb.COMPONENT_STATE_RUNNING: "RUNNING",
                                pb.COMPONENT_STATE_DEGRADED: "DEGRADED", pb.COMPONENT_STATE_DRAINING: "STOPPED"}
    detail = status.detail or ("is stopping" if status.state == pb.COMPONENT_STATE_DRAINING else "")
    return ComponentReport(name, states.get(status.state, "DEGRADED"), status.pid or None, address, detail, status,
                           status.host, ours=ours)


def elsewhere(name: str, address: str, foreign: str) -> ComponentReport:
    """The report of one that is not ours and does not answer; `foreign`: that another mesh does, as a sentence."""
    why = foreign or f"does not answer at {address}"
    return ComponentReport(name, "STOPPED", address=address, detail=f"{why} (components.{name}.address)")


@dataclass(frozen=True)
class Answer:
    """What an address says to the question for a component's status."""

    status: ComponentStatus | None = None  #: None when this mesh's component does not answer
    foreign: str = ""  #: that another mesh answers there, as a sentence


def ask(address: str, timeout: float = _ANSWER_SECONDS, *, component: str | None = None,
        home: Home | None = None) -> Answer:
    """Ask a component for its status."""
    from openclaw_rl.client import ComponentServiceClient
    from openclaw_rl.rpc.errors import MeshError

    with ComponentServiceClient(address, component=component, home=home) as client:
        try:
            return Answer(client.get_status(timeout=timeout).status)
        except MeshError as error:
            return Answer(foreign=_foreign(error, address, home))


def _foreign(error: MeshError, address: str, home: Home | None) -> str:
    from openclaw_rl.rpc.membership import of_client

    if error.reason != "WRONG_MESH":
        return ""
    ours = of_client(home)
    # Either side may have refused: each expects its own mesh.
    named = {error.metadata.get("expected", ""), error.metadata.get("found", "")} - {ours.mesh if ours else "", ""}
    return (f"at {address} answers another mesh{f', {named.pop()}' if named else ''}: it has taken the port, or the "
            "address is out of date")
