"""Wait for components that were started: until they run, fail, or get nowhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
from rich.console import Console

from openclaw_rl.config import Config
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.mesh_report import CRASHES, ComponentReport, MeshReport
from openclaw_rl.launch.narration import Narration
from openclaw_rl.launch.status import last_lines, report
from openclaw_rl.launch.supervisor import Process, Supervisor
from openclaw_rl.runtime.home import Home

#: Seconds that a component may be DEGRADED at its start, before nobody waits any longer that it gets better.
_DEGRADED_SECONDS = 5.0
#: Seconds between two looks at the processes: what one says about its end is told within a second.
_LOOK_EVERY = 0.1
#: What counts as progress, besides words and log lines: seconds of CPU, and bytes read. To wait takes less of both.
_CPU_SECONDS, _READ_BYTES = 1.0, 2**20
#: Seconds between two looks at that.
_WORK_EVERY = 2.0
#: How many times as long as without progress a start may take at all.
_AT_MOST = 20


def wait(home: Home, config: Config, names: Iterable[str], console: Console, patience: float) -> MeshReport:
    """Wait until these are RUNNING, or DEGRADED for some seconds.

    Args:
        patience: seconds without any progress after which the start is given up.

    Raises:
        StartError: one can't run, or makes no progress; the text says why.
    """
    pool = ThreadPoolExecutor(1)  # a component that is busy takes seconds to answer, and a failure is not to wait
    try:
        with Narration(console, "starting") as narration:
            return _Waiting(home, config, set(names), console, narration, patience).wait(pool)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Waiting:
    def __init__(self, home: Home, config: Config, names: set[str], console: Console, narration: Narration,
                 patience: float) -> None:
        self._home, self._config, self._console, self._narration = home, config, console, narration
        self._supervisor = Supervisor(home)
        self._missing, self._patience = names, patience
        self._began = time.monotonic()
        self._degraded: dict[str, float] = {}  # since when
        self._work = _Work(home)

    def wait(self, pool: ThreadPoolExecutor) -> MeshReport:
        asked: Future[MeshReport] = pool.submit(report, self._home, self._config)
        while True:
            processes = self._supervisor.processes()
            self._fail_early(processes)
            if asked.done():
                mesh = asked.result()
                if self._take(mesh):
                    return mesh
                self._give_up(mesh, processes)
                asked = pool.submit(report, self._home, self._config)
            self._narration.say("starting " + ", ".join(
                name + (f" ({process.progress})" if (process := processes.get(name)) and process.progress else "")
                for name in sorted(self._missing)))
            time.sleep(_LOOK_EVERY)

    def _take(self, mesh: MeshReport) -> bool:
        """Show what runs; whether that is all."""
        for component in mesh.components:
            name = component.name
            if name not in self._missing:
                continue
            if component.state == "RUNNING":
                self._missing.discard(name)
                self._console.print(f"[green]✓[/] {name:<14} {component.address}  "
                                    f"[dim]{time.monotonic() - self._began:.1f} s[/]")
            elif component.state == "DEGRADED" and component.status:
                # It serves, and says what is wrong: a set-aside file, a judge that can't be reached.
                if time.monotonic() - self._degraded.setdefault(name, time.monotonic()) > _DEGRADED_SECONDS:
                    self._missing.discard(name)
            elif component.state == "FAILED":
                raise StartError(f"{name} failed: {component.detail}")
            else:
                self._degraded.pop(name, None)
        return not self._missing

    def _fail_early(self, processes: dict[str, Process]) -> None:
        """Don't wait for what won't come: a component that says why it can't run, or that ended by itself several
        times, or whose supervisor is gone for good."""
        if not processes and not self._supervisor.comes_back() and not self._supervisor.running():
            raise StartError(f"the supervisor has ended; `openclaw-rl local-start` starts anew (see "
                             f"{self._home.logs / 'supervisor.log'})")
        for name in sorted(self._missing):
            process = processes.get(name)
            if process is None:
                continue
            if process.told and process.state in ("STARTING", "BACKOFF"):
                raise StartError(f"{name} can't run: {process.reason}")
            if process.failures >= CRASHES:
                raise StartError(f"{name} has ended {process.failures} times as soon as it was started: "
                                 f"{process.reason}\n{last_lines(self._home, name)}")
            if process.state in ("EXITED", "STOPPED"):
                raise StartError(f"{name} was asked to end while it started")

    def _give_up(self, mesh: MeshReport, processes: dict[str, Process]) -> None:
        idle = self._work.idle([processes[name] for name in self._missing if name in processes])
        if idle > self._patience or time.monotonic() - self._began > _AT_MOST * self._patience:
            missing = [component for component in mesh.components if component.name in self._missing]
            raise StartError("\n".join(_late(self._home, component, idle) for component in missing))


class _Work:
    """Whether starting processes get anywhere: on a loaded machine a start takes minutes, and each of them some CPU."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._moved = self._looked = time.monotonic()
        self._seen: object = None
        self._cpu = self._read = 0.0

    def idle(self, processes: list[Process]) -> float:
        """Seconds since they last made progress."""
        now = time.monotonic()
        if self._seen is None or now - self._looked >= _WORK_EVERY:
            self._looked = now
            seen = [(p.name, p.state, p.pid, p.progress, _size(self._home, p.name)) for p in processes]
            cpu, read = (sum(figures) for figures in zip((0.0, 0.0), *(_spent(p.pid) for p in processes), strict=True))
            if seen != self._seen or cpu - self._cpu >= _CPU_SECONDS or read - self._read >= _READ_BYTES:
                self._moved, self._seen, self._cpu, self._read = now, seen, cpu, read
        return now - self._moved


def _size(home: Home, name: str) -> int:
    with contextlib.suppress(OSError):
        return (home.logs / f"{name}.log").stat().st_size
    return 0


def _spent(pid: int | None) -> tuple[float, float]:
    """Seconds of CPU and bytes read by a process and its children."""
    cpu = read = 0.0
    if pid is None:
        return cpu, read
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error, AttributeError):  # no io_counters on macOS
                cpu += sum(each.cpu_times()[:2])
                read += each.io_counters().read_chars
    return cpu, read


def _late(home: Home, component: ComponentReport, idle: float) -> str:
    return (f"{component.name} is not RUNNING and has made no progress for {idle:.0f} s ({component.state} "
            f"{component.detail}):\n{last_lines(home, component.name)}")
