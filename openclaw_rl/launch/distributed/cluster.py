"""Steps that need Ray; they run in a process of their own on a node of the cluster (`node on-ray`)."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.launch.distributed import ray_node, steps
from openclaw_rl.launch.distributed.steps import StepError

#: Seconds for connecting, and for an agent to end its components.
_CONNECT, _STOP = 60, 60
#: How the error begins when nothing answers at the cluster's address.
NO_CLUSTER = "no Ray cluster answers"
#: Seconds after which a call that has not been answered is given up, and the next one made.
_FORGET_CALL = 60.0
#: Part of a host's resource that an actor or task asks for, which puts it there.
_PART = 0.001


def do(what: str, address: str, variables: dict[str, str], mesh: str, **payload: Any) -> Any:
    """Connect and do one of WHAT.

    Args:
        address: HOST:PORT of the cluster's head, or "auto".
        variables: RAY_* of the cluster.
        mesh: the mesh's name, the namespace of its actors.

    Raises:
        StepError: it can't be done.
    """
    os.environ.update(variables)
    if authority := variables.get("RAY_TLS_CA_CERT"):  # who asks may be on another machine, without the token
        os.environ.update(ray_node.token(str(Path(authority).parent)))
    try:
        import ray
    except ImportError:
        raise StepError("Ray is not installed here: pip install 'openclaw-rl[distributed]'") from None
    ip = variables.get("RAY_NODE_IP_ADDRESS")
    try:
        options: dict[str, Any] = {"_node_ip_address": ip} if ip else {}
        ray.init(address=address, namespace=mesh, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        raise StepError(f"{NO_CLUSTER} at {address} ({' '.join(str(error).split())[:300]})") from None
    try:
        return WHAT[what](mesh, **payload)
    finally:
        ray.shutdown()


def _nodes(mesh: str) -> list[dict[str, Any]]:
    """The nodes that live: address and resources."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [{"host": node["NodeManagerAddress"], "resources": node["Resources"]} for node in nodes if node["Alive"]]


def _wait(mesh: str, hosts: list[str], seconds: float) -> list[str]:
    """Wait until all hosts have a node that lives; those that have none."""
    deadline = time.monotonic() + seconds
    while missing := sorted(set(hosts) - {node["host"] for node in _nodes(mesh)}):
        if time.monotonic() > deadline:
            return missing
        time.sleep(0.5)
    return []


def _call(mesh: str, host: str, step: str, step_payload: dict[str, Any], seconds: float) -> Any:
    """Do a step of `steps` on a host of the cluster."""
    import ray

    task = ray.remote(steps.do).options(num_cpus=0, resources=_on(host), max_retries=0)
    try:
        return ray.get(task.remote(step, step_payload), timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        raise StepError(f"no answer in {seconds:.0f} s") from None
    except ray.exceptions.RayTaskError as error:
        raise StepError(str(error.cause if isinstance(error.cause, StepError) else error).strip().splitlines()[-1]
                        ) from None


def _up(mesh: str, head: str, home: str, homes: dict[str, str], standby: dict[str, Any] | None) -> bool:
    """Create the controller, which creates the agents. False when it was there."""
    import ray

    with contextlib.suppress(ValueError):
        ray.get_actor("keeper", namespace=mesh)
        return False
    controller: Any = ray.remote(RayController)
    actor = controller.options(name="keeper", namespace=mesh, lifetime="detached", max_restarts=-1, num_cpus=0,
                           resources=_on(head), max_concurrency=4)
    ray.get(actor.remote(mesh, home, homes, standby).facts.remote(), timeout=_CONNECT)
    return True


def _facts(mesh: str) -> dict[str, Any] | None:
    """The controller's facts; None without one."""
    facts: dict[str, Any] | None = _ask_controller(mesh, lambda controller: controller.facts.remote())
    return facts


def _ask_controller(mesh: str, ask: Callable[[Any], Any]) -> Any:
    import ray

    try:
        return ray.get(ask(ray.get_actor("keeper", namespace=mesh)), timeout=_STOP)
    except (ValueError, ray.exceptions.RayError):
        return None


def _restart(mesh: str, host: str, names: list[str]) -> None:
    """Let components that wait in a pause be tried at once."""
    import ray

    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        ray.get(ray.get_actor(f"agent-{host}", namespace=mesh).restart.remote(names), timeout=10)


def _down(mesh: str, hosts: list[str]) -> dict[str, list[str] | None]:
    """End the controller, then the agents with their components. Returns what was ended by host; None where nobody
    answered."""
    import ray

    _ask_controller(mesh, lambda controller: controller.stop.remote())
    _kill(mesh, "keeper")
    calls: dict[str, Any] = {}
    for host in hosts:
        with contextlib.suppress(ValueError):
            calls[host] = ray.get_actor(f"agent-{host}", namespace=mesh).stop.remote()
    done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=_STOP) if calls else ([], [])
    ended: dict[str, list[str] | None] = {host: None if host in calls else [] for host in hosts}
    for host, call in calls.items():
        if call in done:
            with contextlib.suppress(ray.exceptions.RayError):
                ended[host] = ray.get(call)
        _kill(mesh, f"agent-{host}")
    return ended


def _kill(mesh: str, name: str) -> None:
    import ray

    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(name, namespace=mesh), no_restart=True)


def _on(host: str) -> dict[str, float]:
    return {f"node:{host}": _PART}


class RayAgents:
    """The agents as actors of a mesh, each on its host."""

    def __init__(self, mesh: str, homes: dict[str, str], standby: tuple[str, dict[str, Any]] | None) -> None:
        self._mesh, self._homes, self._standby = mesh, homes, standby
        self._open: dict[str, tuple[Any, float]] = {}  #: calls that were not answered yet
        self._lock = threading.Lock()

    def tick(self, host: str, components: list[str], files: dict[str, str], timeout: float) -> dict[str, Any]:
        """See controller.Agents."""
        import ray

        call, since = self._open.get(host, (None, 0.0))
        if call is None or time.monotonic() - since > _FORGET_CALL:
            call = self._agent(host).tick.remote(components, files)
            self._open[host] = (call, time.monotonic())
        try:
            answer: dict[str, Any] = ray.get(call, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError("the agent does not answer") from None
        except BaseException:
            self._open.pop(host, None)
            raise
        self._open.pop(host, None)
        return answer

    def _agent(self, host: str) -> Any:
        import ray

        from openclaw_rl.launch.distributed.host_agent import Agent

        name = f"agent-{host}"
        with self._lock:
            try:
                return ray.get_actor(name, namespace=self._mesh)
            except ValueError:
                pass
            standby = self._standby[1] if self._standby is not None and self._standby[0] == host else None
            return ray.remote(Agent).options(
                name=name, namespace=self._mesh, lifetime="detached", max_restarts=-1, num_cpus=0, resources=_on(host),
                max_concurrency=4).remote(self._homes[host], host, standby)


class RayController:
    """The controller as an actor."""

    def __init__(self, mesh: str, home: str, homes: dict[str, str], standby: dict[str, Any] | None) -> None:
        from openclaw_rl.launch.distributed.controller import Controller

        chosen = (standby["host"], standby["settings"]) if standby else None
        self._controller = Controller(home, RayAgents(mesh, homes, chosen))

    def facts(self) -> dict[str, Any]:
        return self._controller.facts()

    def stop(self) -> None:
        self._controller.stop()


WHAT: dict[str, Callable[..., Any]] = {"nodes": _nodes, "wait": _wait, "call": _call, "up": _up, "facts": _facts,
                                       "restart": _restart, "down": _down}
