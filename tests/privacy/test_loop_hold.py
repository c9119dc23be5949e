"""The event loop stays free while files are large, slow, full, or being forgotten in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openclaw_rl.config import JournalConfig
from openclaw_rl.delivery.receiver import receive
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy import Target
from openclaw_rl.privacy.erase import handler
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.reward.panel import Panel
from openclaw_rl.reward.queue import SCHEMA as JUDGE_SCHEMA
from openclaw_rl.reward.queue import JudgeQueue
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving import conversations
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.forget import PolicyForgetter
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import common_pb2, component_pb2, environment_pb2, turn_pb2
from tests.reward.factory import transition
from tests.rollouts.harness import Harness, as_event, user
from tests.rollouts.harness import turn as told
from tests.support.file_guard import no_file_on_the_loop
from tests.support.loop import held_at_most

#: Seconds for which the loop may be held.
LIMIT = 0.05
#: Bytes of a store that is forgotten in.
STORE = 250 * 2**20
#: Seconds that a slow disk takes for a commit.
SLOW = 0.2
FORGET = component_pb2.ForgetRequest(session_id="ann")


def turn(number: int, session: str, size: int = 100) -> turn_pb2.Turn:
    made = turn_pb2.Turn(turn_id=f"{session}{number}", session_id=session,
                         messages=[turn_pb2.ChatMessage(role="user", content="x" * size)])
    made.requested_at.FromSeconds(int(time.time()) - 100)
    return made


def fill(outbox: Outbox, make: Callable[[turn_pb2.Turn], bytes]) -> None:
    """Let 250 MB wait, a tenth of it of the session that is to go."""
    for number in range(STORE // 2**20):
        made = turn(number, "ann" if number % 10 == 0 else "bob", 2**20)
        outbox.put(made.turn_id, make(made))


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    with no_file_on_the_loop(monkeypatch) as found:
        yield found


class Policy:
    """What the policy server keeps."""

    def __init__(self, home: Home, durability: str = "group") -> None:
        self.database = Database(home.component("policy_server") / "state.db", durability,  # type: ignore[arg-type]
                                 SCHEMA + conversations.SCHEMA)
        self.outbox = Outbox(self.database, "turns")
        known = conversations.Conversations(self.database)
        self.recorder = TurnRecorder(self.database, self.outbox, also=known.save)
        self.forget = PolicyForgetter("policy_server", home, self.database, self.recorder, known).forget


class Reward:
    """What the judge keeps."""

    def __init__(self, home: Home, durability: str = "group") -> None:
        self.database = Database(home.component("prm_judge") / "state.db", durability,  # type: ignore[arg-type]
                                 JUDGE_SCHEMA)
        self.outbox = Outbox(self.database, "samples")
        self.service = JudgeService(Panel(RulesJudge(), 1, 5), JudgeQueue(self.database, self.outbox), Broadcast(),
                                    Journal(home.logs, JournalConfig()), workers=1)
        self.forget = handler(home, "prm_judge", self.database, self.service.forget)


async def test_while_the_policy_server_forgets_in_250_megabytes(tmp_path: Path, blocked: list[str]) -> None:
    policy = await asyncio.to_thread(Policy, Home(tmp_path).create())
    await asyncio.to_thread(fill, policy.outbox, lambda made: environment_pb2.PolicyEvent(
        turn=made).SerializeToString())
    recorded = 0
    with held_at_most(LIMIT):
        forgetting = asyncio.create_task(policy.forget(FORGET))
        while not forgetting.done():
            await policy.recorder.turn(turn(recorded, "eve"))
            policy.outbox.stats()
            recorded += 1
            await asyncio.sleep(0.005)
    done = await forgetting
    assert not blocked
    assert done.removed["turns"] == STORE // 2**20 // 10 and recorded > 1
    assert policy.outbox.stats().pending == STORE // 2**20 * 9 // 10 + recorded
    await asyncio.to_thread(policy.database.close)


async def test_while_the_judge_forgets_in_250_megabytes(tmp_path: Path, blocked: list[str]) -> None:
    judge = await asyncio.to_thread(Reward, Home(tmp_path).create())
    await asyncio.to_thread(fill, judge.outbox, lambda made: turn_pb2.Sample(
        transition=turn_pb2.Transition(turn=made)).SerializeToString())
    taken = 0
    with held_at_most(LIMIT):
        forgetting = asyncio.ensure_future(judge.forget(FORGET))
        while not forgetting.done():
            await judge.service.accept([transition("thanks", f"eve{taken}", session_id="eve")])
            judge.service.status()
            taken += 1
            await asyncio.sleep(0.005)
    done = await forgetting
    assert not blocked
    assert done.removed["samples"] == STORE // 2**20 // 10 and taken > 1
    await asyncio.to_thread(judge.database.close)


@contextmanager
def slow_commits(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> Iterator[None]:
    """A disk that needs `SLOW` seconds for a commit, or to say that it is full."""
    real = Database.transaction

    @contextmanager
    def slow(self: Database) -> Iterator[object]:
        with real(self) as db:
            yield db
            time.sleep(SLOW)
            if error is not None:
                raise error

    with monkeypatch.context() as patch:
        patch.setattr(Database, "transaction", slow)
        yield


async def test_while_each_commit_waits_for_a_slow_disk(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: list[str]) -> None:
    """Replies, a receiver's batches, acknowledgements and an idle session's end, in strict mode."""
    home = Home(tmp_path).create()
    policy, judge = [await asyncio.to_thread(kind, home, "strict") for kind in (Policy, Reward)]
    assert isinstance(policy, Policy) and isinstance(judge, Reward)
    harness = await asyncio.to_thread(Harness, tmp_path / "environment")

    def take(request: list[turn_pb2.Transition]) -> list[turn_pb2.Transition]:
        return request

    async def requests() -> AsyncIterator[list[turn_pb2.Transition]]:
        for number in range(3):
            yield [transition("thanks", f"t{number}")]

    with held_at_most(LIMIT), slow_commits(monkeypatch):
        async for _ in receive(requests(), take, judge.service.accept, list, max_batch=1):
            judge.service.status()
        began = time.monotonic()
        await asyncio.gather(*(policy.recorder.turn(turn(number, "ann")) for number in range(20)))
        assert time.monotonic() - began < 20 * SLOW, "turns that end together share a commit"
        await policy.outbox.acknowledge([common_pb2.Ack(id="ann1", status=common_pb2.ACK_STATUS_ACCEPTED)])
        policy.recorder.session_end(turn_pb2.SessionEnd(event_id="e", session_id="ann"))
        await harness.store.call(harness.tracker.handle, [as_event(told("t", [user("hi")], "hello"))])
        await harness.tracker.forget(Target("s", time.time()))
        await policy.database.run(lambda db: None)
    assert not blocked
    assert policy.outbox.stats().pending == 20 and judge.outbox.stats().pending == 3
    for database in (policy.database, judge.database, harness.store):
        await asyncio.to_thread(database.close)


async def test_while_the_disk_is_full_and_slow_to_say_so(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: list[str]) -> None:
    policy = await asyncio.to_thread(Policy, Home(tmp_path).create())
    full = StorageError.of(policy.database.path, OSError("full"))
    with held_at_most(LIMIT):
        with slow_commits(monkeypatch, full):
            await policy.recorder.turn(turn(0, "ann"))
            retrying = asyncio.create_task(asyncio.to_thread(policy.recorder.retry))
            began = time.monotonic()
            for number in range(1, 200):
                await policy.recorder.turn(turn(number, "ann"))
                assert "wait in memory" in policy.recorder.problem
            assert time.monotonic() - began < SLOW, "no reply waits for a full disk"
            await retrying
        await asyncio.to_thread(policy.recorder.retry)
    assert not blocked
    assert not policy.recorder.problem and policy.outbox.stats().pending == 200
    await asyncio.to_thread(policy.database.close)
