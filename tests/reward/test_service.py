"""Taking transitions, judging them, surviving restarts and outages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import JournalConfig
from openclaw_rl.observability.journal import Journal
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.interface import Judge, VoteError
from openclaw_rl.reward.judges.rules import RulesJudge
from openclaw_rl.reward.panel import Panel
from openclaw_rl.reward.queue import SCHEMA, JudgeQueue
from openclaw_rl.reward.service import JudgeService
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import common_pb2, component_pb2, turn_pb2
from tests.reward.factory import feedback, transition
from tests.support.waiting import eventually

ACCEPTED, DUPLICATE, REJECTED = (common_pb2.ACK_STATUS_ACCEPTED, common_pb2.ACK_STATUS_DUPLICATE,
                                 common_pb2.ACK_STATUS_REJECTED)


class Model:
    """A judge that is not instant: `vote` waits for `gate`, then gives +1, or raises `error`."""

    name = "model"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[str] = []

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        self.asked.append(transition.turn.turn_id)
        if transition.turn.turn_id != "probe":
            await self.gate.wait()
        if self.error:
            raise self.error
        return turn_pb2.Vote(score=1)


class Desk:
    """A service over a file; `again()` is a new process over the same file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder / "logs", JournalConfig())
        self.open: list[Database] = []

    def service(self, judge: Judge, *, keep: int = 1000, **settings: Any) -> JudgeService:
        store = Database(self.folder / "state.db", schema=SCHEMA)
        self.open.append(store)
        self.samples = Outbox(store, "samples")
        guard = None if isinstance(judge, RulesJudge) else RulesJudge()
        return JudgeService(Panel(judge, 1, 5, guard), JudgeQueue(store, self.samples, keep), Broadcast(),
                            self.journal, workers=2, **settings)

    def sent(self) -> list[turn_pb2.Sample]:
        return [turn_pb2.Sample.FromString(row.payload) for row in self.samples.window(0, 10_000, 2**30)]

    def close(self) -> None:
        self.journal.close()
        for store in self.open:
            store.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path)
    yield found
    found.close()


def statuses(acks: list[common_pb2.Ack]) -> list[int]:
    return [ack.status for ack in acks]


async def test_rules_judge_within_the_batch(desk: Desk) -> None:
    service = desk.service(RulesJudge())
    acks = await service.accept([transition("thanks", "a"), transition("that's wrong", "b"), transition("ok", "c"),
                           transition("thanks", "a")])
    assert statuses(acks) == [ACCEPTED, ACCEPTED, ACCEPTED, DUPLICATE]
    assert [(s.judgement.turn_id, s.judgement.score) for s in desk.sent()] == [("a", 1), ("b", -1), ("c", 0)]
    assert desk.sent()[0].transition.turn.policy_version == 7
    assert service.queue.waiting == 0
    assert dict(service.queue.counters) == {
        "transitions": 3, "judgements": 3, "votes": 3, "votes_failed": 0, "judgements_failed": 0, "positive": 1,
        "negative": 1, "neutral": 1}


async def test_judgements_are_listed_in_the_order_asked_for_and_bounded(desk: Desk) -> None:
    service = desk.service(RulesJudge(), keep=500)
    for begin in range(0, 2000, 100):
        await service.accept([transition("thanks", f"t{i}") for i in range(begin, begin + 100)])
    found = service.queue.judgements(["t1999", "unknown", "t1998", "t1999"])
    assert [judgement.turn_id for judgement in found] == ["t1999", "t1998"]
    assert len(service.queue.judgements([f"t{i}" for i in range(2000)])) < 1500


async def test_what_can_not_be_judged_is_rejected_and_the_rest_goes_on(desk: Desk) -> None:
    side = transition("thanks", "side")
    side.turn.turn_class = turn_pb2.TURN_CLASS_SIDE
    acks = await desk.service(RulesJudge()).accept([transition("x", ""), side, transition("x", "i" * 500),
                                              transition("thanks", "good")])
    assert statuses(acks) == [REJECTED, REJECTED, REJECTED, ACCEPTED]
    assert "turn.turn_id" in acks[0].reason and "only main turns are judged" in acks[1].reason
    assert len(desk.sent()) == 1


