"""Harms other than kills: full, frozen and read-only disks, few files, little and no memory, damaged files."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import COMPONENTS, read_record
from tools.campaign.checker import Table, answered_turns, ask, check, fate, settled, unsettled
from tools.campaign.images import Images
from tools.campaign.limits import few_files, little_memory, no_memory
from tools.campaign.talk import STANDSTILL, UP, Talk
from tools.chaos.books import snapshot
from tools.chaos.checks import Damage
from tools.chaos.damage import damage
from tools.chaos.mesh import Window, lives
from tools.chaos.plan import Action
from tools.chaos.waiting import happens

#: Seconds that a harm lasts; a freeze and the pause after it; until a loss is told; and answers after each harm.
_LASTS, _FROZEN, _THAWED, _TOLD, _ANSWERS = 6.0, 1.0, 0.2, 60.0, 2
_NO_SHM = "no shared memory"
#: What is damaged: component, what (see tools/chaos/damage.py).
DAMAGES = (("policy_server", "store"), ("policy_server", "wal"), ("policy_server", "weights"),
           ("policy_server", "policy.json"), ("env_server", "store"), ("env_server", "wal"), ("prm_judge", "store"),
           ("prm_judge", "wal"), ("trainer", "store"), ("trainer", "wal"), ("trainer", "weights"),
           ("trainer", "checkpoint"))


@dataclass(frozen=True)
class Options:
    """What is done: `kinds` of KINDS, to each component; see kills.Options."""

    folder: Path
    seed: int
    kinds: tuple[str, ...]
    components: tuple[str, ...] = COMPONENTS
    damages: tuple[tuple[str, str], ...] = DAMAGES
    users: int = 3
    model: Path | None = None


class Harms(Talk):
    """One kind after another to one mesh. The table has a row for each, of the turns that were answered meanwhile."""

    def __init__(self, options: Options) -> None:
        super().__init__(options.folder, options.seed, options.users, options.model)
        self._options = options
        self._random = random.Random(f"harms/{options.seed}")
        self._at_risk: set[str] = set()
        self._versions_at_risk: set[int] = set()
        self._kinds: list[tuple[str, int]] = []  # of each harm, the entries of the log before it
        self._damages: list[tuple[Damage, str]] = []  # with what was told of them
        self._images = Images(self.mesh.home)
        if any(kind.endswith("disk") for kind in options.kinds):
            self.mesh.disks = self._images

    def at_risk(self) -> set[str]:
        return super().at_risk() | self._at_risk

    def harm(self) -> None:
        for kind in self._options.kinds:
            self._kinds.append((kind, len(self.log.entries)))
            for step in self._steps(kind):
                self._settle_down()
                try:
                    done = step()
                except OSError as error:
                    self.outcome.notes.append(f"{kind}: not done: {error}")
                    break
                self.outcome.table.count(kind)
                self.say(f"{kind}: {done}")
        self._settle_down()

    def _steps(self, kind: str) -> list[Callable[[], str]]:
        if kind.startswith("damage"):
            harm = self._damage_live if kind == "damage while up" else self._damage_down
            return [partial(harm, name, what) for name, what in self._options.damages]
        if kind == _NO_SHM:
            return [self._no_shared_memory]
        return [partial(_KINDS[kind], self, name) for name in self._options.components]

    def _settle_down(self) -> None:
        """Wait until all are up, and the users have some answers more."""
        if not self.mesh.wait_up(seconds=UP):
            self.outcome.table.count("components", "lost", example=str({n: self.mesh.up(n) for n in COMPONENTS}))
        answers = self.log.complete()
        happens(lambda: self.log.complete() >= answers + _ANSWERS, UP)

    def judge(self) -> None:
        """Each kind by the turns of its time, and then all of them at once for what one alone does not show."""
        entries = self.log.entries
        facts = settled(self.mesh.home, entries, (), STANDSTILL, self.say, self.at_risk())
        ends = [begin for _, begin in self._kinds[1:]] + [len(entries)]
        for (kind, begin), end in zip(self._kinds, ends, strict=True):
            part = Table()
            check(part, facts, entries[begin:end], (), self.at_risk(), self._versions_at_risk)
            row: Mapping[str, int] = part.rows.get("answered turns", {})  # none when all were in damaged files
            for column in ("checked", "lost", "twice", "wrong"):
                self.outcome.table.count(f"  answered turns: {kind}", column, row.get(column, 0))
        check(self.outcome.table, facts, entries, (), self.at_risk(), self._versions_at_risk)
        answered = answered_turns(entries, ())
        lost = {turn for turn in self.at_risk() & answered.keys() if fate(facts, turn) == "lost"}
        self.outcome.table.count("turns lost with a damaged file", number=len(lost))
        told_of = {turn for done, told in self._damages if told for turn in done.at_risk}
        for done, told in self._damages:
            self.outcome.table.count("losses by damage are told")
            gone = done.at_risk & lost - told_of  # what another file took away, too, was told by that one's component
            if gone and not told:
                self.outcome.table.count("losses by damage are told", "wrong", example=f"{done}: {gone}")

    # Limits

    def _few_files(self, name: str) -> str:
        with few_files(self._pid(name)), self._excused(name):
            time.sleep(_LASTS)
        return f"{name} could open no more files for {_LASTS:g} s"

    def _little_memory(self, name: str) -> str:
        pid = self._pid(name)
        with little_memory(pid), self._excused(name):
            time.sleep(_LASTS)
        return f"{name} got no more memory for {_LASTS:g} s, and {'lived' if self.mesh.pid(name) == pid else 'ended'}"

    def _no_memory(self, name: str) -> str:
        pid = self._pid(name)
        with self._excused(name), no_memory(pid, f"openclaw-rl-campaign-{pid}"):
            killed = happens(lambda: self.mesh.pid(name) != pid, _TOLD)
        return f"the kernel {'killed' if killed else 'did not kill'} {name}"

    def _no_shared_memory(self) -> str:
        """Another mesh, in a mount namespace whose /dev has no shm."""
        devices = [word for name in ("null", "zero", "full", "random", "urandom", "tty")
                   for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
        folder, seed = str(self._options.folder / "no-shm"), str(self._options.seed)
        model = [] if self._options.model is None else ["--tiny"]
        done = subprocess.run(
            ["bwrap", "--bind", "/", "/", "--tmpfs", "/dev", *devices, "--proc", "/proc", sys.executable,
             str(Path(__file__).parent), "--seed", seed, "--keep", folder, "kills", "--rounds", "0",
             "--kills", "4", "--faults", "kill", *model],
            capture_output=True, text=True, check=False)
        if done.returncode == 2:
            raise OSError(done.stderr)
        if done.returncode:
            self.outcome.table.count(_NO_SHM, "wrong", example=done.stdout + done.stderr)
        return f"another mesh lived without /dev/shm, and with 4 kills: exit code {done.returncode}"

    # Disks

    def _full_disk(self, name: str) -> str:
        self._images.fill(name, {})
        try:
            time.sleep(_LASTS)
        finally:
            self._images.free(name, {})
        return f"{name}'s was full for {_LASTS:g} s"

    def _slow_disk(self, name: str) -> str:
        until = time.monotonic() + _LASTS
        while time.monotonic() < until:
            self._images.freeze(name)
            try:
                time.sleep(_FROZEN)
            finally:
                self._images.thaw(name)
            time.sleep(_THAWED)
        return f"{name}'s stood still for {_FROZEN:g} s again and again"

    def _read_only_disk(self, name: str) -> str:
        begin = len(self.log.entries)
        on_its_way = self._unsettled()
        self._images.turn_read_only(name)
        # As in a power loss, the commits of the last 100 ms go with a disk that breaks (`durability: group`).
        self._at_risk |= on_its_way | self._turns_since(begin)
        time.sleep(_LASTS)
        told = self._told(name)
        with self._excused(name):
            self.mesh.supervisor.stop(name)
            if name == "policy_server":  # what it could not write was in its memory, as its alarm says
                self._at_risk |= self._turns_since(begin)
            self._images.repair(name)
            self.mesh.supervisor.start(name)
            self.mesh.wait_up((name,), UP)
        if not told:
            self.outcome.table.count("read-only disk", "wrong", example=f"{name} did not tell of it")
        return f"{name}'s was read-only for {_LASTS:g} s: {told}"

    # Damage

    def _damage_down(self, name: str, what: str) -> str:
        how = self._random.choice(("truncate", "garbage"))
        before = len(self.breaker.damages)
        self.breaker.do(Action(0, 0.0, "damage", (name,), {"what": what, "how": how,
                                                           "salt": self._random.randrange(2**31)}))
        if len(self.breaker.damages) == before:
            return f"{name} has no {what}"
        done = self.breaker.damages[-1]
        self.mesh.wait_up((name,), UP)
        return f"{done}: {self._tells(name, done)}"

    def _damage_live(self, name: str, what: str) -> str:
        """Damage a file that is in use, and let the component go on for a while. It is killed, unless it has ended by
        itself meanwhile to be started again."""
        store = self.mesh.home.component(name) / "state.db"
        begin, on_its_way = len(self.log.entries), self._unsettled()
        before, pid = snapshot(store, name), self._pid(name)
        with self._excused(name):
            done = damage(self.mesh.home, name, what, "garbage", self._random.randrange(2**31))
            if done is None:
                return f"{name} has no {what}"
            time.sleep(_LASTS)
            if what in ("store", "wal"):  # one that earlier damage has reached already goes with all that is in it
                done.at_risk |= (before.keys() | snapshot(store, name).keys()) if before else self._turns_since(0)
            self.breaker.damages.append(done)
            ended = self.mesh.pid(name) != pid
            live = "it ended" if ended else self._told(name, 0)
            if not ended:
                self.mesh.signal(name, signal.SIGKILL)
                happens(lambda: not self.mesh.up(name), UP)
            self.mesh.wait_up((name,), UP)
        if what in ("store", "wal"):
            done.at_risk |= on_its_way | self._turns_since(begin)
        return f"{done}: while up {live or 'nothing'}; then {self._tells(name, done)}"

    def _tells(self, name: str, done: Damage) -> str:
        told = self._told(name)
        self._damages.append((done, told))
        if name == "trainer" and "state_damaged" in told:
            self._versions_at_risk |= {int(entry["version"]) for entry in self.log.entries if entry.get("version")}
            self._versions_at_risk |= set(ask(self.mesh.home, ()).kept)
        return told or "nothing"

    def _told(self, name: str, seconds: float = _TOLD) -> str:
        """What a component's alarms say; waits for one."""
        said: list[str] = []

        def asked() -> bool:
            record = read_record(self.mesh.home, name)
            try:
                with ComponentServiceClient(record.address if record else "") as client:
                    alarms = client.get_status(timeout=10).status.alarms
                    said[:] = [f"{alarm.name}: {alarm.message}" for alarm in alarms]
            except MeshError:
                return False
            return bool(said)

        happens(asked, seconds, 0.5)
        return "; ".join(said)

    def _unsettled(self) -> set[str]:
        """Answered turns that have no final fate yet: they may come into the store after it was looked at."""
        answered = answered_turns(self.log.entries, ())
        left = set(answered)

        def asked() -> bool:
            try:
                left.intersection_update(unsettled(ask(self.mesh.home, answered), answered))
            except MeshError:
                return False
            return True

        happens(asked, UP, 0.5)
        return left

    def _turns_since(self, begin: int) -> set[str]:
        return {str(entry["turn_id"]) for entry in self.log.entries[begin:] if "turn_id" in entry}

    def _pid(self, name: str) -> int:
        pid = self.mesh.pid(name)
        if pid is None:
            raise OSError(f"{name} does not run")
        return pid

    @contextmanager
    def _excused(self, name: str) -> Iterator[None]:
        """The policy server may refuse requests meanwhile, and, when it ends, until it is up again."""
        window = Window(time.monotonic(), self.mesh.pid(name))
        if name == "policy_server":
            self.mesh.windows.append(window)
        try:
            yield
        finally:
            if window.pid is not None and self.mesh.pid(name) == window.pid and lives(window.pid):
                window.end = time.monotonic()


_KINDS: dict[str, Callable[[Harms, str], str]] = {
    "full disk": Harms._full_disk, "slow disk": Harms._slow_disk, "read-only disk": Harms._read_only_disk,
    "few files": Harms._few_files, "little memory": Harms._little_memory, "no memory": Harms._no_memory}
KINDS = (*_KINDS, _NO_SHM, "damage while down", "damage while up")
