"""Resume a mesh that was started before: it is found running, or certainly runs no more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openclaw_rl.config import ConfigError
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.distributed import certificates
from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed import plan as plans
from openclaw_rl.launch.distributed import stop as stopping
from openclaw_rl.launch.distributed.cluster import NO_CLUSTER
from openclaw_rl.launch.distributed.host import Host, HostError
from openclaw_rl.launch.distributed.join import by_ray
from openclaw_rl.launch.mesh_report import MeshReport
from openclaw_rl.launch.status import report
from openclaw_rl.runtime import mesh_file

if TYPE_CHECKING:
    from openclaw_rl.launch.distributed.start import DistributedStart

#: Seconds for the controller's return after the head's.
_RETURN = 60


def look(start: DistributedStart, running: mesh_file.MeshFile) -> MeshReport | None:
    """The report of a mesh that runs; None when it does not any more, and is cleared away.

    Raises:
        StartError: it is another one, or nobody can tell whether it runs.
    """
    cluster = running.cluster
    if cluster is None:
        raise StartError(f"{start.home.root} belongs to a mesh that was started elsewhere ("
                         f"{', '.join(sorted(set(running.hosts.values())))}): start it there, or set "
                         "OPENCLAW_RL_HOME to another folder")
    if cluster.mesh != start.plan.mesh:
        raise StartError(f"another mesh ({', '.join(cluster.hosts)}) was started from {start.home.root}: "
                         "`openclaw-rl stop-all` first")
    reached = hosts.reach(cluster.hosts, running.config.distributed)
    head = reached[cluster.head]
    ask = stopping.on_ray(start.home, running, head)
    payload = stopping.ray_payload(start.home, running)
    with start.step("looking at the mesh that was started before"):
        facts = _controller_facts(start, running, head, ask, payload)
    if facts is None:
        if answering := [c.name for c in report(start.home).components if c.name in running.hosts and c.status]:
            raise StartError(f"{', '.join(answering)} of this mesh answer, and their controller on {cluster.head} does "
                             "not: repeat in a minute, or `openclaw-rl stop-all` first")
        start.console.print("it does not run any more; what is left of it is ended")
        start.undo(running)
        return None
    start.console.print("this mesh is running already")
    wanted = plans.for_clients(start.config, start.plan.hosts)
    if running.config.model_dump(exclude={"components"}) != wanted.model_dump(exclude={"components"}):
        start.console.print("[yellow]its configuration is another one; `openclaw-rl stop-all` first to start it "
                            "anew[/]")
    waiting: dict[str, list[str]] = {}
    for name, entry in facts["components"].items():
        if entry.get("state") in ("BACKOFF", "EXITED"):
            waiting.setdefault(entry["host"], []).append(name)
    for host, names in waiting.items():
        with contextlib.suppress(HostError):
            ask.call("on-ray", timeout=90, **payload, what="restart", host=host, names=names)
    _renew(start, running, reached if cluster.ours else by_ray(cluster.hosts, ask.call, payload))
    return report(start.home)


def _controller_facts(start: DistributedStart, running: mesh_file.MeshFile, head: Host, ask: Host,
                  payload: Mapping[str, Any]) -> dict[str, Any] | None:
    """The controller's facts; None when there is certainly no Ray, or no controller in it. A restarted head
    goes on with what there was, once its part of Ray runs.

    Raises:
        StartError: it can't be asked, so nobody knows.
    """
    deadline, again = time.monotonic() + _RETURN, False
    while True:
        try:
            facts: dict[str, Any] | None = ask.call("on-ray", timeout=120, **payload, what="facts")
            if facts is not None or not again or time.monotonic() > deadline:
                return facts
        except HostError as error:
            if NO_CLUSTER not in str(error):
                raise _unsure(head, error) from None
            if again or running.cluster is None or not running.cluster.ours:
                return None
            again = True
            try:
                head.call("ray-start", timeout=150, home=stopping.home_on(start.home, head, running))
            except HostError as ended:
                if not any(sure in str(ended) for sure in ("ray.json is missing", "Ray does not start")):
                    raise _unsure(head, ended) from None
                return None
        time.sleep(1)


def _unsure(head: Host, error: HostError) -> StartError:
    return StartError(f"{head.name}, the head of this mesh, can't be asked: {error}; repeat when it can, or "
                      "`openclaw-rl stop-all` first")


def _renew(start: DistributedStart, running: mesh_file.MeshFile, reached: Mapping[str, Host]) -> None:
    """Give the hosts new certificates; a component takes them at once. Ray's stay: it reads them at its start."""
    homes = {name: stopping.home_on(start.home, host, running) for name, host in reached.items()}
    try:
        with start.step("renewing certificates"):
            certificates.provide(start.home, start.plan, reached, homes, ray=False)
    except (HostError, ConfigError) as error:
        start.console.print(f"[yellow]certificates were not renewed: {error}[/]", soft_wrap=True, highlight=False)
