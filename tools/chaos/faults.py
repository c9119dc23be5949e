"""Carries out the faults of a plan."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import COMPONENTS, read_record
from tools.chaos.checks import Damage
from tools.chaos.damage import damage
from tools.chaos.mesh import ChaosMesh
from tools.chaos.plan import Action
from tools.chaos.waiting import happens

#: Seconds that a kill waits for its victim to be up, and for the moment that it is meant for.
_UP, _MOMENT = 90.0, 12.0
#: Bytes to the policy server between two looks that tell of weights on their way.
_WEIGHTS = 50_000
#: Seconds after a full disk in which what waits in memory is written.
_WRITTEN = 3.0


class Breaker:
    """Breaks one mesh. Faults that last go on while the next ones happen; `heal` ends them all.

    Attributes:
        kills: by component, those that damage needs included.
        damages: what was damaged.
        starts_failed: components that did not come up in time.
    """

    def __init__(self, mesh: ChaosMesh, file: Path) -> None:
        self.kills: Counter[str] = Counter()
        self.damages: list[Damage] = []
        self.starts_failed: list[str] = []
        self.executed: Counter[str] = Counter()
        self._mesh = mesh
        self._file = file.open("w")
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._lasting: dict[str, tuple[threading.Timer, Callable[[], None]]] = {}
        self._disk_free_at = 0.0  # when what the policy server holds in memory will be on disk

    def do(self, action: Action) -> str:
        """Carry out one fault; what was done, in words. Returns while a fault that lasts still does."""
        done = getattr(self, f"_{action.kind}")(action)
        self.executed[action.kind] += 1
        self.note(f"{action.number}: {action}: {done}")
        return done

    def note(self, text: str) -> None:
        """Keep a line of what happened, with the times by which the other logs have it."""
        with self._lock:
            self._file.write(json.dumps({"at": round(time.time(), 3), "monotonic": round(time.monotonic(), 3),
                                         "since_start": round(time.monotonic() - self._began, 2), "text": text}) + "\n")
            self._file.flush()

    def heal(self) -> None:
        """End every fault that lasts."""
        for key in list(self._lasting):
            self._end(key)
        self._mesh.proxies.heal()
        for name in COMPONENTS:
            self._mesh.shift(name, 0)

    # What lasts

    def _last(self, key: str, seconds: float, undo: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, self._end, (key,))
        timer.daemon = True
        with self._lock:
            self._lasting[key] = timer, undo
        timer.start()

    def _end(self, key: str) -> None:
        with self._lock:
            timer, undo = self._lasting.pop(key, (None, None))
        if timer is not None and undo is not None:
            timer.cancel()
            undo()
            self.note(f"{key} has ended")

    def _until_ended(self, prefix: str) -> None:
        while any(key.startswith(prefix) for key in list(self._lasting)):
            time.sleep(0.1)

    # Kills

    def _kill(self, action: Action) -> str:
        when, after = action.how["when"], action.how.get("after", 0.0)
        self._ready(action.names)
        if when == "step":
            met = happens(self._training, _MOMENT)
        elif when == "transfer":
            met = happens(self._weights_flow, _MOMENT)
        else:
            met = True
        if when in ("step", "transfer"):
            time.sleep(after)
        pids = [self._kill_one(name) for name in action.names]
        text = f"killed {pids}" + ("" if met else f", though no {when} began within {_MOMENT:.0f} s")
        if when == "start":
            name, old = action.names[0], pids[0]
            deadline = time.monotonic() + _MOMENT
            while self._mesh.pid(name) in (None, old) and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(after)
            text += f", and {self._kill_one(name)} {after} s after it was started"
        return text

    def _kill_one(self, name: str) -> int | None:
        pid = self._mesh.signal(name, signal.SIGKILL)
        if pid is not None:
            self.kills[name] += 1
        return pid

    def _ready(self, names: tuple[str, ...]) -> None:
        """Wait until the victims are there to be killed."""
        if "policy_server" in names:
            # What it could not write waits in its memory, and is lost with it: as documented, so it is not done.
            self._until_ended("disk policy_server")
            self._until_ended("disk home")
            time.sleep(max(0.0, self._disk_free_at - time.monotonic()))
        if any(key.startswith("disk") for key in list(self._lasting)):
            return  # it may not come up before there is room
        if not self._mesh.wait_up(names, _UP):
            late = [name for name in names if not self._mesh.up(name)]
            self.starts_failed += late
            self.note(f"not up within {_UP:.0f} s: {', '.join(late)}")

    def _training(self) -> bool:
        record = read_record(self._mesh.home, "trainer")
        if record is None:
            return False
        try:
            with ComponentServiceClient(record.address) as client:
                return client.get_status(timeout=2).status.gauges["training"] > 0
        except MeshError:
            return False

    def _weights_flow(self) -> bool:
        before = self._mesh.proxies["policy_server"].forward
        time.sleep(0.05)
        return self._mesh.proxies["policy_server"].forward - before > _WEIGHTS

    # The other faults

    def _stop(self, action: Action) -> str:
        name, seconds = action.names[0], action.how["seconds"]
        self._until_ended("stop")
        pid = self._mesh.signal(name, signal.SIGSTOP)
        if pid is None:
            return "it was not running"

        def go_on() -> None:
            if self._mesh.pid(name) == pid:
                os.kill(pid, signal.SIGCONT)

        self._last(f"stop {name}", seconds, go_on)
        return f"stopped {pid} for {seconds} s"

    def _disk(self, action: Action) -> str:
        name, seconds = action.names[0], action.how["seconds"]
        self._until_ended("disk")
        pids = {component: self._mesh.pid(component) for component in COMPONENTS}
        self._mesh.disks.fill(name, pids)

        def free() -> None:
            self._mesh.disks.free(name, pids)
            self._disk_free_at = time.monotonic() + _WRITTEN

        self._last(f"disk {name}", seconds, free)
        return f"full for {seconds} s"

    def _damage(self, action: Action) -> str:
        name = action.names[0]
        self._ready((name,))
        self._until_ended("disk")
        pid = self._mesh.signal(name, signal.SIGSTOP)
        if pid is None:
            return "it was not running"
        try:
            done = damage(self._mesh.home, name, action.how["what"], action.how["how"], action.how["salt"])
        finally:
            self.kills[name] += 1
            self._mesh.signal(name, signal.SIGKILL, pid)
        if done is None:
            return "there is no such file yet; killed"
        self.damages.append(done)
        return f"{done}; killed {pid}"

    def _clock(self, action: Action) -> str:
        self._until_ended("clock")
        for name in action.names:
            self._mesh.shift(name, action.how["hours"] * 3600)

        def back() -> None:
            for name in action.names:
                self._mesh.shift(name, 0)

        self._last("clock", action.how["seconds"], back)
        return f"{action.how['hours']:+} h for {action.how['seconds']} s"

    def _cut(self, action: Action) -> str:
        name, what = action.names[0], action.how["what"]
        proxy = self._mesh.proxies[name]
        match what:
            case "cut":
                before, cuts = proxy.forward, proxy.cuts
                flows = happens(lambda: proxy.forward > before, _MOMENT)
                proxy.cut()
                cut = happens(lambda: proxy.cuts > cuts, _MOMENT) if flows else False
                return "its connections are cut while something flows" if cut else "nothing flowed to it"
            case "slow":
                proxy.slow(action.how["rate"], action.how["seconds"])
                return f"at most {action.how['rate']} bytes/s for {action.how['seconds']} s"
            case "refuse":
                proxy.refuse(action.how["seconds"])
                return f"nothing gets through for {action.how['seconds']} s"
        proxy.cut_every(action.how["bytes"], action.how["times"])
        return f"cut each {action.how['bytes']} bytes, {action.how['times']} times"

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {"kills": dict(self.kills), "faults": dict(self.executed), "damages": [str(d) for d in self.damages],
                "connections_cut": sum(proxy.cuts for proxy in self._mesh.proxies.by_name.values())}