async def test_a_rule_that_breaks_is_a_failed_judgement(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RulesJudge, "vote_now", lambda *_: 1 / 0)
    await desk.service(RulesJudge()).accept([transition("thanks", "a")])
    sample = desk.sent()[0]
    assert sample.judgement.failed and "ZeroDivisionError" in sample.judgement.votes[0].error


async def test_the_journal_has_score_and_hint(desk: Desk) -> None:
    await desk.service(RulesJudge()).accept([transition("too long, answer in one sentence", "a")])
    desk.journal.flush()
    text = next((desk.folder / "logs").glob("rl_trace_*")).read_text()
    assert "[SESSION: s1] [VERSION: 7] [PRM] Score: -1 (dissatisfied)" in text
    assert '[OPD] Hint: "Answer in one sentence."' in text


async def test_a_model_judges_from_the_queue(desk: Desk) -> None:
    service = desk.service(Model())
    service.start()
    await service.accept([transition("x", str(i)) for i in range(10)])
    await eventually(lambda: len(desk.sent()) == 10)
    assert service.queue.waiting == 0 and service.status().gauges["queue"] == 0
    await service.stop()


async def test_workers_judge_at_the_same_time_and_no_turn_twice(desk: Desk) -> None:
    model = Model()
    model.gate.clear()
    service = desk.service(model)
    service.start()
    await service.accept([transition("x", str(i)) for i in range(5)])
    await eventually(lambda: len(model.asked) == 3)  # the probe and one for each worker
    model.gate.set()
    await eventually(lambda: len(desk.sent()) == 5)
    assert sorted(model.asked) == sorted(["probe", *map(str, range(5))])
    await service.stop()


async def test_a_killed_judge_goes_on_where_it_was(desk: Desk) -> None:
    model = Model()
    model.gate.clear()
    first = desk.service(model)
    first.start()
    await first.accept([transition("x", str(i)) for i in range(6)])
    await eventually(lambda: len(model.asked) == 3)
    await first.stop()  # cancelled in the middle of two votes: nothing of them is stored
    second = desk.service(Model())
    assert second.queue.waiting == 6
    assert statuses(await second.accept([transition("x", "3")])) == [DUPLICATE]
    second.start()
    await eventually(lambda: len(desk.sent()) == 6)
    assert second.queue.counters["judgements"] == 6 and second.queue.counters["transitions"] == 6
    await second.stop()


async def test_a_transition_that_breaks_the_judge_is_no_obstacle_for_the_others(desk: Desk) -> None:
    service = desk.service(Model())
    await service.accept([transition("thanks", turn_id) for turn_id in ("bad", "a", "b", "c")])
    with desk.open[0].transaction() as db:
        db.execute("UPDATE transitions SET turn_id = CAST(x'ff' AS TEXT) WHERE turn_id = 'bad'")
    service.start()
    await eventually(lambda: len(desk.sent()) == 3)
    assert service.queue.waiting == 1  # and the alarm will tell
    await service.stop()


