"""The steps of local-start, and stop-all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from openclaw_rl.config import Config, ConfigError, load_config
from openclaw_rl.launch import checks, jaeger, leftovers
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.mesh_report import MeshReport
from openclaw_rl.launch.narration import Narration
from openclaw_rl.launch.status import report
from openclaw_rl.launch.supervisor import Supervisor, SupervisorError, remove_files
from openclaw_rl.launch.waiting import wait
from openclaw_rl.models.api_endpoints import check_credentials, uses_api
from openclaw_rl.runtime import mesh_file, private
from openclaw_rl.runtime.home import Home, remove_record
from openclaw_rl.runtime.lock import machine_lock

#: Seconds without any progress after which a start is given up. Whole, it may take as long as it needs.
START_SECONDS = 180.0


def with_absolute_model(config: Config) -> Config:
    """The configuration with a model folder's path made absolute: the components have another working folder."""
    policy = config.components.policy_server
    folder = Path(policy.model).expanduser()
    if folder.is_dir():
        policy = policy.model_copy(update={"model": str(folder.absolute())})
    return config.model_copy(update={"components": config.components.model_copy(update={"policy_server": policy})})


def local_start(home: Home, config: Config, console: Console, timeout: float = START_SECONDS,
                with_jaeger: bool = False) -> MeshReport:
    """Start what is not running yet, and return when all is RUNNING. What was started is ended when that fails.

    Args:
        timeout: seconds without any progress after which it is given up.
        with_jaeger: one beside the mesh, too.

    Raises:
        StartError: something stands in the way or failed; nothing was started when it is a check.
        NoJaeger: it is not installed, did not come up, or the mesh runs without it.
        ConfigError: an API model has no key, or the mesh no certificates that it needs.
    """
    if config.mode == "distributed":
        raise StartError("mode: distributed is for several hosts: `openclaw-rl distributed-start`; "
                         "local-start runs mode: local")
    if mesh_file.read(home) is not None:
        raise StartError(f"{home.root} belongs to a mesh on several hosts: `openclaw-rl stop-all`, or where it was "
                         "joined `openclaw-rl mesh leave`, first, or set OPENCLAW_RL_HOME to another folder")
    with _only_start(home, console):
        return _local_start(home, config, console, timeout, with_jaeger)


def _local_start(home: Home, config: Config, console: Console, timeout: float, with_jaeger: bool) -> MeshReport:
    supervisor = Supervisor(home)
    fresh = not supervisor.running()
    if fresh:
        _prepare_home(home, config, console)
        jaeger.remove(home)
    tracer = _jaeger(home, config, fresh) if with_jaeger else jaeger.read(home)
    config = jaeger.traced_to(config, tracer)
    states = {c.name: c for c in report(home, config).components}
    here = checks.started_here(config)
    coming = [name for name in here if states[name].state == "STARTING" and states[name].pid]
    # One in a pause between two crashes has no process; it is tried at once.
    wanted = [name for name in here if name not in coming and states[name].state != "RUNNING"
              and not (states[name].state == "DEGRADED" and (states[name].pid or states[name].status))]
    with checks.held_ports(config, wanted):
        with _step(console, "checking configuration, keys, ports and disk"):
            checks.check_home(home, config)
            checks.check_packages(config)
            checks.check_certificates(home, config, wanted)
            checks.check_entrypoint(home, config, wanted)
            check_credentials(config)
            layout = checks.check_trainer(config, home) if "trainer" in wanted else ""
            checks.check_ports(config, wanted)
        if layout:
            console.print(f"[green]✓[/] {layout}", highlight=False)
        if not fresh and not wanted and not coming:
            _say_already(supervisor, config, console)
            return report(home, config)
        if not uses_api(config.components.policy_server):
            _prepare_model(home, config, console, wanted)
        policy = config.components.policy_server
        if policy.engine == "sglang" and "policy_server" in (*wanted, *coming):
            timeout = max(timeout, policy.sglang.start_timeout)  # a minute on a CPU, large models take more
        return start_components(home, with_absolute_model(config), [*wanted, *coming], console, timeout,
                                tracer if fresh else None)


@contextlib.contextmanager
def _only_start(home: Home, console: Console) -> Iterator[None]:
    """Let one start of a mesh follow the other."""
    name = f"start of {hashlib.sha256(os.fsencode(home.root)).hexdigest()[:32]}"
    with Narration(console, "waiting for another start of this mesh"):
        while (lock := machine_lock(name)) is None:
            time.sleep(0.1)
    with lock:
        yield


def _jaeger(home: Home, config: Config, fresh: bool) -> jaeger.Jaeger:
    """The Jaeger to start, or the one that was started with the mesh."""
    if fresh:
        return jaeger.prepare(config)
    if (there := jaeger.read(home)) is None:
        raise jaeger.NoJaeger("this mesh was started without Jaeger; `openclaw-rl stop-all` first, then "
                              "`openclaw-rl local-start --jaeger`")
    return there


def _say_already(supervisor: Supervisor, config: Config, console: Console) -> None:
    console.print("this mesh is running already")
    with contextlib.suppress(ConfigError):
        if load_config(supervisor.config_file) != with_absolute_model(config):
            console.print("[yellow]its configuration is another one; `openclaw-rl stop-all` first to start it anew[/]")


