"""Stores stay fast as they fill: what a turn costs each of the four, counted, with few and with many turns stored."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import PrmJudgeConfig, SessionAwareness, TrainerConfig
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.queue import RECOVERY, JudgeQueue
from openclaw_rl.reward.queue import SCHEMA as JUDGE_SCHEMA
from openclaw_rl.reward.server import make_panel
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.tracker import SessionTracker
from openclaw_rl.serving import conversations
from openclaw_rl.serving.event_recorder import SCHEMA as POLICY_SCHEMA
from openclaw_rl.serving.event_recorder import TurnRecorder
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import common_pb2, environment_pb2, turn_pb2, weights_pb2
from tests.rollouts.harness import FakeJournal, answer, turn, user
from tests.support import plans
from tools.bench.filling import TABLES, fill

FEW, MANY = 1_000, 50_000
#: Share by which the cost of a turn may grow from few to many.
GROWTH = 0.1
#: Rows that an index may give for the values of its columns, on average, without being called wide.
SELECTIVE = 64


class Stores:
    """The four stores with the code that writes them, and without what is between them."""

    def __init__(self, folder: Path) -> None:
        self.policy = Database(folder / "policy.db", schema=POLICY_SCHEMA + conversations.SCHEMA)
        self.environment = Database(folder / "environment.db", schema=tables.SCHEMA, recovery=tables.RECOVERY)
        self.judge = Database(folder / "judge.db", schema=JUDGE_SCHEMA, recovery=RECOVERY)
        self._turns = Outbox(self.policy, "turns")
        self._known = conversations.Conversations(self.policy)
        self._recorder = TurnRecorder(self.policy, self._turns, also=self._known.save)
        self._transitions = Outbox(self.environment, "transitions")
        self._tracker = SessionTracker(self.environment, self._transitions, FakeJournal(), SessionAwareness())
        self._samples = Outbox(self.judge, "samples")
        self._judge = JudgeService(make_panel(PrmJudgeConfig(judge="rules")), JudgeQueue(self.judge, self._samples),
                                   Broadcast(), FakeJournal(), 1)
        self._judge._publish = lambda judged: None  # type: ignore[method-assign]  # journal, traces
        self._trainer = TrainerStore(folder / "trainer.db", "group", TrainerConfig())

    @property
    def databases(self) -> dict[str, Database]:
        return {"policy": self.policy, "environment": self.environment, "judge": self.judge,
                "trainer": self._trainer.database}

    def close(self) -> None:
        for database in self.databases.values():
            database.close()

    def talk(self, session: str, turns: int, said: str = "hello") -> None:
        """A conversation, each turn of it all the way round the ring."""
        messages: list[turn_pb2.ChatMessage] = []
        for i in range(turns):
            messages.append(user(f"{said} {i} of {session}"))
            record = turn_pb2.TokenRecord(prompt_ids=[1], response_ids=[2], logprobs=[-1], model_logprobs=[-1])
            record.spans.add(version=0, begin=0, end=1)
            new = turn(f"{session}-{said}-{i}", messages, f"answer {i}", session_id=session, tokens=record,
                       session_done=i == turns - 1)
            self._known.index.remember("client", session, messages, new.response)
            self._recorder.turn_now(new).result()
            self._pass_on()
            messages.append(answer(f"answer {i}"))

    def train(self) -> None:
        """A version of all that waits: most of what is stored has its fate."""
        parent = self._trainer.versions.head
        turns = [sample.transition.turn.turn_id for sample in self._trainer.samples.batch(1000)]
        self._trainer.commit(weights_pb2.VersionManifest(version=parent + 1, parent=parent, turn_ids=turns), {})

    def _pass_on(self) -> None:
        for row in self._turns.window(0, 64, 2**20):
            self._turns.settle(self._tracker.handle([environment_pb2.PolicyEvent.FromString(row.payload)]))
        for row in self._transitions.window(0, 64, 2**20):
            acks, _ = self._judge._accept([turn_pb2.Transition.FromString(row.payload)])
            self._transitions.settle(acks)
        for row in self._samples.window(0, 64, 2**20):
            acks = self._trainer.intake.accept([turn_pb2.Sample.FromString(row.payload)])
            assert [ack.status for ack in acks] == [common_pb2.ACK_STATUS_ACCEPTED]
            self._samples.settle(acks)
        self._trainer.samples.drop_stale()
        self._trainer.samples.drop_neutral(0, 1000)
        self._trainer.samples.pending()
        self._trainer.oldest()


@contextlib.contextmanager
def counted(stores: Stores) -> Iterator[dict[str, Counter[str]]]:
    """Count what each database does: `steps` of SQLite's virtual machine, `statements`, `commits`."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in stores.databases}
    connections = [(name, connection) for name, database in stores.databases.items()
                   for connection in (database._db, database._reader)]
    for name, connection in connections:
        count = counts[name]
        connection.set_progress_handler(lambda count=count: count.update(("steps",)), 1)  # type: ignore[misc]
        connection.set_trace_callback(lambda sql, count=count: count.update(  # type: ignore[misc]
            ("commits",) if sql == "COMMIT" else ("statements",) if sql != "BEGIN IMMEDIATE" else ()))
    try:
        yield counts
    finally:
        for _, connection in connections:
            connection.set_progress_handler(None, 0)
            connection.set_trace_callback(None)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stores of a few conversations."""
    plans.install()
    folder = tmp_path_factory.mktemp("played")
    stores = Stores(folder)
    for i in range(8):
        stores.talk(f"s{i}", 4)
    stores.talk("long", 4)
    stores.train()
    stores.close()
    return folder


def filled(played: Path, folder: Path, rows: int, one_session: str = "") -> Path:
    """A copy of the folder with so many rows in each table that grows."""
    shutil.copytree(played, folder)
    for path in folder.glob("*.db"):
        fill(path, rows, one_session=one_session)
    return folder


@pytest.mark.parametrize("one_session", ["", "long"], ids=["in many sessions", "in the same session"])
def test_a_turn_costs_the_same_however_much_is_stored(played: Path, tmp_path: Path, one_session: str) -> None:
    costs = []
    for rows in (FEW, MANY):
        stores = Stores(filled(played, tmp_path / str(rows), rows, one_session))
        try:
            stores.talk("first", 2)  # what is done once
            with counted(stores) as counts:
                stores.talk(one_session or "new", 4, said="and then")
        finally:
            stores.close()
        costs.append(counts)
    for name, few in costs[0].items():
        for what, count in few.items():
            assert abs(costs[1][name][what] - count) <= GROWTH * count, (
                f"{what} in the {name}'s store: {count} with {FEW} turns stored, {costs[1][name][what]} with {MANY}")


def test_what_a_turn_costs(played: Path, tmp_path: Path) -> None:
    """Commits and statements of one turn that comes alone; the benchmarks' goals in time rest on them."""
    stores = Stores(filled(played, tmp_path / "few", FEW))
    turns = 8
    try:
        stores.talk("first", 2)
        with counted(stores) as counts:
            stores.talk("new", turns)
    finally:
        stores.close()
    found = {name: (count["commits"] / turns, count["statements"] / turns) for name, count in counts.items()}
    most = {"policy": (2, 8), "environment": (2, 22), "judge": (2, 11), "trainer": (3, 17)}
    assert all(found[name][i] <= most[name][i] for name in most for i in range(2)), found


