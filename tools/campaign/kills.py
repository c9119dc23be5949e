"""The campaign against the real mesh: users talk, versions are made, and processes end at chosen moments."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.client.forget import forget
from openclaw_rl.client.policy import PolicyServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.failpoint import NAMES, VARIABLE, Failpoint
from openclaw_rl.runtime.home import COMPONENTS, read_record
from tools.campaign.limits import few_files
from tools.campaign.talk import REACHED, UP, Talk
from tools.chaos.load import KINDS as USERS
from tools.chaos.mesh import Window, lives
from tools.chaos.plan import KINDS, Action, make_plan
from tools.chaos.waiting import happens

#: Seconds within which a session is forgotten, whatever is killed meanwhile.
_FORGOTTEN = 180.0
#: Seconds for which a process has few files.
_FEW_FILES = 4.0


@dataclass(frozen=True)
class Options:
    """What a campaign does.

    Attributes:
        rounds: how often each of `failpoints` kills.
        kills: further kills of one, several and all, between the failpoints; with the other `faults` of tools/chaos.
        model: folder of the model; None: the embedded one.
    """

    folder: Path
    seed: int
    rounds: int = 1
    kills: int = 0
    failpoints: tuple[Failpoint, ...] = NAMES
    faults: tuple[str, ...] = KINDS
    users: int = len(USERS)
    model: Path | None = None


class Campaign(Talk):
    """One campaign in a folder of its own; progress is printed."""

    def __init__(self, options: Options) -> None:
        self._failpoints = options.folder / "failpoints"
        self._failpoints.mkdir(parents=True)
        super().__init__(options.folder, options.seed, options.users, options.model,
                         {VARIABLE: str(self._failpoints)})
        self._options = options
        self._random = random.Random(f"campaign/{options.seed}")
        self._forgetting: list[threading.Thread] = []

    def harm(self) -> None:
        """Kill at each failpoint, as often as there are rounds, with the other faults between them."""
        points = self._options.failpoints
        steps: list[Failpoint | Action] = [name for _ in range(self._options.rounds)
                                           for name in self._random.sample(points, len(points))]
        others: list[Action] = make_plan(self._options.seed, self._options.kills, self._options.faults) \
            if self._options.kills else []
        for number, action in enumerate(others):
            steps.insert(len(steps) * (number + 1) // (len(others) + 1), action)
        for step in steps:
            if isinstance(step, Action):
                self.say(f"{step}: {self.breaker.do(step)}")
                for _ in range(step.kills):
                    self.outcome.killed[step.how.get("when", "any")] += 1
                    self.outcome.table.count("kills")
                if step.number % 7 == 0:
                    self._few_files()
            else:
                self._kill_at(step)
        for thread in self._forgetting:
            thread.join()

    def _kill_at(self, name: Failpoint) -> None:
        if not self.mesh.wait_up(seconds=UP):
            self.outcome.notes.append(f"not up before {name}")
        if name == "forgetting.erase":
            happens(self._sessions, UP)
        with self._window() as killed:
            (self._failpoints / name).touch()
            self._provoke(name)
            victim: list[str] = []

            def reached() -> bool:
                victim[:] = [file.suffix[1:] for file in self._failpoints.glob(f"{name}.*")]
                return bool(victim)

            self.outcome.table.count(f"kills at {name}")
            if happens(reached, REACHED):
                killed(int(victim[0]))
                happens(lambda: not lives(int(victim[0])), REACHED)
                self.outcome.killed[name] += 1
                (self._failpoints / f"{name}.{victim[0]}").unlink()
            else:
                (self._failpoints / name).unlink(missing_ok=True)
                self.outcome.notes.append(f"{name} was not reached in {REACHED:g} s")
        self.say(f"killed at {name}, {self.log.complete()} answers")

    def _provoke(self, name: Failpoint) -> None:
        """Bring a failpoint about that the users' talk does not."""
        if name.startswith("start."):
            component = self._random.choice(COMPONENTS)
            self.breaker.do(Action(0, 0.0, "kill", (component,), {"when": "any", "kills": 1}))
            self.outcome.table.count("kills")
        elif name == "serving.rollback":
            threading.Thread(target=self._roll_back, daemon=True).start()
        elif name == "forgetting.erase":
            self._forgetting.append(threading.Thread(target=self._forget, daemon=True))
            self._forgetting[-1].start()

    def _roll_back(self) -> None:
        with contextlib.suppress(MeshError):
            record = read_record(self.mesh.home, "policy_server")
            with PolicyServiceClient(record.address if record else "") as policy:
                state = policy.get_policy().state
                older = [version for version in state.kept_versions if version < state.active_version]
                policy.roll_back(older[-1] if older else 0, "the campaign")

    def _forget(self) -> None:
        if not (sessions := self._sessions()):
            return
        session = self._random.choice(sessions)
        self.forgotten.add(session)
        until = time.monotonic() + _FORGOTTEN
        while True:  # a component is killed meanwhile: the same call completes it
            try:
                forget(self.mesh.home, session, wait=False)
                self.outcome.table.count("forgettings")
                return
            except MeshError as error:
                if time.monotonic() > until:
                    self.outcome.table.count("forgettings", "wrong", example=f"{session}: {error}")
                    return
            time.sleep(1.0)

    def _sessions(self) -> list[str]:
        """Sessions that may be forgotten: their users talk in another one. A streamer's have no name that the mesh
        knows."""
        with self.log._lock:
            entries = [entry for entry in self.log.entries if entry.get("outcome") == "complete" and "turn_id" in entry
                       and not str(entry.get("user")).startswith("streamer")]
        latest = {entry["user"]: entry["session"] for entry in entries}
        return sorted({str(entry["session"]) for entry in entries if entry["session"] != latest[entry["user"]]}
                      - self.forgotten)

    def _few_files(self) -> None:
        name = self._random.choice([name for name in COMPONENTS if name != "policy_server"])
        if (pid := self.mesh.pid(name)) is not None:
            self.outcome.table.count("components with few files")
            with few_files(pid):
                time.sleep(_FEW_FILES)

    @contextlib.contextmanager
    def _window(self) -> Iterator[Callable[[int], None]]:
        """Requests may fail from here on if it is the policy server that ends: told by what is yielded."""
        pid = self.mesh.pid("policy_server")
        window = Window(time.monotonic(), pid)
        self.mesh.windows.append(window)
        victims: list[int] = []
        try:
            yield victims.append
        finally:
            if pid not in victims:
                window.end = window.begin
