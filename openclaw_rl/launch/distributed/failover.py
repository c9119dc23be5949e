"""Failover decisions: which host is gone since when, and where its components run then.

Pure decisions over a clock that is handed in; the controller carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_rl.config import Config
from openclaw_rl.launch.distributed import plan

Reachability = Literal["up", "reachable", "gone"]

#: Seconds without an answer after which a host counts as gone: a busy one may be late.
PATIENCE = 8.0


@dataclass
class HostState:
    """One host. Times are seconds since the epoch.

    Attributes:
        state: up: its agent answers; reachable: the host does, its agent does not; gone: nothing does.
    """

    state: str = "starting"
    since: float = 0.0
    answered: float = 0.0  #: when its agent last did
    detail: str = ""
    children: dict[str, Any] = field(default_factory=dict)  #: ChildState by component, as last told


class Failover:
    """State of all hosts of a mesh.

    Args:
        config: the mesh's.
        hosts: host by component, as the configuration has it.
        moved: host by component, of those that were moved before.
        now: seconds since the epoch.
    """

    def __init__(self, config: Config, hosts: dict[str, str], all_hosts: list[str], moved: dict[str, str], now: float
                 ) -> None:
        self.config, self.planned = config, hosts
        self.hosts = {**hosts, **moved}
        self.states = {host: HostState(since=now, answered=now) for host in all_hosts}

    def observe(self, host: str, seen: Reachability, now: float, children: dict[str, Any] | None = None,
                detail: str = "") -> None:
        """Record the result of a look at a host."""
        state = self.states[host]
        if seen == "up":
            state.answered = now
            state.children = children or {}
        elif now - state.answered < PATIENCE:
            return
        new = {"up": "up", "reachable": "reachable", "gone": "gone"}[seen]
        if new != state.state:
            # A host is gone since it last answered, not since that was found out.
            state.since = now if new == "up" else state.answered
            state.state = new
        state.detail = "" if seen == "up" else detail

    def components(self, host: str) -> list[str]:
        """Components to run on a host."""
        return [name for name, at in self.hosts.items() if at == host]

    def move(self, now: float) -> list[tuple[str, str, str]]:
        """Give components of hosts that are gone for too long to others, where that is allowed.

        Returns:
            (component, from, to) of each that was moved.
        """
        settings = self.config.distributed
        if not settings.elsewhere:
            return []
        moves = []
        for name, host in list(self.hosts.items()):
            state = self.states[host]
            if state.state == "up" or now - state.since < settings.elsewhere_after or not state.since:
                continue
            if (target := self._target(name)) is not None:
                self.hosts[name] = target
                moves.append((name, host, target))
        return moves

    def _target(self, name: str) -> str | None:
        """The host that is up, has the ports free, and has the fewest components; rather not the policy server's, whose
        answers would wait."""
        wanted = set(plan.ports(self.config, name).values())
        fit = [host for host, state in self.states.items() if state.state == "up" and not wanted & {
            port for other in self.components(host) for port in plan.ports(self.config, other).values()}]
        return min(fit, key=lambda host: (len(self.components(host)), host == self.hosts.get("policy_server")),
                   default=None)

    @property
    def moved(self) -> dict[str, str]:
        """Host by component, of those that are not where the configuration has them."""
        return {name: host for name, host in self.hosts.items() if host != self.planned[name]}

    def facts(self, now: float) -> dict[str, Any]:
        """Content of run/hosts.json."""
        return {"at": now,
                "hosts": {host: {"state": state.state, "since": state.since, "detail": state.detail}
                          for host, state in self.states.items()},
                "components": {name: {"host": host, "planned": self.planned[name],
                                      **self.states[host].children.get(name, {})}
                               for name, host in self.hosts.items()}}
