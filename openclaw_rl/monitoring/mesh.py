"""The four components as their operators reach them: a client for each service, and the last status of each."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from openclaw_rl.client import (
    AsyncComponentServiceClient,
    AsyncEnvironmentServiceClient,
    AsyncJudgeServiceClient,
    AsyncPolicyServiceClient,
    AsyncTrainerServiceClient,
)
from openclaw_rl.client.base import find
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.v1 import component_pb2

if TYPE_CHECKING:
    from openclaw_rl.v1.component_pb2 import ComponentStatus

#: What a component is, by its own word or by its silence: DOWN doesn't answer, ABSENT was never started here.
STATES = ("RUNNING", "STARTING", "DEGRADED", "DRAINING", "DOWN", "ABSENT")
_BY_STATE = {component_pb2.COMPONENT_STATE_STARTING: "STARTING", component_pb2.COMPONENT_STATE_RUNNING: "RUNNING",
             component_pb2.COMPONENT_STATE_DEGRADED: "DEGRADED", component_pb2.COMPONENT_STATE_DRAINING: "DRAINING"}

_Client = TypeVar("_Client", bound=Any)


@dataclass
class ComponentView:
    """What is known of one component now.

    Attributes:
        state: one of STATES.
        since: when it came into this state, seconds since the epoch.
        heard: when it last answered; 0 never.
        status: its last word; None when it never answered. It is old while `state` is DOWN.
        address: HOST:PORT where it is, or was last.
        problem: why it can't be reached, for a person.
    """

    name: str
    state: str = "ABSENT"
    since: float = 0.0
    heard: float = 0.0
    status: ComponentStatus | None = None
    address: str = ""
    problem: str = ""

    @property
    def live(self) -> bool:
        """Whether the component responds."""
        return self.state not in ("DOWN", "ABSENT")

    @property
    def host(self) -> str:
        return self.status.host if self.status is not None else ""

    def gauge(self, name: str) -> float | None:
        """Return a gauge; None if it is not reported now."""
        if self.status is None or not self.live or name not in self.status.gauges:
            return None
        return float(self.status.gauges[name])

    def counter(self, name: str) -> int | None:
        """Return a counter; None if it is not reported now."""
        if self.status is None or not self.live or name not in self.status.counters:
            return None
        return int(self.status.counters[name])


class MeshData:
    """Clients of the mesh of a home, made when they are first wanted and again when a component has moved.

    Belongs to the event loop that it is first used in.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self._views = {name: ComponentView(name, since=time.time()) for name in COMPONENTS}
        self._clients: dict[tuple[type[Any], str], Any] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def address(self, name: str) -> str:
        """HOST:PORT of a component, found as the command line finds it.

        Raises:
            MeshError: UNAVAILABLE, nothing says where it is.
            ConfigError: the configuration can't be used.
        """
        return find(name, self.home)

    def status(self, name: str) -> ComponentView:
        """Return the view of a component."""
        return self._views[name]

    def all(self) -> list[ComponentView]:
        """Return all four views, in the order of the ring."""
        return [self._views[name] for name in COMPONENTS]

    @property
    def version(self) -> int | None:
        """The active policy version; None if unknown."""
        seen = self._views["policy_server"]
        return int(seen.status.policy_version) if seen.live and seen.status is not None \
            and seen.status.HasField("policy_version") else None

    def component(self, name: str) -> AsyncComponentServiceClient:
        """ComponentService of a component: status, logs, spans.

        Raises:
            MeshError: UNAVAILABLE, it isn't running here.
            ConfigError: mesh file or certificates can't be used.
        """
        return self._client(AsyncComponentServiceClient, name)

    def policy(self) -> AsyncPolicyServiceClient:
        """Raises: as `component`."""
        return self._client(AsyncPolicyServiceClient, "policy_server")

    def environment(self) -> AsyncEnvironmentServiceClient:
        """Raises: as `component`."""
        return self._client(AsyncEnvironmentServiceClient, "env_server")

    def judge(self) -> AsyncJudgeServiceClient:
        """Raises: as `component`."""
        return self._client(AsyncJudgeServiceClient, "prm_judge")

    def trainer(self) -> AsyncTrainerServiceClient:
        """Raises: as `component`."""
        return self._client(AsyncTrainerServiceClient, "trainer")

    def answered(self, name: str, status: ComponentStatus, address: str) -> str:
        """Record a component's status. Returns its previous state."""
        before = self._views[name]
        state = _BY_STATE.get(status.state, "DEGRADED")
        now = time.time()
        # One that is seen for the first time has been as it is for as long as it runs, as far as anybody knows.
        began = now if before.heard or not status.HasField("started_at") else status.started_at.ToNanoseconds() / 1e9
        since = before.since if before.state == state else began
        self._views[name] = ComponentView(name, state, since, now, status, address)
        return before.state

    def silent(self, name: str, problem: str, absent: bool) -> str:
        """Record that a component does not respond; `absent`: its address is unknown. Returns its previous state."""
        before = self._views[name]
        state = "ABSENT" if absent and not before.heard else "DOWN"
        since = before.since if before.state == state else time.time()
        self._views[name] = ComponentView(name, state, since, before.heard, before.status, before.address, problem)
        return before.state

    def _client(self, kind: type[_Client], name: str) -> _Client:
        address = self.address(name)
        key = (kind, name)
        client = self._clients.get(key)
        if client is None or client.address != address:
            if client is not None:  # it moved; calls under way end with an error of their own
                self._later(client)
            client = self._clients[key] = kind(address, component=name, home=self.home)
        return cast(_Client, client)

    def _later(self, client: Any) -> None:
        task = asyncio.get_running_loop().create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all clients."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()
