"""The campaign against the real mesh: users talk, versions are made, and processes end at chosen moments."""

from __future__ import annotations

import contextlib
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.client.forget import forget
from openclaw_rl.client.policy import PolicyServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.failpoint import NAMES, VARIABLE, Failpoint
from openclaw_rl.runtime.home import COMPONENTS, read_record
from tools.campaign.checker import Table, check, settled
from tools.chaos import logs
from tools.chaos.faults import Breaker
from tools.chaos.load import KINDS as USERS
from tools.chaos.load import Load, Log
from tools.chaos.mesh import ChaosMesh, Window
from tools.chaos.plan import KINDS, Action, make_plan
from tools.chaos.waiting import happens

#: Seconds until a failpoint is reached, all is up again, and without any progress at the end.
_REACHED, _UP, _STANDSTILL = 60.0, 120.0, 120.0
#: Seconds for which a process has few files.
_FEW_FILES = 4.0


@dataclass(frozen=True)
class Options:
    """What a campaign does.

    Attributes:
        rounds: how often each failpoint kills.
        kills: further kills of one, several and all, between the failpoints; with the other `faults` of tools/chaos.
        model: folder of the model; None: the embedded one.
    """

    folder: Path
    seed: int
    rounds: int = 1
    kills: int = 0
    faults: tuple[str, ...] = KINDS
    users: int = len(USERS)
    model: Path | None = None


@dataclass
class Outcome:
    """The table, and what was done."""

    table: Table = field(default_factory=Table)
    killed: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


