"""A forgotten session leaves the trainer, and with it what the versions learned from it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.privacy import Target
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.forget_service import TrainerForgetter
from openclaw_rl.training.learner import Learner
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.reasons import VersionState, VersionStatus
from openclaw_rl.v1 import common_pb2, component_pb2, policy_pb2, trainer_pb2, turn_pb2, weights_pb2
from tests.privacy.test_forgetting import MARK, found
from tests.support.file_guard import no_file_on_the_loop
from tests.support.waiting import eventually
from tests.training.fakes import FakeBackend, make_sample
from tests.training.test_service import FakePublisher as _FakePublisher
from tests.training.test_service import trainer

CONFIG = TrainerConfig(min_samples=1, max_per_session=100, max_per_branch=100)
TRAINED, DROPPED, PENDING = (trainer_pb2.SAMPLE_FATE_TRAINED, trainer_pb2.SAMPLE_FATE_DROPPED,
                             trainer_pb2.SAMPLE_FATE_PENDING)


class Rig:
    """A learner over a store; `step` trains a version on samples, each "TURN" of the session of its first letter."""

    def __init__(self, root: Path, model: Path, keep: int = 10) -> None:
        self.root = root
        FakeBackend.reset()
        self.store = TrainerStore(root / "state.db", "group", CONFIG)
        self.learner = Learner(CONFIG, self.store, root, lambda: model, keep, FakeBackend)
        self.learner.open()

    def step(self, *turn_ids: str) -> int | None:
        self.store.intake.accept([sample(turn_id) for turn_id in turn_ids])
        manifest = self.learner.train()
        if not isinstance(manifest, weights_pb2.VersionManifest):
            return None
        self.learner.tidy(set())
        return manifest.version

    def forget(self, session: str, before: float | None = None, turn_ids: frozenset[str] = frozenset(),
               usable: set[int] | None = None):
        target = Target(session, before or time.time() + 1, turn_ids)
        done = self.store.forget(target, usable or self.learner.usable())
        self.learner.delete(done.void)
        return done

    def fates(self, *turn_ids: str) -> list[tuple[int, int, str]]:
        return [(s.fate, s.version, s.reason) for s in self.store.samples.statuses(turn_ids)]

    def history(self) -> list[str]:
        """Turns of the versions that the head builds on, oldest first."""
        return [turn for version in reversed(self.store.versions.lineage(self.store.versions.head))
                for turn in self.store.versions.get(version).manifest.turn_ids]

    def in_balance(self) -> bool:
        """Each accepted sample is counted once, as what it is."""
        counts = self.store.counters.all()
        dropped = sum(count for name, count in counts.items() if name.startswith("dropped:"))
        pending = self.store.samples.pending().total
        return counts["accepted"] == counts.get("trained", 0) + dropped + pending and min(counts.values()) >= 0


def sample(turn_id: str, score: int = -1) -> turn_pb2.Sample:
    return make_sample(turn_id, score, session=turn_id[0], words=f"{MARK} of {turn_id[0] * 9}")


@pytest.fixture
def rig(tmp_path: Path, model: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, model)
    yield rig
    rig.store.close()


def test_versions_that_knew_a_turn_are_rebuilt_without_it(rig: Rig) -> None:
    rig.step("b1")
    rig.step("a1", "b2")
    rig.step("c1")
    digests = {v: rig.learner.versions.manifest(v).digest for v in (1, 2, 3)}
    done = rig.forget("a")
    assert (done.void, done.base, done.again, done.lost) == ([2, 3], 1, 2, 0) and done.target.turn_ids == {"a1"}
    assert rig.store.versions.head == 1 and rig.learner.versions.versions() == [0, 1]
    assert rig.learner.usable() == {0, 1}
    assert rig.fates("a1", "b1", "b2", "c1") == [(DROPPED, 0, "forgotten: its session"), (TRAINED, 1, ""),
                                                 (PENDING, 0, ""), (PENDING, 0, "")]
    assert rig.in_balance() and rig.store.samples.rebuilding() == 2
    assert rig.step() == 4
    manifest = rig.learner.versions.manifest(4)
    assert (manifest.parent, list(manifest.turn_ids)) == (1, ["b2", "c1"]) and manifest.digest not in digests
    assert rig.history() == ["b1", "b2", "c1"], "each once"
    assert rig.store.samples.rebuilding() == 0 and rig.in_balance()
    assert FakeBackend.created[-1].start.optimizer is None
    for version in (2, 3):
        known = rig.store.versions.get(version)
        assert known is not None and known.lost and known.status.state is VersionState.VOID


def test_what_is_void_stays_so_whatever_is_told_of_it(rig: Rig) -> None:
    rig.step("a1")
    rig.forget("a")
    rig.store.versions.activated(1, 5.0)
    rig.store.versions.note(1, VersionStatus(VersionState.REJECTED, "x"))
    rig.store.go_back(rig.store.versions.head, 0, {1: VersionStatus(VersionState.ROLLED_BACK)}, {})
    known = rig.store.versions.get(1)
    assert known is not None and known.status.state is VersionState.VOID and known.activated_at == 5.0


def test_the_second_call_finds_the_same_versions_and_changes_nothing(rig: Rig) -> None:
    rig.step("a1", "b1")
    rig.forget("a")
    assert rig.step() == 2
    done = rig.forget("a", turn_ids=frozenset({"a1"}))
    assert (done.void, done.base, done.again, done.removed["samples"]) == ([1], None, 0, 0)
    assert rig.store.versions.head == 2 and rig.in_balance() and rig.forget("b").void == [1, 2]
    assert rig.forget("a").void == [1]


def test_alone_in_its_versions_nothing_is_rebuilt(rig: Rig) -> None:
    rig.step("b1")
    rig.step("a1")
    done = rig.forget("a")
    assert (done.void, done.base, done.again, done.lost) == ([2], 1, 0, 0) and rig.step() is None


def test_content_of_pruned_versions_is_not_kept_so_they_cannot_be_rebuilt(tmp_path: Path, model: Path) -> None:
    rig = Rig(tmp_path, model, keep=1)
    for turn in ("a1", "b1", "c1", "d1"):
        rig.step(turn)
    assert rig.learner.versions.versions() == [0, 3, 4]
    done = rig.forget("a")
    assert (done.void, done.base, done.again, done.lost) == ([1, 2, 3, 4], 0, 2, 1)
    assert rig.step() == 5 and rig.history() == ["c1", "d1"]
    assert rig.fates("b1") == [(TRAINED, 2, "")] and rig.in_balance()
    rig.store.close()


def test_training_goes_back_to_a_version_that_can_be_gone_on_from(rig: Rig) -> None:
    for turn in ("b1", "c1", "a1"):
        rig.step(turn)
    done = rig.forget("a", usable={0, 1})
    assert (done.base, done.void, done.again) == (1, [3], 1), "version 2 is good, but gone; its turns come again"
    assert rig.step() == 4 and rig.history() == ["b1", "c1"]
    known = rig.store.versions.get(2)
    assert known is not None and str(known.status) == "rolled back"


def test_a_version_aside_of_the_line_is_void_and_its_turns_do_not_come_again(rig: Rig) -> None:
    rig.step("b1")
    rig.step("a1", "c1")
    rig.store.versions.move_head(1)  # an operator went back
    assert rig.step("d1") == 3
    done = rig.forget("a")
    assert (done.void, done.base) == ([2], None) and rig.store.versions.head == 3
    assert rig.store.samples.pending().total == 0


def test_samples_that_come_again_are_exempt_from_the_staleness_bound(rig: Rig) -> None:
    rig.step("a1", "b1")
    for number in range(CONFIG.max_staleness + 3):
        rig.step(f"c{number}")
    before = rig.history()
    assert len(before) == CONFIG.max_staleness + 2, "later ones, of version 0 too, are stale"
    rig.forget("a")
    rig.store.versions.raise_highest(50)
    assert rig.step() == 51 and rig.history() == before[1:]


def test_a_step_on_what_is_forgotten_meanwhile_is_void(rig: Rig) -> None:
    rig.step("b1")
    FakeBackend.during = staticmethod(lambda: rig.forget("a") and None)
    assert rig.step("a1", "b2") is None, "given up"
    FakeBackend.during = staticmethod(lambda: None)
    assert rig.step() == 2 and rig.history() == ["b1", "b2"]
    FakeBackend.during = staticmethod(
        lambda: rig.store.forget(Target("c", time.time() + 1), {0, 1, 2}) and None)  # too late to give up
    assert rig.step("c1", "b3") is None and rig.store.versions.head == 2
    FakeBackend.during = staticmethod(lambda: None)
    assert rig.step() == 3 and rig.history() == ["b1", "b2", "b3"] and rig.in_balance()


def test_what_comes_late_is_let_go_and_a_new_conversation_is_welcome(rig: Rig) -> None:
    now = time.time()
    rig.forget("a", before=now)
    late, new = sample("a1"), sample("a2")
    late.transition.turn.requested_at.FromNanoseconds(int((now - 5) * 1e9))
    new.transition.turn.requested_at.FromNanoseconds(int((now + 5) * 1e9))
    acks = rig.store.intake.accept([late, new, late])
    assert [ack.status for ack in acks] == [common_pb2.ACK_STATUS_ACCEPTED] * 3
    assert rig.fates("a1")[0][0] == DROPPED and rig.fates("a2")[0][0] == PENDING and rig.in_balance()
    assert rig.store.intake.forgot(late) and not rig.store.intake.forgot(new)
    rig.forget("a", before=now)
    assert rig.fates("a2")[0][0] == PENDING


def test_no_byte_of_it_stays_on_the_disk(rig: Rig, tmp_path: Path) -> None:
    rig.step("a1", "b1")
    rig.store.intake.accept([sample("a2"), sample("a3")])
    rig.store.intake.accept([make_sample("a3", 1, session="a", words=f"{MARK} aaaaaaaaa forged")])
    rig.forget("a")
    rig.store.database.rewrite()
    assert not found(tmp_path, "a" * 9) and found(tmp_path, "b" * 9)
    assert rig.store.samples.quarantine.count == 0
    rig.forget("b")
    rig.store.database.rewrite()
    assert not found(tmp_path, MARK)


class FakePublisher(_FakePublisher):
    def __init__(self) -> None:
        super().__init__()
        self.taken_back: set[int] = set()

    def take_back(self, versions: set[int]) -> None:
        self.taken_back |= versions

    def needed(self) -> set[int]:
        return set()


async def forget(rig, session: str) -> component_pb2.ForgetResponse:
    request = component_pb2.ForgetRequest(session_id=session)
    request.before.GetCurrentTime()
    home = Home(rig.learner._root.parent)
    return await TrainerForgetter("trainer", home, rig.store, rig.service).forget(request)


async def test_the_trainer_rebuilds_at_once_and_tells(tmp_path: Path, model: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    FakeBackend.reset()
    async with trainer(tmp_path, model) as rig:
        rig.publisher = FakePublisher()
        rig.service.delivery.publisher = rig.publisher
        await rig.submit(sample("a1"), sample("b1"))
        await eventually(lambda: rig.publisher.offered == [1])
        watch = rig.service.events.watch()

        async def forgotten() -> trainer_pb2.WatchTrainingResponse:
            """The rebuilding step may begin, and be told, before it."""
            async for event in watch:
                if event.kind == trainer_pb2.TRAINING_EVENT_KIND_FORGOTTEN:
                    return event
            raise AssertionError("it was never told")

        told = asyncio.create_task(forgotten())
        await asyncio.sleep(0)
        looked = threading.Event()
        FakeBackend.during = staticmethod(lambda: looked.wait(30))
        with no_file_on_the_loop(monkeypatch) as blocked:
            done = await forget(rig, "a")
        assert not blocked
        assert (list(done.versions), done.base_version, done.rebuilding) == ([1], 0, 1)
        looked.set()
        assert "1 samples of the versions after it are trained on again" in done.message
        event = await told
        assert (event.kind, event.version, list(event.turn_ids)) == (
            trainer_pb2.TRAINING_EVENT_KIND_FORGOTTEN, 0, ["a1"])
        await eventually(lambda: rig.publisher.offered == [1, 2])  # min_samples are 2, and one is there
        assert rig.publisher.taken_back == {1}
        assert list(rig.learner.versions.manifest(2).turn_ids) == ["b1"] and rig.store.versions.head == 2
        assert rig.status.gauges["rebuilding"] == 0
        # The policy server, which was away meanwhile, still answers with what is void: training does not follow it.
        state = policy_pb2.PolicyState(active_version=1, kept_versions=[0, 1], highest_version=1)
        await rig.service.delivery.on_state(state)
        assert rig.store.versions.head == 2 and rig.publisher.offered == [1, 2, 2]
        again = await forget(rig, "a")
        assert (list(again.versions), again.base_version) == ([1], 2)
        await watch.aclose()


def test_what_learned_from_it_goes_though_a_record_on_the_way_is_damaged(rig: Rig) -> None:
    rig.step("b1")
    for turn_id in ("a1", "c1", "d1"):
        rig.step(turn_id)
    for version in (2, 3):  # what they were made of is not known any more
        with rig.store.database.transaction() as db:
            db.execute("UPDATE versions SET manifest = ?, crc = NULL, lost = 1 WHERE version = ?",
                       (weights_pb2.VersionManifest(version=version).SerializeToString(), version))
    assert rig.forget("a").void == [2, 3, 4]


async def test_training_goes_back_no_further_than_the_policy_server_can(tmp_path: Path, model: Path) -> None:
    """The policy server tells what it keeps when it connects, and not after each version."""
    class Door:
        async def state(self) -> policy_pb2.PolicyState:
            if not kept:
                raise MeshError(grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE", "it does not answer")
            return policy_pb2.PolicyState(active_version=3, kept_versions=kept, highest_version=3)

    FakeBackend.reset()
    async with trainer(tmp_path, model) as rig:
        rig.service.delivery.publisher, rig.service._policy_client = FakePublisher(), Door()
        await rig.service.delivery.on_state(policy_pb2.PolicyState(kept_versions=[0]))
        for number, session in enumerate("abc", 1):
            await rig.submit(sample(f"{session}1"), sample(f"{session}2"))
            await eventually(lambda number=number: rig.store.versions.head == number)
        await rig.service.pause("")
        kept = [0, 2, 3]
        assert (await forget(rig, "c")).base_version == 2
        kept = []
        assert (await forget(rig, "b")).base_version == 0


async def test_while_training_is_paused_nothing_is_rebuilt_and_the_answer_says_so(tmp_path: Path, model: Path) -> None:
    FakeBackend.reset()
    async with trainer(tmp_path, model) as rig:
        rig.publisher = FakePublisher()
        rig.service.delivery.publisher = rig.publisher
        await rig.submit(sample("a1"), sample("b1"))
        await eventually(lambda: rig.publisher.offered == [1])
        await rig.service.pause("a demonstration")
        done = await forget(rig, "a")
        assert done.base_version == 0 and "when training is resumed" in done.message
        assert rig.store.versions.head == 0 and rig.store.samples.pending().total == 1
        await rig.service.resume()
        await eventually(lambda: rig.publisher.offered == [1, 2])


async def test_before_the_versions_are_known_it_is_asked_for_again(tmp_path: Path, model: Path) -> None:
    async with trainer(tmp_path, model) as rig:
        rig.service.loop.ready.clear()
        with pytest.raises(MeshError) as error:
            await forget(rig, "a")
        assert error.value.retryable
