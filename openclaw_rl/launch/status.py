"""Report on a mesh: the supervisor's knowledge, the run records, and each component's own status."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.launch import jaeger
from openclaw_rl.launch.mesh_report import CRASHES, ComponentReport, MeshReport, answering, ask
from openclaw_rl.launch.supervisor import Process, Supervisor
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import COMPONENTS, Home, read_record
from openclaw_rl.runtime.running_config import running_config


def report(home: Home, config: Config | None = None) -> MeshReport:
    """Ask all components at once; takes at most about two seconds.

    Raises:
        ConfigError: the configuration can't be used.
    """
    if (mesh := mesh_file.read(home)) is not None:
        from openclaw_rl.launch.distributed.status import report as report_hosts

        found = report_hosts(home, mesh)
        found.own_problems = _own_problems(mesh.config, home)
        return found
    config = config or running_config(home)
    supervisor = Supervisor(home)
    processes = supervisor.processes()
    crashes = {name: supervisor.failed_starts(name) for name, process in processes.items()
               if process.state in ("BACKOFF", "STARTING")}
    with ThreadPoolExecutor(len(COMPONENTS)) as pool:
        components = list(pool.map(lambda name: _component(home, config, name, processes.get(name),
                                                           crashes.get(name, 0)), COMPONENTS))
    return MeshReport(components, _jaeger(home, processes.get(jaeger.NAME)), own_problems=_own_problems(config, home))


def _own_problems(config: Config, home: Home) -> list[str]:
    """Problems of the operator's certificate, with which the command line and clients connect."""
    from openclaw_rl.runtime import identity

    try:
        if not identity.wanted(config):
            return []
        from openclaw_rl.rpc.auth import tls  # loads `cryptography`

        made = tls.credentials(config, home, "operator")
    except ConfigError as error:
        return [str(error)]
    return [] if made is None else [message for _, message in made.problems()]


def _jaeger(home: Home, process: Process | None) -> dict[str, str] | None:
    started = jaeger.read(home)
    if started is None or process is None:
        return None
    return {"state": process.state, "address": started.address}


def _component(home: Home, config: Config, name: str, process: Process | None, crashes: int) -> ComponentReport:
    section = getattr(config.components, name)
    record = read_record(home, name)
    address = section.address or (record.address if record else None)
    status = ask(address, component=name, home=home) if address else None
    if status is not None and (status.name == name or section.address):
        return answering(name, status, address, ours=not section.address)
    if section.address:
        return ComponentReport(name, "STOPPED", address=address,
                               detail=f"does not answer at {address} (components.{name}.address)")
    if process is None or process.state == "STOPPED":
        detail = "" if section.enabled else f"not enabled (components.{name}.enabled)"
        return ComponentReport(name, "STOPPED", detail=detail)
    if process.state == "FATAL":
        return ComponentReport(name, "FAILED", detail=f"gave up: {process.description}; see `openclaw-rl logs {name}`, "
                               "then `openclaw-rl local-start` starts it again")
    if process.state == "EXITED":
        return ComponentReport(name, "STOPPED", detail="was asked to end; `openclaw-rl local-start` starts it again")
    if crashes >= CRASHES:
        return ComponentReport(name, "DEGRADED", process.pid, None, f"has ended {crashes} times as soon as it was "
                               "started; it is tried again after growing pauses (`openclaw-rl local-start` tries at "
                               f"once): {last_lines(home, name, 1).splitlines()[0].strip()}")
    if process.state in ("BACKOFF", "UNKNOWN"):
        return ComponentReport(name, "STARTING", detail=f"ended and is started again; see `openclaw-rl logs {name}`")
    if process.state == "STOPPING":
        return ComponentReport(name, "STOPPED", process.pid, address, "is stopping")
    if record is None or record.pid != process.pid:
        return ComponentReport(name, "STARTING", process.pid, None, f"since {process.uptime:.0f} s")
    return ComponentReport(name, "DEGRADED", process.pid, address,
                           f"does not answer; see `openclaw-rl logs {name}`")


def last_lines(home: Home, name: str, count: int = 8) -> str:
    """The end of a component's log, indented."""
    file = home.logs / f"{name}.log"
    try:
        lines = file.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return f"  (no log in {file})"
    return "\n".join(f"  {line}" for line in [*lines, f"(more in {file})"])