class Campaign:
    """One campaign in a folder of its own; progress is printed."""

    def __init__(self, options: Options) -> None:
        self.outcome = Outcome()
        self._options = options
        self._failpoints = options.folder / "failpoints"
        self._failpoints.mkdir(parents=True)
        self._mesh = ChaosMesh(options.folder, 40, {VARIABLE: str(self._failpoints)}, options.model)
        self._log = Log(options.folder / "requests.jsonl")
        self._breaker = Breaker(self._mesh, options.folder / "faults.jsonl")
        self._random = random.Random(f"campaign/{options.seed}")
        self._forgotten: set[str] = set()
        self._began = time.monotonic()

    def run(self) -> Outcome:
        """Do all of it; everything that was started is ended, also when it fails."""
        try:
            self._mesh.start()
            load = Load(self._mesh, self._log, self._options.seed, self._options.users)
            load.start()
            try:
                happens(lambda: self._log.complete() > 0, _REACHED)
                self._break()
                self._breaker.heal()
                if not self._mesh.wait_up(seconds=_UP):
                    self.outcome.table.count("components", "lost", example=str(
                        {name: self._mesh.up(name) for name in COMPONENTS}))
            finally:
                late = load.stop()
            self.outcome.table.count("users", number=self._options.users)
            if late:
                self.outcome.table.count("users", "lost", len(late), f"never got an answer: {late}")
            self._end_sessions()
            facts = settled(self._mesh.home, self._log.entries, self._forgotten, _STANDSTILL, self._say)
            check(self.outcome.table, facts, self._log.entries, self._forgotten)
            for text in logs.unexpected(self._mesh.home.logs):
                self.outcome.table.count("logs", "wrong", example=text)
        finally:
            try:
                self._mesh.stop()
            except RuntimeError as error:
                self.outcome.table.count("processes", "wrong", example=str(error))
        for left in self._mesh.left():
            self.outcome.table.count("processes", "wrong", example=f"left after stop-all: {left}")
        return self.outcome

    def close(self) -> None:
        """Unmount what was mounted; the files stay."""
        self._mesh.disks.unmount()

    def _break(self) -> None:
        """Kill at each failpoint, as often as there are rounds, with the other faults between them."""
        steps: list[Failpoint | Action] = [name for _ in range(self._options.rounds)
                                           for name in self._random.sample(NAMES, len(NAMES))]
        others: list[Action] = make_plan(self._options.seed, self._options.kills, self._options.faults) \
            if self._options.kills else []
        for number, action in enumerate(others):
            steps.insert(len(steps) * (number + 1) // (len(others) + 1) + 0, action)
        for step in steps:
            if isinstance(step, Action):
                self._say(f"{step}: {self._breaker.do(step)}")
                for _ in range(step.kills):
                    self.outcome.killed[step.how.get("when", "any")] += 1
                    self.outcome.table.count("kills")
                if step.number % 7 == 0:
                    self._few_files()
            else:
                self._kill_at(step)

    def _kill_at(self, name: Failpoint) -> None:
        if not self._mesh.wait_up(seconds=_UP):
            self.outcome.notes.append(f"not up before {name}")
        happens(lambda: self._mesh.wait_up(seconds=1), 1)
        with self._window() as killed:
            (self._failpoints / name).touch()
            self._provoke(name)
            victim: list[str] = []

            def reached() -> bool:
                victim[:] = [file.suffix[1:] for file in self._failpoints.glob(f"{name}.*")]
                return bool(victim)

            self.outcome.table.count(f"kills at {name}")
            if happens(reached, _REACHED):
                killed(int(victim[0]))
                self.outcome.killed[name] += 1
                (self._failpoints / f"{name}.{victim[0]}").unlink()
            else:
                (self._failpoints / name).unlink(missing_ok=True)
                self.outcome.notes.append(f"{name} was not reached in {_REACHED:g} s")
        self._say(f"killed at {name}, {self._log.complete()} answers")

    def _provoke(self, name: Failpoint) -> None:
        """Bring a failpoint about that the users' talk does not."""
        if name.startswith("start."):
            component = self._random.choice(COMPONENTS)
            self._breaker.do(Action(0, 0.0, "kill", (component,), {"when": "any", "kills": 1}))
            self.outcome.table.count("kills")
        elif name == "serving.rollback":
            threading.Thread(target=self._roll_back, daemon=True).start()
        elif name == "forgetting.erase":
            threading.Thread(target=self._forget, daemon=True).start()

    def _roll_back(self) -> None:
        with contextlib.suppress(MeshError):
            record = read_record(self._mesh.home, "policy_server")
            with PolicyServiceClient(record.address if record else "") as policy:
                state = policy.get_policy().state
                older = [version for version in state.kept_versions if version < state.active_version]
                policy.roll_back(older[-1] if older else 0, "the campaign")

    def _forget(self) -> None:
        with self._log._lock:
            # A streamer's sessions have no name that the mesh knows.
            sessions = sorted({str(entry["session"]) for entry in self._log.entries
                               if entry.get("outcome") == "complete" and "turn_id" in entry
                               and not str(entry.get("user")).startswith("streamer")} - self._forgotten)
        if not sessions:
            return
        # The users' newest sessions go on: what they say after it is not forgotten.
        session = self._random.choice(sessions[:max(1, len(sessions) // 2)])
        self._forgotten.add(session)
        for _ in range(20):  # a component is killed meanwhile: the same call completes it
            try:
                forget(self._mesh.home, session)
                return
            except MeshError:
                time.sleep(1.0)
        self.outcome.table.count("forgettings", "wrong", example=f"{session} could not be forgotten")

    def _few_files(self) -> None:
        """Let a component have no more than 64 open files for a while."""
        name = self._random.choice([name for name in COMPONENTS if name != "policy_server"])
        if (pid := self._mesh.pid(name)) is None:
            return
        self.outcome.table.count("components with few files")
        with contextlib.suppress(OSError):
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, limits[1]))
            time.sleep(_FEW_FILES)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

    @contextlib.contextmanager
    def _window(self) -> Iterator[Callable[[int], None]]:
        """Requests may fail from here on if it is the policy server that ends: told by what is yielded."""
        pid = self._mesh.pid("policy_server")
        window = Window(time.monotonic(), pid)
        self._mesh.windows.append(window)
        victims: list[int] = []
        try:
            yield victims.append
        finally:
            if pid not in victims:
                window.end = window.begin

    def _end_sessions(self) -> None:
        record = read_record(self._mesh.home, "env_server")
        with EnvironmentServiceClient(record.address if record else "") as client:
            for session in {str(entry["session"]) for entry in self._log.entries if "session" in entry}:
                with contextlib.suppress(MeshError):  # it has ended
                    client.end_session(session_id=session)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)