def test_no_statement_reads_all_that_is_stored_whatever_the_statistics(played: Path, tmp_path: Path) -> None:
    """Every statement that ran in this process so far, on filled stores, without and with SQLite's statistics; in the
    other tests `tests/support/plans.py` looks at each as it comes."""
    found = []
    for path in filled(played, tmp_path / "filled", FEW).glob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as db:
            for statistics in (False, True):
                if statistics:
                    db.execute("ANALYZE")
                for sql, parameters in plans.seen.items():
                    if len(parameters) > FEW // 20:  # a list that names a good part of what is stored here
                        continue
                    with contextlib.suppress(sqlite3.Error):  # a statement of another store
                        if (lines := plans.costly(db, sql, plans.plan(db, sql, parameters))) and not plans.allowed(sql):
                            found += [f"{path.name}: {plans.normal(sql)}: {line}" for line in lines
                                      if any(f" {table} " in f"{line} " for table in TABLES)]
    assert not found, "\n".join(found)


def test_wide_indexes_are_known(played: Path, tmp_path: Path) -> None:
    """An index that gives many rows for the values of its first columns has to be in `plans.WIDE`, so that a statement
    that comes to use it is found."""
    wide = set()
    for path in filled(played, tmp_path / "filled", 4 * FEW).glob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("ANALYZE")
            for table, index, stat in db.execute("SELECT tbl, idx, stat FROM sqlite_stat1 WHERE idx NOT NULL"):
                if table in TABLES:
                    wide |= {(index, i) for i, rows in enumerate(stat.split()[1:], 1)
                             if rows.isdecimal() and int(rows) > SELECTIVE}
    assert wide <= plans.WIDE.keys(), f"not in WIDE: {sorted(wide - plans.WIDE.keys())}"
