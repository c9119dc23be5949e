"""Report on a mesh on several hosts: each component's own status, and the controller's facts on the silent ones."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from openclaw_rl.launch.distributed.host_agent import hosts_file
from openclaw_rl.launch.mesh_report import CRASHES, ComponentReport, MeshReport, answering, ask, elsewhere
from openclaw_rl.runtime.alarms import duration
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.runtime.mesh_file import MeshFile

#: Seconds for which the controller's facts are believed.
_FRESH = 30.0
#: Seconds for a host to say whether it is there.
_PROBE = 2.0


def report(home: Home, mesh: MeshFile) -> MeshReport:
    """Ask all components at once; takes a few seconds at most."""
    told = hosts_file(home)
    fresh = told is not None and abs(time.time() - told["at"]) < _FRESH
    with ThreadPoolExecutor(len(COMPONENTS)) as pool:
        components = list(pool.map(lambda name: _component(home, mesh, name, told if fresh else None),
                                   COMPONENTS))
    hosts = {host: {"state": entry["state"], "since": _iso(entry["since"]), "detail": entry["detail"]}
             for host, entry in (told["hosts"] if told is not None and fresh else {}).items()}
    return MeshReport(components, hosts=hosts)


def _component(home: Home, mesh: MeshFile, name: str, told: dict[str, Any] | None) -> ComponentReport:
    address, host = mesh.address(name), mesh.hosts.get(name, "")
    if address is None:
        enabled = getattr(mesh.config.components, name).enabled
        return ComponentReport(name, "STOPPED", detail="" if enabled else f"not enabled (components.{name}.enabled)")
    answer = ask(address, component=name, home=home)
    status = answer.status
    if status is not None and (status.name == name or not host):
        found = answering(name, status, address, ours=bool(host))
        found.host = host or found.host
        return found
    if not host:
        return elsewhere(name, address, answer.foreign)
    silent = ComponentReport(name, "DEGRADED", address=address, host=host)
    entry: dict[str, Any] = (told or {}).get("components", {}).get(name, {})
    silent.pid, silent.crashes = entry.get("pid"), entry.get("failures", 0)
    silent.state, silent.detail = _why(mesh, name, host, address, told, entry)
    if answer.foreign:
        silent.detail = f"{answer.foreign}; {silent.detail}"
    return silent


def _why(mesh: MeshFile, name: str, host: str, address: str, told: dict[str, Any] | None, entry: dict[str, Any]
         ) -> tuple[Any, str]:
    """State and detail of a silent component."""
    state = (told or {}).get("hosts", {}).get(host)
    if state is not None and state["state"] == "gone":
        what = _promise(mesh, name)
        return "STOPPED", f"host {host} is gone since {_clock(state['since'])} ({state['detail']}); {what}"
    if state is not None and state["state"] == "reachable":
        return "STARTING", f"host {host} is there, and is brought back: {state['detail'] or 'its agent is silent'}"
    child = entry.get("state")
    if child in ("BACKOFF", "STOPPED", "STARTING", "RUNNING") and entry.get("failures", 0) >= CRASHES:
        return "DEGRADED", (f"has ended {entry['failures']} times as soon as it was started; it is tried again after "
                            f"growing pauses: {entry.get('reason', '')}")
    if child == "BACKOFF":
        return "STARTING", f"ended and is started again: {entry.get('reason', '')}"
    if child == "EXITED":
        return "STOPPED", "was asked to end; `openclaw-rl distributed-start` starts it again"
    if child in ("STARTING", "RUNNING"):
        return ("STARTING" if time.time() - entry["since"] < 120 else "DEGRADED",
                f"process {entry['pid']} does not answer yet; see `openclaw-rl logs {name}`")
    return "STOPPED", _probe(host, address)


def _promise(mesh: MeshFile, name: str) -> str:
    settings = mesh.config.distributed
    if settings.elsewhere:
        return (f"{name} comes back there, or after {settings.elsewhere_after:.0f} s on another host "
                "(distributed.elsewhere)")
    return f"{name} comes back when the host does"


def _probe(host: str, address: str) -> str:
    """Look at a host from this machine."""
    try:
        with socket.create_connection((host, int(address.rpartition(":")[2])), _PROBE):
            return f"something at {address} answers, but not as this component does"
    except ConnectionRefusedError:
        return f"host {host} is there, and nothing listens at {address}"
    except OSError as error:
        return f"host {host} can't be reached from here ({error.strerror or error})"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%F %T}, for {duration(max(0.0, time.time() - seconds))}"
