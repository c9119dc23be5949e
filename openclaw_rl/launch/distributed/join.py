"""Access to the hosts of an existing Ray cluster, through Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.launch.distributed.host import Host, HostError, Say


def address_of(config: Config) -> str | None:
    """Address of the cluster to join; None when one is to be brought up."""
    return config.distributed.ray_address or os.environ.get("RAY_ADDRESS") or None


class ByRay:
    """A node of the cluster."""

    def __init__(self, name: str, ask: Callable[..., Any], cluster: dict[str, Any]) -> None:
        self.name, self._ask, self._cluster = name, ask, cluster

    def call(self, step: str, /, timeout: float = 60, say: Say | None = None, **payload: Any) -> Any:
        """See host.Host."""
        return self._ask("on-ray", timeout=timeout + 60, say=say, **self._cluster, what="call", host=self.name,
                         step=step, step_payload=payload, seconds=timeout)

    def run(self, command: Sequence[str], timeout: float = 30) -> str:
        """Nothing but our own steps is run through a cluster."""
        raise HostError("commands are not run through Ray")


def by_ray(names: Iterable[str], ask: Callable[..., Any], cluster: dict[str, Any]) -> dict[str, Host]:
    """The hosts through a cluster.

    Args:
        ask: `call` of the node that connects to it.
        cluster: address, mesh and variables, as cluster.do takes them.
    """
    return {name: ByRay(name, ask, cluster) for name in names}
