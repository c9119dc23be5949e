"""Report on a mesh: the supervisor's knowledge, the run records, and each component's own status."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.launch import jaeger
from openclaw_rl.launch.mesh_report import (
    CRASHES,
    Answer,
    ComponentReport,
    MeshReport,
    State,
    answering,
    ask,
    elsewhere,
)
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
    gone = "" if processes else supervisor.gone()
    with ThreadPoolExecutor(len(COMPONENTS)) as pool:
        components = list(pool.map(lambda name: _component(home, config, name, processes.get(name), gone), COMPONENTS))
    return MeshReport(components, _jaeger(home, processes.get(jaeger.NAME)),
                      own_problems=[*filter(None, [gone]), *_own_problems(config, home)])


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


def _component(home: Home, config: Config, name: str, process: Process | None, gone: str) -> ComponentReport:
    section = getattr(config.components, name)
    record = read_record(home, name)
    address = section.address or (record.address if record else None)
    answer = ask(address, component=name, home=home) if address else Answer()
    status = answer.status
    if status is not None and (status.name == name or section.address):
        found = answering(name, status, address, ours=not section.address)
        if process is not None and process.progress and found.state == "STARTING":
            found.detail = found.detail or process.progress
        return found
    if section.address:
        return elsewhere(name, section.address, answer.foreign)
    if process is None or process.state == "STOPPED":
        detail = "" if section.enabled else f"not enabled (components.{name}.enabled)"
        return ComponentReport(name, "STOPPED", detail=detail or answer.foreign or gone)
    state, detail = _silent(name, process, record is not None and record.pid == process.pid, answer.foreign)
    return ComponentReport(name, state, process.pid, address if state in ("STOPPED", "DEGRADED") else None, detail,
                           crashes=process.failures)


def _silent(name: str, process: Process, recorded: bool, foreign: str = "") -> tuple[State, str]:
    """State and detail of a component that does not answer.

    Args:
        recorded: the process has told its address.
        foreign: that another mesh answers there.
    """
    if process.state == "EXITED":
        return "STOPPED", "was asked to end; `openclaw-rl local-start` starts it again"
    if process.state == "STOPPING":
        return "STOPPED", "is stopping"
    if process.failures >= CRASHES:
        return "DEGRADED", (f"has ended {process.failures} times as soon as it was started; it is tried again after "
                            f"growing pauses (`openclaw-rl local-start` tries at once): {process.reason}")
    if process.state == "BACKOFF":
        return "STARTING", f"ended and is started again: {process.reason}"
    if process.state == "STARTING" and process.failures:
        return "STARTING", f"since {process.uptime:.0f} s; it ended before: {process.reason}"
    if process.state == "STARTING" or not recorded:
        return "STARTING", "; ".join(filter(None, [process.progress, f"since {process.uptime:.0f} s"]))
    return "DEGRADED", f"{foreign or 'does not answer'}; see `openclaw-rl logs {name}`"


def last_lines(home: Home, name: str, count: int = 8) -> str:
    """The end of a component's log, indented."""
    file = home.logs / f"{name}.log"
    try:
        lines = file.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return f"  (no log in {file})"
    return "\n".join(f"  {line}" for line in [*lines, f"(more in {file})"])
