"""The mesh under test: the real launcher, the real four processes, a proxy between each two of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from openclaw_rl.config import EMBEDDED_MODEL, load_config
from openclaw_rl.launch.supervisor import Supervisor, SupervisorError
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import COMPONENTS, Home, read_record
from openclaw_rl.runtime.process import all_processes
from tools.chaos.disks import Disks
from tools.chaos.proxy import Proxies

_CLOCK_CODE = Path(__file__).parent / "clock"
#: Seconds in BACKOFF after which the supervisor's growing pauses are cut short.
_PATIENCE = 6.0
#: Seconds between two looks at the policy server's health.
_LOOK = 0.1


def configuration(max_staleness: int, max_batch: int = 8) -> dict[str, Any]:
    """The mesh's: short answers, frequent small steps, few versions on disk. The rate is far below the default, so
    that the model still answers sensibly after hundreds of steps on one complaint and one thanks."""
    return {
        "session_awareness": {"session_timeout": 60},
        "components": {
            "policy_server": {"port": 0, "grpc_port": 0, "max_tokens": 24, "keep_versions": 2},
            "env_server": {"port": 0}, "prm_judge": {"port": 0},
            "trainer": {"port": 0, "min_samples": 2, "update_interval": 3, "max_batch": max_batch, "keep_versions": 2,
                        "max_staleness": max_staleness, "learning_rate": 1e-4,
                        "gate": {"enabled": False}, "watch": {"enabled": False}}}}


def models_folder() -> Path:
    """The converted model, kept between runs since making it takes a while."""
    root = os.environ.get("OPENCLAW_RL_HOME")
    if root is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        root = str(cache / "openclaw-rl-tools/models-home")
    return ensure_model(EMBEDDED_MODEL, Home(Path(root)).create())


@dataclass
class Window:
    """A time in which the policy server could not be expected to answer, in `time.monotonic()` seconds."""

    begin: float
    pid: int | None  #: of the killed process
    end: float | None = None


def lives(pid: int) -> bool:
    """Whether a process runs; the supervisor may not have seen its end yet."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class ChaosMesh:
    """A mesh in a folder of its own.

    Args:
        folder: made; holds `home`, and the files by which clocks are shifted.
        max_staleness: the trainer's.
        environment: further variables of the processes.
        model: folder of another model than the embedded one.
        max_batch: the trainer's.

    Attributes:
        windows: when the policy server was down because of us, from each kill until it was ready again.
        disks: of the home and of each component.
    """

    def __init__(self, folder: Path, max_staleness: int, environment: Mapping[str, str] | None = None,
                 model: Path | None = None, max_batch: int = 8) -> None:
        self.home = Home(folder / "home")
        self.clock = folder / "clock"
        self.windows: list[Window] = []
        self.disks = Disks(self.home)
        self.supervisor = Supervisor(self.home)
        self._config = configuration(max_staleness, max_batch)
        self._model = model
        if model is not None:
            self._config["components"]["policy_server"]["model"] = str(model)
        path = [str(_CLOCK_CODE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._env = {**os.environ, "OPENCLAW_RL_HOME": str(self.home.root), "PYTHONPATH": os.pathsep.join(path),
                     "OPENCLAW_RL_CHAOS_CLOCK": str(self.clock), **(environment or {})}
        self._backoff: dict[str, float] = {}
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._look, name="health", daemon=True)

    def start(self) -> None:
        """Start all four, each of them reaching the others through the proxies."""
        models = models_folder() if self._model is None else None
        self.clock.mkdir(parents=True)
        self.home.root.mkdir()
        self.disks.mount()
        self.home.create()
        if models is not None:
            (self.home.models / EMBEDDED_MODEL).symlink_to(models)
        self.home.config_file.write_text(yaml.safe_dump(self._config))
        self.proxies = Proxies({name: partial(self._address, name) for name in COMPONENTS})
        before = dict(os.environ)
        os.environ.update(self._env)
        try:
            self.supervisor.ensure(load_config(self.home.config_file))
            if (pid := self.supervisor.pid()) is not None:
                # It is our child: not waited for, it would seem to live on after its end.
                threading.Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        # What the components read at each start. The commands read the other file, and so the real addresses.
        config = yaml.safe_load(self.supervisor.config_file.read_text())
        for name in COMPONENTS:
            config["components"][name]["address"] = f"127.0.0.1:{self.proxies[name].port}"
        self.supervisor.config_file.write_text(yaml.safe_dump(config))
        self.windows.append(Window(time.monotonic(), None))
        self._watch.start()
        self.cli("local-start")

    def cli(self, *args: str, timeout: float = 300) -> str:
        """Run a command of the mesh that has to succeed.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run([str(Path(sys.executable).parent / "openclaw-rl"), *args], env=self._env, text=True,
                              capture_output=True, timeout=timeout, check=False)
        if done.returncode:
            raise RuntimeError(f"openclaw-rl {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def stop(self) -> None:
        """End everything that was started; the disks stay.

        Raises:
            RuntimeError: something did not end.
        """
        self._stopping.set()
        try:
            self.cli("stop-all")
        finally:
            self.proxies.close()

    def url(self) -> str | None:
        """The OpenAI door's address; None while there is none."""
        record = read_record(self.home, "policy_server")
        return record.http_address if record else None

    def pid(self, name: str) -> int | None:
        """Of the component's process, as the supervisor knows it."""
        process = self.supervisor.processes().get(name)
        return process.pid if process else None

    def up(self, name: str) -> bool:
        """The process has recorded where it listens, and a policy server answers requests."""
        pid, record = self.pid(name), read_record(self.home, name)
        if pid is None or record is None or record.pid != pid or not lives(pid):
            self._push(name)
            return False
        return name != "policy_server" or self._healthy()

    def wait_up(self, names: tuple[str, ...] = COMPONENTS, seconds: float = 120) -> bool:
        """Wait until these are up; False when they are not in time."""
        deadline = time.monotonic() + seconds
        while not all(self.up(name) for name in names):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def signal(self, name: str, number: signal.Signals, pid: int | None = None) -> int | None:
        """Send a signal to a component's process; its pid, or None when there is none."""
        pid = pid or self.pid(name)
        if pid is None:
            return None
        if number == signal.SIGKILL and name == "policy_server":
            self.windows.append(Window(time.monotonic(), pid))
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    def excused(self, begin: float, end: float) -> bool:
        """A request of this time may have failed because its policy process was killed."""
        return any(w.begin <= end and (w.end is None or w.end >= begin) for w in self.windows)

    def shift(self, name: str, seconds: float) -> None:
        """Set a component's wall clock this far from the real one."""
        file = self.clock / f"{name}.new"
        file.write_text(str(seconds))
        file.rename(self.clock / name)

    def left(self) -> list[str]:
        """Command lines of processes of this mesh that live."""
        found = []
        for process in all_processes():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("OPENCLAW_RL_CHAOS_CLOCK") == str(self.clock):
                    found.append(" ".join(process.cmdline()))
        return found

    def _address(self, name: str) -> str | None:
        record = read_record(self.home, name)
        return record.address if record else None

    def _healthy(self) -> bool:
        url = self.url()
        try:
            return bool(url) and httpx.get(f"{url}/healthz", timeout=1, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _look(self) -> None:
        """Close the windows of the policy server as it comes back."""
        while not self._stopping.wait(_LOOK):
            open_windows = [w for w in self.windows if w.end is None]
            record = read_record(self.home, "policy_server")
            if open_windows and record and all(record.pid != w.pid for w in open_windows) and self._healthy():
                for window in open_windows:
                    window.end = time.monotonic()

    def _push(self, name: str) -> None:
        """Start a component at once whose supervisor pauses for long."""
        process = self.supervisor.processes().get(name)
        state = process.state if process else ""
        if state != "BACKOFF":
            self._backoff.pop(name, None)
            return
        since = self._backoff.setdefault(name, time.monotonic())
        if time.monotonic() - since > _PATIENCE:
            self._backoff.pop(name)
            with contextlib.suppress(SupervisorError):
                self.supervisor.stop(name)
                self.supervisor.start(name)
