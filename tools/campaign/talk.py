"""A mesh whose users talk while it is harmed, and what is checked when they have ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openclaw_rl.runtime.home import COMPONENTS
from tools.campaign.checker import Table, check, settled
from tools.chaos import logs
from tools.chaos.faults import Breaker
from tools.chaos.load import KINDS as USERS
from tools.chaos.load import Load, Log
from tools.chaos.mesh import ChaosMesh
from tools.chaos.waiting import happens

#: Seconds until the first answer, until all is up again, and without any progress at the end.
REACHED, UP, STANDSTILL = 180.0, 240.0, 180.0


@dataclass
class Outcome:
    """The table, and what was done."""

    table: Table = field(default_factory=Table)
    killed: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


class Talk:
    """Runs once, in a folder of its own; progress is printed. Who derives from it harms the mesh in `harm`.

    Args:
        folder: of the mesh and the logs.
        seed: of the users.
        users: how many talk.
        model: folder of the model; None: the embedded one.
        environment: further variables of the mesh's processes.
    """

    def __init__(self, folder: Path, seed: int, users: int = len(USERS), model: Path | None = None,
                 environment: Mapping[str, str] | None = None) -> None:
        self.outcome = Outcome()
        folder.mkdir(parents=True, exist_ok=True)
        # A small model's users talk faster than batches of 8 are trained.
        self.mesh = ChaosMesh(folder, 40, environment, model, max_batch=8 if model is None else 64)
        self.log = Log(folder / "requests.jsonl")
        self.breaker = Breaker(self.mesh, folder / "faults.jsonl")
        self.forgotten: set[str] = set()
        self._folder, self._seed, self._users = folder, seed, users
        self._began = time.monotonic()

    def harm(self) -> None:
        """Called while the users talk."""
        raise NotImplementedError

    def at_risk(self) -> set[str]:
        """Turns that what was done may have taken away."""
        return {turn for damage in self.breaker.damages for turn in damage.at_risk}

    def run(self) -> Outcome:
        """Do all of it; everything that was started is ended, also when it fails."""
        table = self.outcome.table
        try:
            self.mesh.start()
            load = Load(self.mesh, self.log, self._seed, self._users)
            load.start()
            try:
                happens(lambda: self.log.complete() > 0, REACHED)
                self.harm()
                self.breaker.heal()
                if not self.mesh.wait_up(seconds=UP):
                    table.count("components", "lost", example=str({name: self.mesh.up(name) for name in COMPONENTS}))
            finally:
                late = load.stop()
            table.count("users", number=self._users)
            if late:
                table.count("users", "lost", len(late), f"never got an answer: {late}")
            self.judge()
            for text in logs.unexpected(self.mesh.home.logs):
                table.count("logs", "wrong", example=text)
        finally:
            try:
                self.mesh.stop()
            except RuntimeError as error:
                table.count("processes", "wrong", example=str(error))
        for left in self.mesh.left():
            table.count("processes", "wrong", example=f"left after stop-all: {left}")
        return self.outcome

    def judge(self) -> None:
        """Fill the table once all is up again and nobody talks."""
        facts = settled(self.mesh.home, self.log.entries, self.forgotten, STANDSTILL, self.say, self.at_risk())
        check(self.outcome.table, facts, self.log.entries, self.forgotten, self.at_risk())

    def once(self) -> Outcome:
        """Run and close; the files of a run that failed are kept."""
        keep = True
        try:
            outcome = self.run()
            keep = outcome.table.failed
        finally:
            self.close(keep)
        return outcome

    def close(self, keep: bool) -> None:
        """Unmount what was mounted; `keep`: its files are copied to `home-kept` before."""
        if keep:
            self.mesh.disks.copy(self._folder / "home-kept")
        self.mesh.disks.unmount()

    def say(self, text: str) -> None:
        """Tell what happens."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)
