"""The server as the sender of its own ring stream, with the kit as the next component: whatever happens to it, nothing
is lost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import Level, Need, check
from openclaw_rl.conformance.listener import Faults, Listener
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.ring_stream import RingStream, accepted
from openclaw_rl.v1 import environment_pb2, turn_pb2

_DELIVERY = "delivery/README.md; design, Guarantees 2: nothing is lost, nothing is trained twice"
_SENDERS = ("environment", "judge")
#: Seconds for a message to arrive. A sender waits longer and longer between its attempts to connect.
_ARRIVE = 20.0


def traffic(kit: Context, count: int) -> tuple[list[Any], list[str]]:
    """Messages that make the server send `count` messages on, and the ids of those.

    For the environment server that is a conversation and its end; each turn goes on when the next one is there.
    """
    material = Material(kit)
    if kit.service.name == "judge":
        ids = [kit.id() for _ in range(count)]
        session = kit.session()
        return [material.message(id, session) for id in ids], ids
    session = kit.session()
    turns = material.conversation(session, count)
    end = turn_pb2.SessionEnd(event_id=kit.id("end"), session_id=session)
    end.ended_at.GetCurrentTime()
    return ([*(environment_pb2.PolicyEvent(turn=turn) for turn in turns),
             environment_pb2.PolicyEvent(session_end=end)], [turn.turn_id for turn in turns])


def _listener(kit: Context) -> Listener:
    assert kit.listener is not None
    return kit.listener


@check("onward.arrives", "Accepted messages are sent on to the next component.", where=_DELIVERY, services=_SENDERS,
       needs=[Need.LISTEN], after=["ring.acks.accepted"], seconds=40)
async def arrives(kit: Context) -> None:
    messages, ids = traffic(kit, 4)
    await accepted(kit, messages)
    await _listener(kit).wait(ids, _ARRIVE, _what(kit))


@check("onward.unchanged", "Messages sent on contain the turn unchanged: messages, response, token ids, "
                           "log-probabilities, version spans.",
       where="design, Guarantees 6: what is trained is what was sampled",
       services=_SENDERS, needs=[Need.LISTEN], after=["onward.arrives"], seconds=40)
async def unchanged(kit: Context) -> None:
    messages, ids = traffic(kit, 2)
    await accepted(kit, messages)
    await _listener(kit).wait(ids, _ARRIVE, _what(kit))
    for message, id in zip(messages, ids, strict=False):
        sent, came = message.turn, _turn(_listener(kit).got(id)[0].message)
        for name in ("turn_id", "session_id", "messages", "response", "finish_reason", "tokens", "model",
                     "policy_version", "client", "metadata", "api"):
            kit.expect(getattr(sent, name) == getattr(came, name), f"{name} of {id} is {_short(getattr(came, name))}; "
                       f"{_short(getattr(sent, name))} was sent")


@check("onward.trace", "The trace context of a turn is propagated.", where="common.proto: TraceContext; design, The "
       "ring's streams", services=_SENDERS, needs=[Need.LISTEN], after=["onward.arrives"], seconds=40)
async def trace(kit: Context) -> None:
    messages, ids = traffic(kit, 1)
    await accepted(kit, messages)
    await _listener(kit).wait(ids, _ARRIVE, _what(kit))
    sent = messages[0].turn.trace.traceparent
    came = _turn(_listener(kit).got(ids[0])[0].message).trace.traceparent
    kit.expect(came.split("-")[1:2] == sent.split("-")[1:2], f"traceparent is {came!r}; {sent!r} was sent")


@check("onward.once", "Messages acknowledged by the next component are not resent.", where=_DELIVERY, services=_SENDERS,
       needs=[Need.LISTEN], after=["onward.arrives"], level=Level.SHOULD, seconds=40)
async def once(kit: Context) -> None:
    messages, ids = traffic(kit, 3)
    await accepted(kit, messages)
    await _listener(kit).wait(ids, _ARRIVE, _what(kit))
    await asyncio.sleep(0.3)  # for the acknowledgements to be read
    _listener(kit).cut()
    later, more = traffic(kit, 1)
    await accepted(kit, later)
    await _listener(kit).wait(more, _ARRIVE, _what(kit))
    again = [id for id in ids if len(_listener(kit).got(id)) > 1]
    kit.expect(not again, f"sent again after a reconnect: {listed(again)}")


@check("onward.order", "Turns of a session are sent on in order of arrival.", where="judge.proto: "
       "transitions, oldest first", services=["environment"], needs=[Need.LISTEN], after=["onward.arrives"], seconds=40)
async def order(kit: Context) -> None:
    await _in_order(kit)


@check("onward.order.judged", "Samples are sent on in the order of their transitions.",
       where="trainer.proto: samples, oldest first", services=["judge"], needs=[Need.LISTEN],
       after=["onward.arrives"], level=Level.SHOULD, seconds=40)
async def order_judged(kit: Context) -> None:
    await _in_order(kit)


async def _in_order(kit: Context) -> None:
    messages, ids = traffic(kit, 20)
    await accepted(kit, messages, size=3)
    await _listener(kit).wait(ids, _ARRIVE, _what(kit))
    came = _listener(kit).first(ids)
    wrong = next(((place, id) for place, id in enumerate(came) if id != ids[place]), None)
    kit.expect(wrong is None, f"place {wrong[0]} has {wrong[1]}, which came as number {ids.index(wrong[1])}"
               if wrong else "")


@check("onward.cut", "Whenever the stream to the next component is cut, unacknowledged messages are resent.",
       where=_DELIVERY, services=_SENDERS, needs=[Need.LISTEN],
       after=["onward.arrives"], seconds=100)
async def cut(kit: Context) -> None:
    listener = _listener(kit)
    for k in (1, 2, 5):
        listener.behave(Faults(cut_after=k))
        listener.cut()
        messages, ids = traffic(kit, 3 * k)
        await accepted(kit, messages)
        await listener.wait(ids, _ARRIVE, f"{_what(kit)}, on streams that break behind {k} acknowledgements each,")
    listener.behave(Faults(cut_after=0))  # nothing is acknowledged at all
    listener.cut()
    before = listener.streams
    messages, ids = traffic(kit, 3)
    await accepted(kit, messages)
    # Whichever message it is: one whose acknowledgement was not read any more stands before ours.
    await kit.until(lambda: any(arrival.stream > before for arrival in reversed(listener.arrivals)), _ARRIVE,
                    f"the server brought nothing to {listener.address} within {_ARRIVE:g} s of a broken stream")
    listener.behave()
    began = time.monotonic()
    await _again(kit, ids, began, "that were sent on a stream which broke before an acknowledgement")


@check("onward.silent", "Messages that a peer does not acknowledge are resent after the stream breaks; "
                        "acknowledgements of other ids do not count.", where=_DELIVERY, services=_SENDERS,
       needs=[Need.LISTEN],
       after=["onward.cut"], seconds=60)
async def silent(kit: Context) -> None:
    listener = _listener(kit)

    for faults in (Faults(silent=True), Faults(silent=True, foreign=True)):
        await _nothing_waits(kit)  # what is sent once more takes places in flight, and nothing frees them now
        listener.behave(faults)
        listener.cut()
        messages, ids = traffic(kit, 3)
        await accepted(kit, messages)
        await listener.wait(ids, _ARRIVE, _what(kit))
        await asyncio.sleep(0.2)
        listener.behave()
        began = time.monotonic()
        listener.cut()
        await _again(kit, ids, began, "that were " + (
            "not acknowledged, but ids that nobody has sent" if faults.foreign else "not acknowledged"))


@check("onward.refused", "Messages rejected by the next component are quarantined: they are not resent forever and "
                         "block no others.", where="common.proto: ACK_STATUS_REJECTED", services=_SENDERS,
       needs=[Need.LISTEN],
       after=["onward.arrives"], seconds=60)
async def refused(kit: Context) -> None:
    listener = _listener(kit)
    messages, ids = traffic(kit, 4)
    bad = ids[1]
    listener.behave(Faults(refuse=lambda message: "refused by the conformance kit" if _turn(message).turn_id == bad
                           else ""))
    listener.cut()
    await accepted(kit, messages)
    await listener.wait(ids, _ARRIVE, _what(kit))
    await asyncio.sleep(0.3)
    listener.behave()
    before = len(listener.got(bad))
    listener.cut()
    later, more = traffic(kit, 2)
    await accepted(kit, later)
    await listener.wait(more, _ARRIVE, f"{_what(kit)} behind one that was rejected")
    kit.expect(len(listener.got(bad)) == before, f"{bad} was rejected and sent again")


@check("onward.away", "While the next component is down, messages are still accepted, and sent on once it is back.",
       where="delivery/README.md: a neighbour is away", services=_SENDERS, needs=[Need.LISTEN],
       after=["onward.arrives"], seconds=60)
async def away(kit: Context) -> None:
    listener = _listener(kit)
    listener.behave(Faults(closed=True))
    listener.cut()
    messages, ids = traffic(kit, 5)
    await accepted(kit, messages)
    await asyncio.sleep(0.3)
    kit.expect(not listener.first(ids), "the kit took messages while it was away: a fault of its own")
    listener.behave()
    await listener.wait(ids, _ARRIVE, _what(kit))


@check("onward.slow", "A slow next component delays nothing: messages are accepted as fast as before.",
       where="design: they never wait for one another", services=_SENDERS, needs=[Need.LISTEN],
       after=["onward.arrives"], seconds=60)
async def slow(kit: Context) -> None:
    listener = _listener(kit)
    listener.behave(Faults(slow=0.5))
    listener.cut()
    messages, ids = traffic(kit, 12)
    began = time.monotonic()
    stream = RingStream(kit)
    await stream.acked(await stream.send(messages))
    took = time.monotonic() - began
    kit.expect(took < 4, f"{len(messages)} messages were acknowledged after {took:.1f} s, with a next component that "
               "takes 0.5 s for each request")
    listener.behave()
    listener.cut()
    await listener.wait(ids, _ARRIVE, _what(kit))


@check("onward.kill", "After being killed (SIGKILL) at any moment and restarted, the server sends on what it had "
                      "accepted.",
       where=_DELIVERY, services=_SENDERS, needs=[Need.LISTEN, Need.START], after=["onward.away", "ring.kill"],
       seconds=200)
async def kill(kit: Context) -> None:
    listener = _listener(kit)
    for faults, pause in ((Faults(closed=True), 0.2), (Faults(silent=True), 0.0)):
        listener.behave(faults)
        listener.cut()
        messages, ids = traffic(kit, 6)
        await accepted(kit, messages)
        await asyncio.sleep(pause)
        await kit.restart()
        began = time.monotonic()
        listener.behave()
        listener.cut()
        await _again(kit, ids, began, "that were accepted before it was killed")


@check("onward.settled", "Finally GetStatus reports an outbox without pending messages.",
       where="component.proto: OutboxStats", services=_SENDERS, needs=[Need.LISTEN], after=["onward.arrives"],
       level=Level.SHOULD, seconds=40)
async def settled(kit: Context) -> None:
    messages, ids = traffic(kit, 2)
    await accepted(kit, messages)
    await _listener(kit).wait(ids, _ARRIVE, _what(kit))
    end = time.monotonic() + 10
    while True:
        outboxes = (await kit.status()).outboxes
        kit.expect(outboxes, "GetStatus tells no outbox")
        box = outboxes[0]
        if not box.pending and box.connected and box.delivered:
            return
        kit.expect(time.monotonic() < end, f"{box.name}, 10 s after the last acknowledgement: pending {box.pending}, "
                   f"connected {box.connected}, delivered {box.delivered}")
        await asyncio.sleep(0.1)


async def _nothing_waits(kit: Context) -> None:
    """Give the server time to settle what earlier checks left in its outbox; `onward.settled` asks whether it does."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not any(box.pending for box in (await kit.status()).outboxes):
            return
        await asyncio.sleep(0.05)


async def _again(kit: Context, ids: list[str], since: float, which: str) -> None:
    """Wait until each of the messages has arrived once more."""
    def missing() -> list[str]:
        there = {arrival.id for arrival in _listener(kit).arrivals if arrival.at >= since}
        return [id for id in ids if id not in there]

    await kit.until(lambda: not missing(), _ARRIVE, lambda: f"{len(missing())} of {len(ids)} {_what(kit)} {which} did "
                    f"not come again within {_ARRIVE:g} s: {listed(missing(), 2)}")


def _turn(message: Any) -> turn_pb2.Turn:
    """The turn of what the next component gets."""
    return message.transition.turn if isinstance(message, turn_pb2.Sample) else message.turn  # type: ignore[no-any-return]


def _what(kit: Context) -> str:
    return {"environment": "transitions", "judge": "samples"}[kit.service.name]


def _short(value: object) -> str:
    text = str(value).strip().replace("\n", " ")
    return (text if len(text) <= 60 else f"{text[:57]}...") or "nothing"
