"""Processes and records that a supervisor which was killed has left behind."""

from __future__ import annotations

import contextlib
import logging

import psutil

from openclaw_rl.launch import jaeger, supervisor
from openclaw_rl.launch.mesh_report import ask
from openclaw_rl.rollouts.sandboxes.factory import remove_leftovers
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import COMPONENTS, Home, read_record, remove_record
from openclaw_rl.runtime.process import all_processes, end_all, marked
from openclaw_rl.runtime.supervision import RestartPolicy
from openclaw_rl.serving.engines.sglang.process import end_leftovers

logger = logging.getLogger(__name__)


def is_component(process: psutil.Process, name: str, home: Home) -> bool:
    """The process is component `name` of this mesh (or its Jaeger), started by its supervisor (and not by somebody's
    hand)."""
    try:
        command, variables = process.cmdline(), process.environ()
    except (psutil.Error, OSError):
        return False
    arguments = ({f"--config=file:{jaeger.CONFIG_FILE}"} if name == jaeger.NAME
                 else {supervisor.COMPONENT_MODULE, name})
    return (arguments <= set(command)
            and variables.get("OPENCLAW_RL_HOME") == str(home.root)
            and variables.get("SUPERVISOR_PROCESS_NAME") == name)


def clear_leftovers(home: Home) -> None:
    """Make the run folder true again when no supervisor runs: end components whose supervisor was killed, forget the
    records of processes that are no more. One that somebody runs on his own, and that answers, is left alone; so is all
    that runs on a host of a mesh on several, where no supervisor does."""
    if mesh_file.read(home) is not None:
        return
    end_supervisors(home)
    for name in end_orphans(home):
        logger.warning("ended %s, whose supervisor was gone", name)
    for name in COMPONENTS:
        record = read_record(home, name)
        status = ask(record.address, component=name, home=home).status if record else None
        if record is None or status is None or status.name != name or status.pid != record.pid:
            remove_record(home, name)


def end_supervisors(home: Home, timeout: float = 2 * RestartPolicy.stop_seconds) -> None:
    """End a supervisor of this mesh that does not answer, and the standby that would take its place."""
    found = [process for process in marked("OPENCLAW_RL_HOME", str(home.root)) if _is_supervisor(process)]
    end_all(found, timeout)
    if found:
        supervisor.remove_files(home)


def _is_supervisor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return supervisor.SUPERVISOR_MODULE in process.cmdline()
    return False


def end_orphans(home: Home, timeout: float = 20) -> list[str]:
    """End components of this mesh that no supervisor keeps any more: SIGTERM, and SIGKILL after `timeout` seconds.
    They are looked for among all processes: one that was on its way up has no record yet.

    Returns:
        Their names.
    """
    orphans = [(name, process) for process in all_processes() for name in (*COMPONENTS, jaeger.NAME)
               if is_component(process, name, home)]
    end_all([process for _, process in orphans], timeout)
    end_leftovers(home.component("policy_server") / "sglang")
    names = [name for name in (*COMPONENTS, jaeger.NAME) if name in {name for name, _ in orphans}]
    for name in names:
        remove_record(home, name)
    record = read_record(home, "env_server")
    if record is None or not psutil.pid_exists(record.pid):  # else they are those of one that somebody runs on his own
        remove_leftovers(home.root)
    return names
