"""One hop of the ring against a neighbour that is well, down, slow, forgetful or broken."""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from openclaw_rl.delivery import sender as sender_module
from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import from_rpc_error
from openclaw_rl.rpc.field_count import MOST_STREAMED_FIELDS
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import common_pb2, judge_pb2, turn_pb2
from tests.delivery.neighbour import Neighbour, sender, transition
from tests.support.waiting import eventually


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    store = Database(tmp_path / "a" / "state.db")
    yield store
    store.close()


@pytest.fixture
def outbox(store: Database) -> Outbox:
    return Outbox(store, "transitions")


@pytest.fixture
async def neighbour(tmp_path: Path) -> AsyncIterator[Neighbour]:
    neighbour = Neighbour(tmp_path / "b")
    yield neighbour
    await neighbour.stop()
    neighbour.store.close()


def put(outbox: Outbox, numbers: Iterable[int]) -> list[str]:
    ids = [f"t{i}" for i in numbers]
    for id in ids:
        outbox.put(id, transition(id, "x" * 100))
    return ids


async def test_all_arrive_in_order_in_batches_and_the_outbox_is_empty(outbox: Outbox, neighbour: Neighbour) -> None:
    await neighbour.start()
    before = put(outbox, range(300))  # waiting when the sender starts
    acked: list[str] = []
    out = sender(outbox, neighbour, on_acked=acked.extend)
    out.start()
    await eventually(lambda: outbox.stats().pending == 0)
    after = put(outbox, range(300, 400))  # the sender is woken by each
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == before + after == acked
    assert max(neighbour.batches) > 1 and neighbour.duplicates == 0
    stats = outbox.stats()
    assert (stats.delivered, stats.pending_bytes, stats.connected) == (400, 0, False)
    assert not stats.HasField("oldest_age")


async def test_messages_that_come_fast_share_requests(outbox: Outbox, neighbour: Neighbour) -> None:
    await neighbour.start()
    out = sender(outbox, neighbour)
    out.start()
    await eventually(lambda: outbox.stats().connected)
    for i in range(300):
        put(outbox, [i])
        await asyncio.sleep(0.001)
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert len(neighbour.batches) < 200