def start_components(home: Home, config: Config, names: list[str], console: Console,
                     timeout: float = START_SECONDS, tracer: jaeger.Jaeger | None = None) -> MeshReport:
    """Let the supervisor start these, and a Jaeger before them, and wait until they are RUNNING, or DEGRADED for some
    seconds. When that fails, or is interrupted, what was started is ended.

    Raises:
        StartError: one can't run or took too long.
    """
    supervisor = Supervisor(home)
    before = supervisor.processes()
    # One in a pause between two tries goes on with them.
    new = [name for name in names if name not in before or before[name].state in ("STOPPED", "EXITED")]
    try:
        try:
            if tracer is not None:
                jaeger.write(home, tracer)
            supervisor.ensure(config)
            if tracer is not None:
                supervisor.start(jaeger.NAME)
                tracer.wait(home.logs / f"{jaeger.NAME}.log")
                console.print(f"[green]✓[/] {jaeger.NAME:<14} {tracer.address}", highlight=False)
            for name in names:
                supervisor.start(name)
        except (SupervisorError, OSError) as error:
            raise StartError(f"{error}; see {home.logs / 'supervisor.log'}") from None
        return wait(home, config, names, console, timeout)
    except BaseException as error:
        if isinstance(error, StartError) and not console.quiet:
            console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
            error.shown = True
        elif isinstance(error, KeyboardInterrupt):
            console.print("interrupted; ending what was started")
        with Narration(console, "ending what was started") as narration:
            if before:
                for name in new:
                    narration.say(f"ending {name}")
                    supervisor.stop(name)
            else:
                stop_all(home, narration.say)
        raise


def start_one(home: Home, config: Config, name: str, console: Console, timeout: float = START_SECONDS) -> None:
    """Start one component unless it runs, here or elsewhere.

    Raises:
        StartError: it can't be started.
    """
    if mesh_file.read(home) is not None:  # an agent keeps what runs here, no supervisor
        component = report(home)[name]
        if component.state in ("RUNNING", "DEGRADED") and component.status is not None:
            return
        raise StartError(f"{name} {component.detail or component.state}; `openclaw-rl distributed-start` keeps this "
                         "mesh")
    with _only_start(home, console):
        _start_one(home, config, name, console, timeout)


def _start_one(home: Home, config: Config, name: str, console: Console, timeout: float) -> None:
    if not Supervisor(home).running():
        _prepare_home(home, config, console)
    component = report(home, config)[name]
    if component.state in ("RUNNING", "DEGRADED") and component.status is not None:
        return
    if getattr(config.components, name).address:
        raise StartError(f"{name} {component.detail}")
    with checks.held_ports(config, [name]):
        if component.state not in ("STARTING", "DEGRADED"):
            check_credentials(config)
            checks.check_entrypoint(home, config, [name])
            if name == "trainer" and (layout := checks.check_trainer(config, home)):
                console.print(f"[green]✓[/] {layout}", highlight=False)
            checks.check_ports(config, [name])
        if name in ("policy_server", "trainer") and not uses_api(config.components.policy_server):
            _prepare_model(home, config, console, [name])
        start_components(home, with_absolute_model(config), [name], console, timeout)


def _prepare_home(home: Home, config: Config, console: Console) -> None:
    """When no supervisor runs: a folder that can be used, that nobody else reads, and without leftovers."""
    checks.check_home(home, config)
    if opened := private.tighten(home.root):
        console.print(f"[green]✓[/] {opened} files of {home.root} were open to other users and are no more",
                      highlight=False, soft_wrap=True)
    leftovers.clear_leftovers(home)


def _prepare_model(home: Home, config: Config, console: Console, names: list[str]) -> None:
    from openclaw_rl.launch.memory import check_memory
    from openclaw_rl.models.prepare import ensure_model

    columns = (TextColumn("  {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("preparing the model", total=1.0)
        try:
            folder = ensure_model(config.components.policy_server.model, home,
                                  lambda text, share: bar.update(task, description=text, completed=share))
        except Exception as error:
            raise StartError(f"the model can't be prepared: {error}") from error
    check_memory(config, folder, names)
    console.print(f"[green]✓[/] model in {folder}", soft_wrap=True)


def stop_all(home: Home, say: Callable[[str], None] = lambda text: None) -> list[str]:
    """End what was started here: the supervisor with its components, and components that a killed supervisor left.

    Args:
        say: takes lines about what is waited for.

    Returns:
        Names of the components that were running.

    Raises:
        SupervisorError: something did not end.
    """
    supervisor = Supervisor(home)
    stopped = [p.name for p in supervisor.processes().values() if p.state not in ("STOPPED", "EXITED")]
    if stopped:
        say(f"stopping {', '.join(stopped)}")
    for left in supervisor.shutdown():
        say(f"stopping {', '.join(left)}" if left else "stopping the supervisor")
    say("looking for what a killed supervisor left")
    leftovers.end_supervisors(home)
    stopped += leftovers.end_orphans(home)
    for name in stopped:
        remove_record(home, name)
    jaeger.remove(home)
    remove_files(home)
    return stopped


@contextlib.contextmanager
def _step(console: Console, text: str) -> Iterator[None]:
    with console.status(text):
        yield
    console.print(f"[green]✓[/] {text}")
