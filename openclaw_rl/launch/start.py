"""The steps of local-start, and stop-all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from openclaw_rl.config import Config, ConfigError, load_config
from openclaw_rl.launch import checks, jaeger, leftovers
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.mesh_report import CRASHES, ComponentReport, MeshReport
from openclaw_rl.launch.status import last_lines, report
from openclaw_rl.launch.supervisor import Supervisor, SupervisorError
from openclaw_rl.models.api_endpoints import check_credentials, uses_api
from openclaw_rl.runtime import mesh_file
from openclaw_rl.runtime.home import Home, remove_record

#: Seconds that a component may be DEGRADED at its start, before nobody waits any longer that it gets better.
_DEGRADED_SECONDS = 5.0
#: Seconds until all components must run: loading and compiling nothing takes a few, a slow disk makes it more.
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
    """Start what is not running yet, and return when all is RUNNING. `with_jaeger`: one beside the mesh, too.

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
    supervisor = Supervisor(home)
    fresh = not supervisor.running()
    if fresh:
        checks.check_home(home, config)
        leftovers.clear_leftovers(home)
        jaeger.remove(home)
    tracer = _jaeger(home, config, fresh) if with_jaeger else jaeger.read(home)
    config = jaeger.traced_to(config, tracer)
    # One in a pause between two crashes has no process; it is tried at once.
    running = {c.name for c in report(home, config).components
               if c.state in ("RUNNING", "STARTING") or (c.state == "DEGRADED" and (c.pid or c.status))}
    wanted = [name for name in checks.started_here(config) if name not in running]
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
    if not fresh and not wanted:
        _say_already(supervisor, config, console)
        return report(home, config)
    if not uses_api(config.components.policy_server):
        _prepare_model(home, config, console, wanted)
    policy = config.components.policy_server
    if policy.engine == "sglang" and "policy_server" in wanted:  # it takes a minute on a CPU, large models take more
        timeout = max(timeout, policy.sglang.start_timeout)
    return start_components(home, with_absolute_model(config), wanted, console, timeout, tracer)


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
    seconds.

    Raises:
        StartError: one failed or took too long.
    """
    supervisor = Supervisor(home)
    try:
        supervisor.ensure(config, jaeger=tracer)
        if tracer is not None:
            jaeger.write(home, tracer)
            supervisor.start(jaeger.NAME)
            tracer.wait(home.logs / f"{jaeger.NAME}.log")
            console.print(f"[green]✓[/] {jaeger.NAME:<14} {tracer.address}", highlight=False)
        for name in names:
            supervisor.start(name)
    except (SupervisorError, OSError) as error:
        raise StartError(f"{error}; see {home.logs / 'supervisord.log'}") from None
    return _wait(home, config, set(names), console, timeout)


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
    if not Supervisor(home).running():
        checks.check_home(home, config)
        leftovers.clear_leftovers(home)
    component = report(home, config)[name]
    if component.state in ("RUNNING", "DEGRADED") and component.status is not None:
        return
    if getattr(config.components, name).address:
        raise StartError(f"{name} {component.detail}")
    if component.state not in ("STARTING", "DEGRADED"):
        check_credentials(config)
        checks.check_entrypoint(home, config, [name])
        if name == "trainer" and (layout := checks.check_trainer(config, home)):
            console.print(f"[green]✓[/] {layout}", highlight=False)
        checks.check_ports(config, [name])
    if name in ("policy_server", "trainer") and not uses_api(config.components.policy_server):
        _prepare_model(home, config, console, [name])
    start_components(home, with_absolute_model(config), [name], console, timeout)


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


def _wait(home: Home, config: Config, names: set[str], console: Console, timeout: float) -> MeshReport:
    started = time.monotonic()
    shown: set[str] = set()
    degraded: dict[str, float] = {}  # since when
    with console.status("starting") as line:
        while True:
            mesh = report(home, config)
            waited = [c for c in mesh.components if c.name in names]
            for component in waited:
                if component.state == "RUNNING" and component.name not in shown:
                    shown.add(component.name)
                    console.print(f"[green]✓[/] {component.name:<14} {component.address}  "
                                  f"[dim]{time.monotonic() - started:.1f} s[/]")
                elif component.state == "DEGRADED" and component.status and component.name not in shown:
                    # It serves, and says what is wrong: a set-aside file, a judge that can't be reached.
                    if time.monotonic() - degraded.setdefault(component.name, time.monotonic()) > _DEGRADED_SECONDS:
                        shown.add(component.name)
                else:
                    degraded.pop(component.name, None)
                if component.state == "FAILED":
                    raise StartError(f"{component.name} failed:\n{last_lines(home, component.name)}")
            missing = [c for c in waited if c.name not in shown]
            if not missing:
                return mesh
            if time.monotonic() - started > timeout:
                raise StartError("\n".join(_late(home, c, timeout) for c in missing))
            _fail_early(home, missing)
            line.update("starting " + ", ".join(c.name for c in missing))
            time.sleep(0.2)


def _fail_early(home: Home, missing: list[ComponentReport]) -> None:
    """Don't wait for what won't come: a component that ended by itself three times, or whose supervisor is gone."""
    supervisor = Supervisor(home)
    processes = supervisor.processes()
    if not processes:
        raise StartError(f"the supervisor has ended; `openclaw-rl local-start` starts anew (see "
                         f"{home.logs / 'supervisord.log'})")
    for component in missing:
        process = processes.get(component.name)
        if process and process.state == "BACKOFF" and supervisor.failed_starts(component.name) >= CRASHES:
            raise StartError(f"{component.name} ends as soon as it is started (the supervisor goes on trying; "
                             f"`openclaw-rl stop-all` ends that):\n{last_lines(home, component.name)}")


def _late(home: Home, component: ComponentReport, timeout: float) -> str:
    return (f"{component.name} is not RUNNING after {timeout:.0f} s ({component.state} {component.detail}):\n"
            f"{last_lines(home, component.name)}")


def stop_all(home: Home) -> list[str]:
    """End what was started here: the supervisor with its components, and components that a killed supervisor left.

    Returns:
        Names of the components that were running.

    Raises:
        SupervisorError: something did not end.
    """
    supervisor = Supervisor(home)
    stopped = [p.name for p in supervisor.processes().values() if p.state in ("RUNNING", "STARTING", "BACKOFF")]
    supervisor.shutdown()
    stopped += leftovers.end_orphans(home)
    for name in stopped:
        remove_record(home, name)
    jaeger.remove(home)
    for file in ("supervisord.conf", "config.yaml", "supervisord.pid"):
        with contextlib.suppress(OSError):  # none there, or a home that is read-only or no folder
            (home.run / file).unlink()
    return stopped


@contextlib.contextmanager
def _step(console: Console, text: str) -> Iterator[None]:
    with console.status(text):
        yield
    console.print(f"[green]✓[/] {text}")