async def test_a_full_disk_of_the_senders_own_is_told_as_such(store: Database, outbox: Outbox, neighbour: Neighbour,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    await neighbour.start()
    out = sender(outbox, neighbour)
    put(outbox, range(3))
    settle = outbox.acknowledge
    broken = StorageError.of(store.path, sqlite3.OperationalError("disk I/O error"))
    monkeypatch.setattr(outbox, "acknowledge", Mock(side_effect=[broken, broken, broken]))
    out.start()
    await eventually(lambda: "disk I/O error" in outbox.last_error)
    assert outbox.last_error.startswith(str(store.path)) and outbox.stats().pending == 3
    monkeypatch.setattr(outbox, "acknowledge", settle)
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert len(neighbour.got()) == 3


async def test_a_neighbour_that_starts_late_and_moves(outbox: Outbox, neighbour: Neighbour) -> None:
    out = sender(outbox, neighbour)
    out.start()
    ids = put(outbox, range(50))
    await eventually(lambda: outbox.last_error != "")
    stats = outbox.stats()
    assert (stats.pending, stats.connected) == (50, False) and stats.pending_bytes > 50 * 100
    assert stats.HasField("oldest_age") and "has not started" in stats.last_error
    await neighbour.start()
    await eventually(lambda: outbox.stats().pending == 0)
    assert outbox.stats().connected and outbox.stats().last_error == ""

    old = neighbour.address
    await neighbour.stop()  # its old address stays known: the record of a killed process
    ids += put(outbox, range(50, 80))
    await eventually(lambda: outbox.last_error != "")
    assert old in outbox.stats().last_error
    await neighbour.start()
    assert neighbour.address != old
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ids


async def test_a_stream_that_breaks_before_its_acks_loses_and_doubles_nothing(outbox: Outbox,
                                                                              neighbour: Neighbour) -> None:
    neighbour.break_after = 70
    await neighbour.start()
    out = sender(outbox, neighbour, batch=16)
    out.start()
    ids = put(outbox, range(500))
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ids and neighbour.duplicates > 0


async def test_lost_acks_are_made_up_for(outbox: Outbox, neighbour: Neighbour) -> None:
    await neighbour.start()
    neighbour.drop_acks_of = {"t3", "t40"}
    out = sender(outbox, neighbour, ack_timeout=0.3)
    out.start()
    ids = put(outbox, range(100))
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ids and neighbour.duplicates >= 2


async def test_a_silent_neighbour_gets_no_more_than_the_window(outbox: Outbox, neighbour: Neighbour) -> None:
    neighbour.silent = True
    await neighbour.start()
    out = sender(outbox, neighbour, window=40, batch=16, ack_timeout=1)
    out.start()
    ids = put(outbox, range(200))
    await eventually(lambda: neighbour.received == 40)
    await eventually(lambda: "no answer to t0" in outbox.last_error)
    assert neighbour.received == 40 and outbox.stats().pending == 200
    neighbour.silent = False
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ids


async def test_late_acks_break_no_stream_and_slow_no_put(outbox: Outbox, neighbour: Neighbour) -> None:
    neighbour.delay = 0.15
    await neighbour.start()
    out = sender(outbox, neighbour, window=8, batch=4, ack_timeout=0.5)  # the last of a window waits for 0.3 s
    out.start()
    ids, costs = [f"t{i}" for i in range(32)], []
    for id in ids:
        begin = time.perf_counter()
        outbox.put(id, transition(id, "x" * 5000))
        costs.append(time.perf_counter() - begin)
    assert sorted(costs)[len(costs) // 2] < 0.002 and outbox.stats().pending > 16
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ids and neighbour.duplicates == 0


async def test_an_outage_is_logged_once(outbox: Outbox, neighbour: Neighbour, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, sender_module.__name__)
    neighbour.address = "127.0.0.1:1"
    out = sender(outbox, neighbour)
    out.start()
    await eventually(lambda: outbox.last_error != "")
    await asyncio.sleep(0.7)  # several attempts
    await out.stop()
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


async def test_a_rejected_message_is_kept_aside_with_the_reason(store: Database, neighbour: Neighbour) -> None:
    refused: list[tuple[str, str]] = []
    outbox = Outbox(store, "transitions", on_rejected=lambda db, id, reason: refused.append((id, reason)))
    neighbour.reject = {"t1"}
    await neighbour.start()
    out = sender(outbox, neighbour)
    out.start()
    put(outbox, range(3))
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ["t0", "t2"] and refused == outbox.rejected() == [("t1", "not wanted")]
    assert (outbox.stats().rejected, outbox.stats().delivered) == (1, 2)
    assert Outbox(store, "transitions").stats().rejected == 1
    assert store.query("SELECT payload FROM outbox_transitions_rejected")[0][0] == transition("t1", "x" * 100)


async def test_a_message_that_cant_be_sent_is_no_obstacle(outbox: Outbox, neighbour: Neighbour) -> None:
    await neighbour.start()
    outbox.put("good1", transition("good1"))
    outbox.put("garbage", b"\xff\xff\xff")
    outbox.put("huge", transition("huge", "x" * 17 * 2**20))
    outbox.put("many", transition("many") + turn_pb2.Transition(
        turn=turn_pb2.Turn(messages=[turn_pb2.ChatMessage()] * MOST_STREAMED_FIELDS)).SerializeToString())
    outbox.put("good2", transition("good2"))
    out = sender(outbox, neighbour)
    out.start()
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ["good1", "good2"]
    reasons = dict(outbox.rejected())
    assert "can't be read" in reasons["garbage"] and "bytes, more than" in reasons["huge"]
    assert "it has more than" in reasons["many"]


async def test_a_request_of_too_many_fields_ends_its_own_stream_only(outbox: Outbox, neighbour: Neighbour) -> None:
    await neighbour.start()
    assert neighbour.address is not None
    out = sender(outbox, neighbour)
    out.start()
    put(outbox, range(3))
    await eventually(lambda: outbox.stats().pending == 0)
    async with connect(neighbour.address) as channel:
        for fields in (MOST_STREAMED_FIELDS + 1, 2 * MOST_STREAMED_FIELDS):
            call = channel.stream_stream("/openclaw_rl.v1.JudgeService/JudgeTransitions")()
            await call.write(b"\x0a\x00" * fields)  # transitions without content
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            refused = from_rpc_error(caught.value)
            assert refused.reason == "INVALID_ARGUMENT"
            assert f"more than {MOST_STREAMED_FIELDS} fields" in refused.message
    assert outbox.connected
    put(outbox, range(3, 6))
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == [f"t{i}" for i in range(6)]


async def test_large_messages_go_in_several_requests(outbox: Outbox, neighbour: Neighbour) -> None:
    await neighbour.start()
    for i in range(6):
        outbox.put(f"t{i}", transition(f"t{i}", "x" * 7 * 2**20))  # two of them are still allowed, three are not
    out = sender(outbox, neighbour)
    out.start()
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == [f"t{i}" for i in range(6)]


async def test_a_message_that_the_receiver_stumbles_over_is_no_obstacle(outbox: Outbox, neighbour: Neighbour,
                                                                        caplog: pytest.LogCaptureFixture) -> None:
    neighbour.stumble = {"t5"}
    await neighbour.start()
    out = sender(outbox, neighbour)
    out.start()
    put(outbox, range(20))
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == [f"t{i}" for i in range(20) if i != 5]
    [(id, reason)] = outbox.rejected()
    assert id == "t5" and "incident" in reason and reason.rpartition(" ")[2] in caplog.text
    assert "stumbled over t5" in caplog.text


async def test_a_receiver_that_cant_store_just_now_is_tried_again(outbox: Outbox, neighbour: Neighbour) -> None:
    neighbour.unavailable_times = 2
    await neighbour.start()
    out = sender(outbox, neighbour)
    out.start()
    ids = put(outbox, range(5))
    await eventually(lambda: "busy on order" in outbox.last_error)
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.got() == ids


async def test_a_restarted_sender_sends_what_was_left(tmp_path: Path, neighbour: Neighbour) -> None:
    store = Database(tmp_path / "c" / "state.db")
    ids = put(Outbox(store, "transitions"), range(30))
    store.close()
    await neighbour.start()
    store = Database(tmp_path / "c" / "state.db")
    outbox = Outbox(store, "transitions")
    assert outbox.stats().pending == 30
    out = sender(outbox, neighbour)
    out.start()
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    store.close()
    assert neighbour.got() == ids


async def test_two_streams_to_one_receiver(outbox: Outbox, neighbour: Neighbour, tmp_path: Path) -> None:
    await neighbour.start()
    other_store = Database(tmp_path / "c" / "state.db", durability="strict")
    other = Outbox(other_store, "transitions")
    outs = [sender(outbox, neighbour), sender(other, neighbour)]
    for out in outs:
        out.start()
    for i in range(100):
        put(outbox, [i])
        put(other, [i + 50])  # half of them are the other one's too
        await asyncio.sleep(0)
    await eventually(lambda: outbox.stats().pending == other.stats().pending == 0)
    for out in outs:
        await out.stop()
    other_store.close()
    assert sorted(neighbour.got()) == sorted({f"t{i}" for i in range(150)})


async def test_everything_at_once(outbox: Outbox, neighbour: Neighbour) -> None:
    """Breaks, lost acks, restarts and rejections at random: each message has one fate."""
    chance = random.Random(7)
    ids = [f"t{i}" for i in range(1500)]
    neighbour.break_after = 97
    neighbour.drop_acks_of = set(chance.sample(ids, 20))
    neighbour.reject = set(chance.sample(ids, 30))
    await neighbour.start()
    out = sender(outbox, neighbour, window=64, batch=16, ack_timeout=0.3)
    out.start()
    for i, id in enumerate(ids):
        outbox.put(id, transition(id))
        if i % 10 == 0:
            await asyncio.sleep(0)
        if i % 500 == 250:
            await neighbour.stop()
            await neighbour.start()
    await eventually(lambda: outbox.stats().pending == 0, 30)
    await out.stop()
    got = neighbour.got()
    assert len(got) == len(set(got)) and set(got) == set(ids) - neighbour.reject
    assert {id for id, _ in outbox.rejected()} == neighbour.reject


async def test_a_neighbour_that_acks_one_message_per_stream_is_not_flooded(outbox: Outbox,
                                                                           neighbour: Neighbour) -> None:
    streams: list[float] = []
    sent = 0

    async def one_ack(request_iterator: Any, context: Any) -> Any:
        nonlocal sent
        streams.append(time.monotonic())
        request = await anext(request_iterator)
        sent += len(request.transitions)
        yield judge_pb2.JudgeTransitionsResponse(acks=[
            common_pb2.Ack(id=request.transitions[0].turn.turn_id, status=common_pb2.ACK_STATUS_ACCEPTED)])

    neighbour.JudgeTransitions = one_ack
    await neighbour.start()
    put(outbox, range(300))
    out = sender(outbox, neighbour)
    out.start()
    await asyncio.sleep(4)
    await out.stop()
    settled = 300 - outbox.stats().pending
    assert settled == len(streams) >= 3
    assert len(streams) <= 6, "pauses of 0.1, 0.2, 0.4, 0.8, 1.6 s"
    assert sent <= 64 + 8 * (len(streams) - 1), "one batch, then the few of a slow start"


async def test_pauses_begin_anew_once_a_window_was_settled(outbox: Outbox, neighbour: Neighbour) -> None:
    neighbour.break_after = 20
    await neighbour.start()
    put(outbox, range(200))
    out = sender(outbox, neighbour, window=16)
    begin = time.monotonic()
    out.start()
    await eventually(lambda: outbox.stats().pending == 0)
    await out.stop()
    assert neighbour.duplicates > 0 and time.monotonic() - begin < 5
