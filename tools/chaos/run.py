"""One run: start, break, heal, wait, check, report."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import COMPONENTS, read_record
from tools.chaos import logs
from tools.chaos.books import Books, read_books, record_problem
from tools.chaos.checks import Account, Violation, check_all
from tools.chaos.faults import Breaker
from tools.chaos.load import KINDS, Load, Log
from tools.chaos.mesh import ChaosMesh, models_folder
from tools.chaos.plan import Action, make_plan
from tools.chaos.waiting import happens

#: Seconds for the ring to become quiet once all is healed and nobody talks any more, and seconds without any change
#: after which it stands still.
QUIET, STANDSTILL = 1800.0, 240.0
#: Seconds until the first version answers, at most, before anything is broken.
FIRST_VERSION = 400.0
#: Seconds between two looks at stores and users.
_LOOK = 0.2
#: Whole answers that users get between two faults, and seconds after which it goes on without.
ANSWERS, ANSWERS_WITHIN = 2, 8.0


@dataclass(frozen=True)
class Options:
    """What a run does; see `python tools/chaos --help`."""

    folder: Path
    seed: int
    kills: int
    faults: Sequence[str]
    minutes: float | None = None
    users: int = len(KINDS)
    gap: tuple[float, float] = (0.3, 2.0)
    max_staleness: int = 40  #: versions; with fewer, more turns are dropped and the end comes sooner


@dataclass
class Report:
    """The outcome of a run."""

    options: Options
    facts: dict[str, Any] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """As --json writes it."""
        return {"seed": self.options.seed, "ok": not self.violations, **self.facts, "notes": self.notes,
                "violations": [{"rule": v.rule, "text": v.text, "turns": list(v.turns)} for v in self.violations]}

    def text(self) -> str:
        """For a person."""
        lines = [f"seed {self.options.seed}", *(f"{name.replace('_', ' ')}: {_words(value)}"
                                                for name, value in self.facts.items())]
        lines += [f"note: {note}" for note in self.notes]
        shown: Counter[str] = Counter()
        for violation in self.violations:
            shown[violation.rule] += 1
            if shown[violation.rule] <= 10:
                lines.append(f"VIOLATION {violation}")
        lines += [f"  ... and {count - 10} more of: {rule}" for rule, count in shown.items() if count > 10]
        lines.append("OK: every turn has one fate, none was trained twice, every digest is right"
                     if not self.violations else f"FAILED: {len(self.violations)} violations; what is needed to look "
                     f"is in {self.options.folder}")
        return "\n".join(lines)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count}" for key, count in value.items()) or "none"
    if isinstance(value, list):
        return "".join(f"\n  {item}" for item in value) or "none"
    return str(value)


class Run:
    """A run in a folder; progress is printed."""

    def __init__(self, options: Options) -> None:
        self.report = Report(options)
        self._options = options
        self._plan = make_plan(options.seed, options.kills, options.faults, options.gap)
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / "plan.txt").write_text("\n".join(f"{a.number} +{a.gap} s: {a}" for a in self._plan) + "\n")
        self._mesh = ChaosMesh(options.folder, options.max_staleness)
        self._breaker = Breaker(self._mesh, options.folder / "faults.jsonl")
        self._log = Log(options.folder / "requests.jsonl")
        self._began = time.monotonic()

    def run(self) -> Report:
        """The whole. Everything that was started is ended, also when it fails."""
        mesh, options = self._mesh, self._options
        try:
            self._say(f"starting the mesh in {options.folder}")
            mesh.start()
            if mesh.disks.problem:
                self.report.notes.append("full disks are imitated by limits on the size of files: "
                                         f"{mesh.disks.problem}")
            self._phases()
        finally:
            try:
                mesh.stop()
            except RuntimeError as error:
                self.report.violations.append(Violation("did not end", str(error)))
        if left := mesh.left():
            self.report.violations.append(Violation("did not end", f"left after stop-all: {left}"))
        self._judge()
        return self.report

    def close(self, keep: bool) -> None:
        """Keep the run's files, or delete all of them."""
        if keep:
            kept = self._options.folder / "home-kept"
            self._mesh.disks.copy(kept)
        self._mesh.disks.unmount()
        if keep and (self._options.folder / "home-kept").exists():
            shutil.rmtree(self._options.folder / "home", ignore_errors=True)
            (self._options.folder / "home-kept").rename(self._options.folder / "home")
        elif not keep:
            shutil.rmtree(self._options.folder, ignore_errors=True)

    def _phases(self) -> None:
        load = Load(self._mesh, self._log, self._options.seed, self._options.users)
        load.start()
        try:
            # Without a version there is little to break; where that takes too long, it is broken all the same.
            self._say("waiting for the first version")
            happens(lambda: (self._mesh.home.component("policy_server") / "policy.json").exists()
                    and read_books(self._mesh.home, files=False).active > 0, FIRST_VERSION, _LOOK)
            self._break()
            self._say("healing")
            self._breaker.heal()
            if not self._mesh.wait_up(seconds=180):
                states = {name: self._mesh.up(name) for name in COMPONENTS}
                self.report.violations.append(Violation("does not start", f"up after everything was healed: {states}"))
            self._pause(3)  # who was cut off asks again
        finally:
            late = load.stop()
        if late:
            self.report.violations.append(Violation("hangs", f"a request never ends: {', '.join(late)}"))
        self.report.facts["minutes_of_faults"] = round((time.monotonic() - self._began) / 60, 1)
        self._check_records()
        self._settle()

    def _break(self) -> None:
        deadline = None if self._options.minutes is None else self._began + self._options.minutes * 60
        for action in self._plan:
            if deadline is not None and time.monotonic() > deadline:
                self.report.notes.append(f"stopped by --minutes before fault {action.number} of {len(self._plan)}")
                break
            answers = self._log.complete()
            self._pause(action.gap)
            happens(partial(self._answered, answers + ANSWERS), ANSWERS_WITHIN, _LOOK)
            self._one(action)

    def _one(self, action: Action) -> None:
        done = self._breaker.do(action)
        kills = sum(self._breaker.kills.values())
        self._say(f"{action.number}/{len(self._plan)} {action}: {done} | {kills} kills, "
                  f"{self._log.complete()} answers")

    def _check_records(self) -> None:
        """Tokens and text of turns that are still kept whole: those whose next state has not come."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(models_folder() / "tokenizer.json"))
        received = {entry.get("turn_id") for entry in self._log.entries}
        checked = 0
        for turn, row in read_books(self._mesh.home, files=False).turns.items():
            if row.payload is not None and turn in received:
                checked += 1
                if problem := record_problem(row.payload, tokenizer.decode):
                    self.report.violations.append(Violation("bad record", problem, (turn,)))
        self.report.facts["token_records_checked"] = checked

    def _settle(self) -> None:
        """Wait until every turn has its fate and the newest version answers."""
        began = time.monotonic()
        self._say("waiting for the ring to become quiet")
        happens(lambda: not read_books(self._mesh.home, files=False).outboxes["turns"], 60, _LOOK)
        self._end_sessions()
        waiting: dict[str, int] = {}
        told = 0.0
        changed, last = began, None
        while time.monotonic() - began < QUIET and time.monotonic() - changed < STANDSTILL:
            books = read_books(self._mesh.home, files=False)
            waiting = books.waiting
            if not waiting and self._synced(books):
                break
            if (now := (waiting, books.head, books.active)) != last:
                changed, last = time.monotonic(), now
            if time.monotonic() - told > 15:
                told = time.monotonic()
                self._say(f"waiting: {_words(waiting) if waiting else 'for the newest version to answer'}")
            self._pause(0.5)
        else:
            detail = "; ".join(f"{name}: {self._detail(name)}" for name in COMPONENTS)
            what = _words(waiting) if waiting else "the newest version"
            self.report.violations.append(Violation(
                "not quiet", f"after {time.monotonic() - began:.0f} s there waits {what}; {detail}"))
        self.report.facts["seconds_until_quiet"] = round(time.monotonic() - began, 1)

    def _synced(self, books: Books) -> bool:
        version = books.versions.get(books.head)
        return books.active == books.head or version is None or version.detail.startswith("rejected")

    def _detail(self, name: str) -> str:
        record = read_record(self._mesh.home, name)
        try:
            with ComponentServiceClient(record.address if record else "") as client:
                return client.get_status().status.detail or "fine"
        except MeshError as error:
            return error.message

    def _end_sessions(self) -> None:
        record = read_record(self._mesh.home, "env_server")
        assert record is not None
        with EnvironmentServiceClient(record.address) as client:
            for session in read_books(self._mesh.home, files=False).open_sessions:
                client.end_session(session_id=session)

    def _judge(self) -> None:
        """From the files alone, once nothing runs any more."""
        self._say("checking the stores")
        books = read_books(self._mesh.home)
        account, violations = check_all(self._log.entries, books, self._breaker.damages)
        tracebacks = logs.unexpected(self._mesh.home.logs)
        violations += [Violation("unexpected traceback", text) for text in tracebacks]
        self.report.violations += violations
        self._facts(books, account)

    def _facts(self, books: Books, account: Account) -> None:
        outcomes = Counter(entry["outcome"] + (", its policy process was killed" if entry.get("excused") else "")
                           for entry in self._log.entries)
        facts = self._breaker.facts()
        self.report.facts |= {
            "kills": sum(facts["kills"].values()),
            "kills_by_component": facts.pop("kills"), **facts, "requests": dict(outcomes.most_common()),
            "fates": account.totals(), "versions_made": len([v for v in books.versions if v]),
            "active_version": books.active, "versions_on_disk": len(books.policy_files) + len(books.trainer_files),
            "set_aside": books.aside}
        reasons = Counter(fate.partition(": ")[2].partition(":")[0] for fate in account.fates.values()
                          if fate.startswith("dropped"))
        self.report.facts["dropped_because"] = dict(reasons.most_common())
        if self._breaker.starts_failed:
            self.report.notes.append(f"slow to come up: {Counter(self._breaker.starts_failed)}")

    def _answered(self, number: int) -> bool:
        return self._log.complete() >= number

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    @staticmethod
    def _pause(seconds: float) -> None:
        time.sleep(seconds)


def write_json(report: Report, file: Path) -> None:
    """The report for a machine."""
    file.write_text(json.dumps(report.json(), indent=1, ensure_ascii=False) + "\n")
