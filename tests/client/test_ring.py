"""Messages of the ring from a program of its own, to receivers that are good, absent and wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.client import AsyncDelivery, Delivery
from openclaw_rl.rpc import errors
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.v1 import common_pb2, judge_pb2, judge_pb2_grpc
from openclaw_rl.v1.turn_pb2 import Feedback, Transition, Turn
from tests.client.peers import Peer, serving


def transition(id: str) -> Transition:
    return Transition(turn=Turn(turn_id=id))


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    """Takes transitions; an id that begins with "bad" is rejected.

    Args:
        cut_after: acks after which the stream breaks.
        silent: it never answers.
        foreign: it answers other ids.
    """

    def __init__(self, cut_after: int = 0, silent: bool = False, foreign: bool = False) -> None:
        self.cut_after, self.silent, self.foreign = cut_after, silent, foreign
        self.received: list[str] = []
        self.streams = 0

    async def JudgeTransitions(self, request_iterator: Any,
                               context: Any) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        self.streams += 1
        acked = 0
        async for request in request_iterator:
            for id in (t.turn.turn_id for t in request.transitions):
                if self.silent:
                    continue
                status = (common_pb2.ACK_STATUS_REJECTED if id.startswith("bad")
                          else common_pb2.ACK_STATUS_DUPLICATE if id in self.received
                          else common_pb2.ACK_STATUS_ACCEPTED)
                self.received.append(id)
                yield judge_pb2.JudgeTransitionsResponse(acks=[common_pb2.Ack(
                    id=f"not {id}" if self.foreign else id, status=status, reason="it is bad" if "bad" in id else "")])
                acked += 1
                if acked == self.cut_after:
                    raise errors.unavailable("cut", 0.05)


async def test_all_is_acknowledged() -> None:
    judge = Judge()
    with serving(judge) as peer:
        async with AsyncDelivery("transitions", peer.address) as delivery:
            for i in range(300):
                await delivery.send(transition(f"t{i}"))
            await delivery.send(transition("t0"))
            await delivery.send(transition("bad"))
            await delivery.flush(20)
            await delivery.send(transition("t7"))
        assert judge.received[:300] == [f"t{i}" for i in range(300)], "in order"
        assert delivery.delivered >= 301 and delivery.duplicates >= 1 and delivery.waiting == 0
        assert delivery.rejected == {"bad": "it is bad"}
        with pytest.raises(TypeError, match="Feedback is not for transitions"):
            await delivery.send(Feedback(feedback_id="f"))
        with pytest.raises(MeshError, match="it must have 1 to 256"):
            await delivery.send(transition(""))
        with pytest.raises(RuntimeError, match="the delivery of transitions is not open"):
            await delivery.send(transition("late"))


@pytest.mark.parametrize(("field", "value"), [("kind", "turn"), ("window", 0), ("ack_timeout", -1)])
def test_options_that_cannot_be(field: str, value: Any) -> None:
    options: Any = {"kind": "turns", field: value}
    with pytest.raises(ValueError, match=f"{field}: .* is not allowed: must be "):
        Delivery(address="here:1", **options)


def test_blocking_ones_come_and_go_quietly() -> None:
    """In a process of its own: what asyncio has to complain of, it says as it goes along."""
    done = subprocess.run([sys.executable, "-c", _COME_AND_GO], capture_output=True, text=True, check=False, timeout=60,
                          cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


_COME_AND_GO = """
import gc, threading
from openclaw_rl.client import Delivery
from tests.client.peers import serving
from tests.client.test_ring import Judge, transition

with serving(Judge()) as peer:
    for i in range(20):
        with Delivery("transitions", peer.address) as delivery:
            delivery.send(transition(f"t{i}"))
        gc.collect()
print(sum(thread.name.startswith("deliver") for thread in threading.enumerate()))
"""


def test_what_a_cut_left_is_sent_again() -> None:
    judge = Judge(cut_after=2)
    troubles: list[MeshError] = []
    with serving(judge) as peer:
        with Delivery("transitions", peer.address, on_trouble=troubles.append) as delivery:
            for i in range(7):
                delivery.send(transition(f"t{i}"))
        assert delivery.delivered == 7 and delivery.waiting == 0 and delivery.trouble is None
        assert {f"t{i}" for i in range(7)} <= set(judge.received)
        assert judge.streams >= 3 and all("cut" in error.message for error in troubles)


async def test_a_receiver_that_comes_later() -> None:
    judge = Judge()
    peer = Peer(judge)
    try:
        peer.stop()
        async with AsyncDelivery("transitions", peer.address) as delivery:
            await delivery.send(transition("t"))
            with pytest.raises(MeshError, match=r"1 messages are not acknowledged after 0\.1 s"):
                await delivery.flush(0.1)
            await asyncio.to_thread(peer.start)
        assert judge.received == ["t"]
    finally:
        peer.close()


async def test_one_that_never_answers_is_told_and_connected_to_anew() -> None:
    judge = Judge(silent=True)
    troubles: list[MeshError] = []
    with serving(judge) as peer:
        delivery = AsyncDelivery("transitions", peer.address, ack_timeout=0.1, on_trouble=troubles.append)
        async with delivery:
            await delivery.send(transition("t"))
            with pytest.raises(MeshError, match=r"prm_judge at .*: no answer to t for") as silent:
                await delivery.flush(0.5)
            assert silent.value.reason == "NO_ACK" and silent.value.retryable
            async with asyncio.timeout(20):
                while judge.streams < 2:  # noqa: ASYNC110 (it is counted on another thread)
                    await asyncio.sleep(0.01)
            assert {error.reason for error in troubles} == {"NO_ACK"}
            judge.silent = False
            await delivery.flush(20)


async def test_acks_for_what_nobody_sent_are_an_error_of_the_peer() -> None:
    with serving(Judge(foreign=True)) as peer:
        delivery = await AsyncDelivery("transitions", peer.address).__aenter__()
        try:
            await delivery.send(transition("t"))
            with pytest.raises(MeshError, match="acknowledged 'not t', which was never sent") as foreign:
                await delivery.flush(20)
            assert foreign.value.reason == "FOREIGN_ACK" and not foreign.value.retryable and delivery.waiting == 1
        finally:
            await delivery.aclose()


async def test_what_does_not_go_away_is_told_at_once() -> None:
    with serving(Judge()) as peer:
        with pytest.raises(MeshError) as wrong:
            async with AsyncDelivery("turns", peer.address) as delivery:
                await delivery.send(Turn(turn_id="t"))
                await delivery.flush()
        assert wrong.value.reason == "UNIMPLEMENTED"