@pytest.mark.parametrize("again", [Model, RulesJudge])
async def test_a_disk_that_cant_be_read_for_a_while_ends_no_work(
        desk: Desk, again: Callable[[], Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.service(Model()).accept([transition("thanks", "a"), transition("thanks", "b")])
    service = desk.service(again())
    read, failures = service.queue.oldest, iter(range(3))

    def oldest(*args: Any, **kwargs: Any) -> list[tuple[int, float]]:
        if next(failures, None) is not None:
            raise StorageError.of(desk.folder, OSError("input/output error"))
        return read(*args, **kwargs)

    monkeypatch.setattr(service.queue, "oldest", oldest)
    service.start()
    await eventually(lambda: len(desk.sent()) == 2)
    await service.stop()


async def test_rules_take_over_what_a_model_left(desk: Desk) -> None:
    model = Model(VoteError("down", outage=True))
    first = desk.service(model)
    first.start()
    await first.accept([transition("thanks", str(i)) for i in range(200)])
    await eventually(lambda: first.probe.done)
    await first.stop()
    second = desk.service(RulesJudge())
    second.start()
    await eventually(lambda: second.queue.waiting == 0)
    assert [s.judgement.score for s in desk.sent()] == [1] * 200
    await second.stop()


async def test_an_outage_at_the_start_holds_the_queue_and_is_told(desk: Desk) -> None:
    model = Model(VoteError("the API can't be reached", outage=True))
    service = desk.service(model, probe_seconds=0.1)
    assert service.status().state == component_pb2.COMPONENT_STATE_STARTING
    service.start()
    await service.accept([transition("x", "a")])
    await eventually(lambda: service.probe.done)
    status = service.status()
    assert status.state == component_pb2.COMPONENT_STATE_DEGRADED
    assert "judge model does not work: the API can't be reached; 1 turns wait, each for at most 15 min" in status.detail
    assert [alarm.name for alarm in status.alarms] == ["judge_failing"]
    await eventually(lambda: model.asked.count("probe") >= 3)
    assert model.asked.count("a") == 0 and not desk.sent()
    model.error = None
    await eventually(lambda: len(desk.sent()) == 1)
    assert desk.sent()[0].judgement.score == 1
    assert service.status().state == component_pb2.COMPONENT_STATE_RUNNING
    await service.stop()


async def test_an_outage_later_returns_turns_to_the_queue(desk: Desk) -> None:
    model = Model()
    service = desk.service(model, probe_seconds=0.05)
    service.start()
    await eventually(lambda: service.probe.done)
    model.error = VoteError("down", outage=True)
    await service.accept([transition("x", "a")])
    await eventually(lambda: service.probe.problem)
    assert not desk.sent()
    model.error = None
    await eventually(lambda: desk.sent())
    assert not desk.sent()[0].judgement.failed
    await service.stop()


async def test_a_turn_waits_only_so_long(desk: Desk) -> None:
    service = desk.service(Model(VoteError("down", outage=True)), hold_seconds=0.2)
    service.start()
    started = time.monotonic()
    await service.accept([transition("x", "a"), transition("", "b", feedback=[feedback(-1.0, "too long")])])
    await eventually(lambda: len(desk.sent()) == 2)
    assert time.monotonic() - started >= 0.19
    samples = {sample.judgement.turn_id: sample.judgement for sample in desk.sent()}
    assert samples["a"].failed and "not judged within" in samples["a"].votes[0].error
    assert not samples["b"].failed and samples["b"].score == -1, "the rules are certain of it"
    assert service.queue.counters["judgements_failed"] == 1
    await service.stop()


async def test_a_bad_vote_of_a_judge_that_works_is_a_failed_judgement(desk: Desk) -> None:
    model = Model()
    service = desk.service(model)
    service.start()
    await eventually(lambda: service.probe.done)
    model.error = VoteError("no score in the answer")
    await service.accept([transition("x", "a")])
    await eventually(lambda: desk.sent())
    assert desk.sent()[0].judgement.failed
    assert service.status().state == component_pb2.COMPONENT_STATE_RUNNING
    await service.stop()


@pytest.mark.parametrize("judge", [Model, RulesJudge])
async def test_a_damaged_row_is_set_aside_and_the_rest_goes_on(desk: Desk, judge: Callable[[], Judge]) -> None:
    first = desk.service(Model())
    await first.accept([transition("thanks", id) for id in ("a", "b", "c")])
    with desk.open[0].transaction() as db:
        [(payload,)] = db.execute("SELECT payload FROM transitions WHERE turn_id = 'a'").fetchall()
        flipped = payload.replace(b"recursion", b"precision")  # it can still be read
        db.execute("UPDATE transitions SET payload = ? WHERE turn_id = 'a'", (flipped,))
        db.execute("UPDATE transitions SET payload = ? WHERE turn_id = 'b'", (b"\xff\xff\xff",))
    await first.stop()
    service = desk.service(judge())
    service.start()
    await eventually(lambda: service.queue.waiting == 0)
    judged = {sample.judgement.turn_id: sample for sample in desk.sent()}
    assert [judged[id].judgement.failed for id in "abc"] == [True, True, False]
    assert "damaged" in judged["a"].judgement.votes[0].error and not judged["a"].transition.turn.messages
    assert judged["a"].transition.turn.turn_id == "a", "it gets a fate"
    assert [id for id, _ in service.queue.quarantine.recent()] == ["b", "a"]
    assert [alarm.name for alarm in service.status().alarms] == ["transitions_set_aside"]
    await service.stop()


async def test_a_damaged_judgement_is_not_told(desk: Desk) -> None:
    service = desk.service(RulesJudge())
    await service.accept([transition("thanks", "a"), transition("thanks", "b")])
    with desk.open[0].transaction() as db:
        db.execute("UPDATE judgements SET payload = CAST(replace(payload, 'rules', 'fools') AS BLOB)"
                   " WHERE turn_id = 'a'")
    assert [judgement.turn_id for judgement in service.queue.judgements(["a", "b"])] == ["b"]


async def test_a_second_transition_of_a_turn_is_refused_and_kept_aside(desk: Desk) -> None:
    service = desk.service(RulesJudge())
    await service.accept([transition("thanks", "a")])
    again, forged = await service.accept([transition("thanks", "a"), transition("that's wrong", "a")])
    assert statuses([again, forged]) == [DUPLICATE, REJECTED]
    assert forged.reason == ("turn.turn_id: this id was used before, for a message with another content; the first "
                             "one stands")
    assert [s.judgement.score for s in desk.sent()] == [1]
    [alarm] = service.status().alarms
    assert alarm.name == "transitions_set_aside" and "`openclaw-rl set-aside`" in alarm.message


@pytest.mark.parametrize("turn_id", ["", "x" * 300, "a\nb"])
async def test_impossible_ids_are_refused_and_kept_aside(desk: Desk, turn_id: str) -> None:
    service = desk.service(RulesJudge())
    [ack] = await service.accept([transition("thanks", turn_id)])
    assert ack.status == REJECTED and ack.reason.startswith("turn.turn_id: ")
    assert service.queue.quarantine.count == 1 and not desk.sent()


async def test_judgements_that_fail_again_and_again_are_an_alarm(desk: Desk) -> None:
    model = Model()
    service = desk.service(model)
    service.start()
    await eventually(lambda: service.probe.done)
    model.error = VoteError("no score in the answer")
    for count in (19, 20):
        await service.accept([transition("x", f"t{i}") for i in range(count)])
        await eventually(lambda: len(desk.sent()) == count)  # noqa: B023
        model.asked.clear()
        assert [alarm.name for alarm in service.status().alarms] == ["judgements_failed"] * (count == 20)
    assert "20 of the last 20 judgements failed" in service.status().detail
    assert "no score in the answer" in service.status().detail
    model.error = None
    await service.accept([transition("x", f"good{i}") for i in range(20)])
    await eventually(lambda: len(desk.sent()) == 40)
    assert not service.status().alarms and service.status().state == component_pb2.COMPONENT_STATE_RUNNING
    await service.stop()


async def test_transitions_that_wait_long_are_an_alarm(desk: Desk) -> None:
    service = desk.service(Model())
    await service.accept([transition("x", "a")])
    assert not service.status().alarms
    with desk.open[0].transaction() as db:
        db.execute("UPDATE transitions SET received = received - 400")
    [alarm] = desk.service(Model()).status().alarms  # after a restart
    assert alarm.name == "transitions_waiting" and "the oldest for 7 min" in alarm.message


async def test_a_slow_watcher_loses_the_oldest_and_blocks_nobody() -> None:
    broadcast = Broadcast(backlog=3)
    everything, one_session = broadcast.subscribe(), broadcast.subscribe("s2")
    slow, quick = asyncio.create_task(anext(everything)), asyncio.create_task(anext(one_session))
    await asyncio.sleep(0)
    for i in range(10):
        broadcast.publish("s2" if i == 7 else "s1", turn_pb2.Judgement(turn_id=str(i)))
    assert (await slow)[1].turn_id == "7"
    assert (await quick) == ("s2", turn_pb2.Judgement(turn_id="7"))
    assert [(await anext(everything))[1].turn_id for _ in range(2)] == ["8", "9"]
    await everything.aclose()
    await one_session.aclose()
    assert not broadcast._subscribers


async def test_500_turns_a_second_are_judged_with_time_to_spare(desk: Desk) -> None:
    """In CPU time of this process, since the machine may be busy."""
    service = desk.service(RulesJudge())
    batches = [[transition("That's too long, answer in one sentence, no markdown", f"{begin}-{i}") for i in range(50)]
               for begin in range(40)]
    started = time.process_time()
    for batch in batches:
        await service.accept(batch)
    rate = 2000 / (time.process_time() - started)
    print(f"{rate:.0f} turns per second of one core")
    assert rate > 1000
