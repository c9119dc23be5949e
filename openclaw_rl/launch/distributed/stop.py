"""Stop a mesh on several hosts: end everything that was started and nothing else, and verify it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
from pathlib import Path
from typing import Any

from openclaw_rl.launch import leftovers
from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed import ray_node
from openclaw_rl.launch.distributed.host import Host, HostError
from openclaw_rl.launch.distributed.join import by_ray
from openclaw_rl.launch.distributed.ray_node import RayNode
from openclaw_rl.launch.supervisor import SupervisorError
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import COMPONENTS, Home, remove_record

#: What distributed-start writes into a home's run folder, but the settings of Ray, which are needed until its end.
_FILES = ("config.yaml", "hosts.json", "keeper.json", "environment.json")
#: What Ray's cluster launcher leaves in the head's home folder.
LAUNCHER_FILES = ("~/ray_bootstrap_config.yaml", "~/ray_bootstrap_key.pem")
#: Where it keeps the state of a cluster.
_STATE = Path("/tmp/ray")


def clear(home: Home) -> None:
    """Remove Ray's state, sockets and logs of a mesh that does not run."""
    node = RayNode.read(home)
    shutil.rmtree(state_folder(home), ignore_errors=True)
    if node is not None:
        with contextlib.suppress(OSError):
            if Path(node.temp).stat().st_uid == os.getuid():
                shutil.rmtree(node.temp, ignore_errors=True)


def clear_launcher(mesh: str) -> None:
    """Remove what Ray's cluster launcher left on this machine: configuration, key, state, control sockets of ssh."""
    import getpass

    for name in LAUNCHER_FILES:
        Path(name).expanduser().unlink(missing_ok=True)
    for suffix in ("state", "lock"):
        with contextlib.suppress(OSError):
            (_STATE / f"cluster-{mesh}.{suffix}").unlink(missing_ok=True)
    # As ray.autoscaler._private.command_runner names them.
    user, cluster = (hashlib.sha256(text.encode()).hexdigest()[:10] for text in (getpass.getuser(), mesh))
    shutil.rmtree(f"/tmp/ray_ssh_{user}/{cluster}", ignore_errors=True)
    for folder in (Path(f"/tmp/ray_ssh_{user}"), _STATE):
        with contextlib.suppress(OSError):
            folder.rmdir()


def state_folder(home: Home) -> Path:
    """Folder in which Ray's head keeps its state, so that it survives its host's end."""
    return home.run / "ray-state"


def here(home: Home) -> list[str]:
    """End this host's part: components, then Ray's processes; remove what is for a running mesh only.

    Returns:
        What is left.
    """
    node = RayNode.read(home)
    leftovers.end_orphans(home)
    left = ray_node.stop(node) if node is not None else []
    if left:
        return left
    clear(home)
    if node is not None and node.launcher:
        clear_launcher(node.mesh)
    for name in (*_FILES, "ray.json"):
        (home.run / name).unlink(missing_ok=True)
    for name in COMPONENTS:
        remove_record(home, name)
    mesh_file.remove(home)
    return []


def everywhere(home: Home, mesh: mesh_file.MeshFile, say: hosts.Say, forget: bool = False) -> list[str]:
    """End a mesh from the machine that started it, or from its head. Without Ray's head, which would end the components
    gracefully, they are ended with Ray.

    Args:
        forget: hosts that can't be asked are gone for good; what runs on the others is ended all the same.

    Returns:
        Names of the components that were ended.

    Raises:
        SupervisorError: something is left, or a host can't be asked; the text names all of it.
    """
    cluster = mesh.cluster
    if cluster is None:
        raise SupervisorError(f"this mesh was started elsewhere: `openclaw-rl stop-all` there (on "
                              f"{mesh.hosts.get('policy_server') or 'its head'}, say); `openclaw-rl mesh leave` makes "
                              "this machine forget it")
    settings = mesh.config.distributed
    reached = hosts.reach(cluster.hosts, settings)
    problems: dict[str, str] = {}  # something is left there
    errors: dict[str, str] = {}  # nobody knows
    ended: list[str] = []
    say("ending the components")
    try:
        if cluster.ours and not _listens(cluster.address):
            raise HostError("Ray's head does not run")
        answers: dict[str, list[str] | None] = on_ray(home, mesh, reached[cluster.head]).call(
            "on-ray", timeout=150, **ray_payload(home, mesh), what="down", hosts=cluster.hosts)
        ended = [name for names in answers.values() for name in names or ()]
        if not cluster.ours:
            errors = {host: "its agent does not answer" for host, names in answers.items() if names is None}
    except HostError as error:
        if not cluster.ours:
            if not forget:
                raise SupervisorError(f"the cluster's node {cluster.head} can't be asked: {error}\nRepeat when it can; "
                                      "`openclaw-rl stop-all --forget-unreachable` forgets a mesh that is gone for good"
                                      ) from None
            errors[cluster.head] = str(error)
    if cluster.ours:
        say("ending Ray and what is left")
        others = {name: host for name, host in reached.items() if name != cluster.head}
        parts = [others, {cluster.head: reached[cluster.head]}]
    else:
        parts = [by_ray(cluster.hosts, reached[cluster.head].call, ray_payload(home, mesh))]
    for some in parts:
        left, silent = hosts.on_all(some, lambda host: host.call("stop", timeout=120, home=home_on(home, host, mesh)))
        errors |= silent
        problems |= {name: "still runs: " + "; ".join(lines) for name, lines in left.items() if lines}
    if forget:
        for name, why in errors.items():
            say(f"{name} is forgotten: {why}")
    else:
        problems = errors | problems
    if problems:
        text = "\n".join(f"{name}: {why}" for name, why in problems.items())
        text += "\nRepeat `openclaw-rl stop-all` when the host can be reached"
        raise SupervisorError(text + ("; `openclaw-rl stop-all --forget-unreachable` goes on without one that is gone "
                                      "for good" if not forget else ""))
    clear_launcher(cluster.mesh)
    mesh_file.remove(home)
    order = {name: i for i, name in enumerate(COMPONENTS)}
    return sorted(set(ended), key=lambda name: order.get(name, 99))


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 3).close()
        return True
    except OSError:
        return False


def home_on(home: Home, host: Host, mesh: mesh_file.MeshFile) -> str | None:
    """Folder of a host of the mesh, as it is asked for there; None is ~/.openclaw-rl."""
    if mesh.config.distributed.home is None and isinstance(host, hosts.Here):
        return str(home.root)
    return mesh.config.distributed.home


def on_ray(home: Home, mesh: mesh_file.MeshFile, head: Host) -> Host:
    """The host that connects to Ray: the head when we brought it up, else this machine."""
    assert mesh.cluster is not None
    return head if mesh.cluster.ours else hosts.Here(mesh.cluster.head, hosts.python_of(mesh.config.distributed))


def ray_payload(home: Home, mesh: mesh_file.MeshFile) -> dict[str, Any]:
    """Arguments for a step that connects to the mesh's Ray."""
    cluster = mesh.cluster
    assert cluster is not None
    return {"address": cluster.address, "mesh": cluster.mesh, "variables": cluster_variables(cluster)}


def cluster_variables(cluster: mesh_file.Cluster) -> dict[str, str]:
    """RAY_* for connecting: those of our own cluster, or those of who joins one."""
    if cluster.ours:
        return ray_node.variables(cluster.certs) | {"RAY_NODE_IP_ADDRESS": cluster.head}
    return {key: value for key, value in os.environ.items() if key.startswith("RAY_") and key != "RAY_ADDRESS"}
