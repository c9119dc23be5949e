"""Checks of the receiving end of a ring stream: acknowledgements, duplicates, rejections."""

from __future__ import annotations

import asyncio
import time

from openclaw_rl.conformance.context import NARROW, Context, listed
from openclaw_rl.conformance.frame import Level, check
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.ring_stream import (
    ACCEPTED,
    ACK_SECONDS,
    DUPLICATE,
    REJECTED,
    RingStream,
    accepted,
    named,
    statuses,
)
from openclaw_rl.conformance.services import RING
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.v1 import environment_pb2, turn_pb2

_ACK, _DELIVERY = "common.proto: Ack", "delivery/README.md"


@check("ring.headers", "A ring stream's response headers are sent at once: some clients send nothing before them.",
       where="protos: the ring streams are bidirectional; tonic waits for the headers", services=RING)
async def headers(kit: Context) -> None:
    call = kit.stream(kit.service.ring)
    await kit.within(call.initial_metadata(), 3, f"no headers of {kit.service.ring} within 3 s of its opening")


@check("ring.acks", "Each message is acknowledged by its id once it is on disk, without waiting for further ones.",
       where=_ACK, services=RING)
async def acks(kit: Context) -> None:
    material = Material(kit)
    stream = RingStream(kit)
    for _ in range(3):
        ids = await stream.send([material.message(kit.id())])
        await stream.acked(ids, min(ACK_SECONDS, kit.deadline))


@check("ring.acks.accepted", "A new, complete message is ACCEPTED.", where=_ACK, services=RING, after=["ring.acks"])
async def acks_accepted(kit: Context) -> None:
    await accepted(kit, Material(kit).messages(3))


@check("ring.acks.once", "A message sent once is acknowledged once.", where=_ACK, services=RING,
       after=["ring.acks"])
async def acks_once(kit: Context) -> None:
    stream = RingStream(kit)
    ids = await stream.send(Material(kit).messages(24), 6)
    await stream.acked(ids)
    await stream.finish()
    often = {id: count for id, count in stream.count().items() if count > 1 and id in ids}
    kit.expect(not often, f"{len(often)} of {len(ids)} messages were acknowledged more than once: "
               f"{listed(f'{id} {count} times' for id, count in often.items())}")


@check("ring.acks.own", "Only ids that were sent on the stream are acknowledged.", where=_ACK, services=RING,
       after=["ring.acks"])
async def acks_own(kit: Context) -> None:
    stream = RingStream(kit)
    ids = await stream.send(Material(kit).messages(8), 4)
    await stream.acked(ids)
    await stream.finish()
    foreign = stream.count().keys() - set(ids)
    kit.expect(not foreign, f"acknowledged, and never sent: {listed(sorted(foreign))}")


@check("ring.duplicate", "A message resent on the same stream is a DUPLICATE.", where=_ACK, services=RING,
       after=["ring.acks.accepted"])
async def duplicate(kit: Context) -> None:
    stream, messages = RingStream(kit), Material(kit).messages(5)
    await stream.acked(await stream.send(messages, 2))
    before = len(stream.acks)
    await stream.send(messages, 5)
    again = (await stream.some(before + len(messages)))[before:]
    _all_duplicates(kit, {ack.id: ack.status for ack in again})


@check("ring.duplicate.other", "A message resent on another stream of another connection is a DUPLICATE.",
       where=_ACK, services=RING, after=["ring.acks.accepted"])
async def duplicate_other(kit: Context) -> None:
    messages = Material(kit).messages(5)
    await accepted(kit, messages)
    _all_duplicates(kit, await statuses(kit, messages, channel=kit.connect(sender=True)))


@check("ring.duplicate.within", "A message contained twice in one request is accepted once: one ACCEPTED, one "
                                "DUPLICATE.",
       where=_ACK, services=RING, after=["ring.duplicate"])
async def duplicate_within(kit: Context) -> None:
    stream, message = RingStream(kit), Material(kit).message(kit.id())
    await stream.send([message, message], 2)
    found = sorted(ack.status for ack in await stream.some(2))
    kit.expect(found == [ACCEPTED, DUPLICATE], f"the answers are {listed(map(named, found))}")


@check("ring.duplicate.content", "An id that is reused with other content is not accepted again: DUPLICATE or "
                                 "REJECTED, never ACCEPTED.", where=_DELIVERY, services=RING,
       after=["ring.duplicate", "ring.duplicate.other"])
async def duplicate_content(kit: Context) -> None:
    material, id = Material(kit), kit.id()
    await accepted(kit, [material.message(id)])
    found = (await statuses(kit, [material.message(id, bulk=20)]))[id]
    kit.expect(found in (DUPLICATE, REJECTED), f"it is {named(found)}")


@check("ring.rejected", "A message without an id is REJECTED, with a reason.", where=_ACK, services=RING,
       after=["ring.acks"])
async def rejected(kit: Context) -> None:
    stream = RingStream(kit)
    await stream.send([Material(kit).message("")])
    found = await stream.some(1)
    kit.expect(found, f"it ended the stream {stream.ended}")
    ack = found[0]
    kit.expect(ack.id == "", f"the answer is for the id {ack.id!r}")
    kit.expect(ack.status == REJECTED, f"it is {named(ack.status)}")
    kit.expect(ack.reason.strip(), "it is REJECTED without a reason")


@check("ring.rejected.others", "A rejected message does not block others of its request and stream.",
       where=_DELIVERY, services=RING, after=["ring.acks.accepted", "ring.rejected"])
async def rejected_others(kit: Context) -> None:
    material, stream = Material(kit), RingStream(kit)
    good = material.messages(4)
    await stream.send([good[0], good[1], material.message(""), good[2]], 4)
    await stream.send([good[3]])
    acks = await stream.acked([message_id(message) for message in good])
    wrong = [f"{id}: {named(ack.status)}" for id, ack in acks.items() if id and ack.status != ACCEPTED]
    kit.expect(not wrong, listed(wrong))


@check("ring.rejected.parts", "An incomplete message is acknowledged, and REJECTED if it can never be used.",
       where=f"{_ACK}; PolicyEvent, Transition and Sample", services=RING, after=["ring.rejected"])
async def rejected_parts(kit: Context) -> None:
    session = kit.session()
    kinds: dict[str, list[object]] = {
        "environment": [environment_pb2.PolicyEvent(),
                        environment_pb2.PolicyEvent(session_end=turn_pb2.SessionEnd(session_id=session)),
                        environment_pb2.PolicyEvent(feedback=turn_pb2.Feedback(session_id=session, score=1.0))],
        "judge": [turn_pb2.Transition(), turn_pb2.Transition(turn=turn_pb2.Turn(session_id=session))],
        "trainer": [turn_pb2.Sample(), turn_pb2.Sample(transition=turn_pb2.Transition(turn=turn_pb2.Turn(
            session_id=session)))]}
    for message in kinds[kit.service.name]:
        stream = RingStream(kit)
        await stream.send([message])
        found = await stream.some(1)
        shown = str(message).strip().replace("\n", " ") or f"an empty {type(message).__name__}"
        kit.expect(found, f"{shown} ended the stream {stream.ended}")
        kit.expect(found[0].status == REJECTED, f"{shown} is {named(found[0].status)}")
        stream.cut()


@check("ring.rejected.ids", "Ids of more than 256 characters, or with control characters, are REJECTED: they would "
                            "appear in logs and file names.", where=_DELIVERY, services=RING, level=Level.SHOULD,
       after=["ring.rejected"])
async def rejected_ids(kit: Context) -> None:
    material = Material(kit)
    for id, what in ((kit.id() + "x" * 300, "of more than 300 characters"), (kit.id() + "\n[", "with a line end")):
        found = (await statuses(kit, [material.message(id, kit.session())]))[id]
        kit.expect(found == REJECTED, f"an id {what} is {named(found)}")


@check("ring.batch", "A request of 64 messages is acknowledged message by message.", where="delivery/README.md: "
       "requests have at most 64 messages or 1 MiB", services=RING, after=["ring.acks.accepted"])
async def batch(kit: Context) -> None:
    await accepted(kit, Material(kit).messages(64), size=64)


@check("ring.window", "A sender may have 256 messages in flight, in requests of 4.",
       where="delivery/README.md: a window is 256 messages", services=RING, after=["ring.acks.accepted"])
async def window(kit: Context) -> None:
    await accepted(kit, Material(kit).messages(256), size=4, seconds=15)


@check("ring.half-closed", "A half-closed stream is acknowledged to the end and then closed with OK.",
       where=_DELIVERY, services=RING, after=["ring.acks"])
async def half_closed(kit: Context) -> None:
    stream = RingStream(kit)
    ids = await stream.send(Material(kit).messages(20), 4)
    how = await stream.finish()
    kit.expect(not how, f"it ended {how}")
    missing = set(ids) - stream.count().keys()
    kit.expect(not missing, f"{len(missing)} of {len(ids)} messages were not acknowledged")


@check("ring.empty", "Streams and requests without messages are valid.", where=_DELIVERY,
       services=RING, after=["ring.acks"])
async def empty(kit: Context) -> None:
    how = await RingStream(kit).finish()
    kit.expect(not how, f"an empty stream ended {how}")
    stream = RingStream(kit)
    await stream.call.write(Material(kit).request([]))
    await stream.acked(await stream.send(Material(kit).messages(1)))


@check("ring.slow", "A sender that does not read its acknowledgements delays no other stream, and gets them all once "
                    "it reads.", where=_DELIVERY, services=RING, after=["ring.window"])
async def slow(kit: Context) -> None:
    lazy = RingStream(kit, kit.connect(sender=True, options=NARROW), read=False)
    material, session = Material(kit), kit.session()
    # Long ids make long acknowledgements: more of them than a connection keeps for who does not read.
    many = [material.message(kit.id().ljust(250, "x"), session) for _ in range(200)]
    sending = asyncio.create_task(lazy.send(many, 4))
    try:
        await asyncio.wait((sending,), timeout=2)  # a server need not take more before it can give answers
        began = time.monotonic()
        await accepted(kit, material.messages(3))
        took = time.monotonic() - began
        kit.expect(took < 5, f"beside a sender that does not read, 3 messages took {took:.1f} s")
        lazy.read()
        await lazy.acked(await kit.within(sending, 10, "it took 200 messages no more within 10 s"))
    finally:
        sending.cancel()


def _all_duplicates(kit: Context, found: dict[str, int]) -> None:
    wrong = [f"{id}: {named(status)}" for id, status in found.items() if status != DUPLICATE]
    kit.expect(not wrong, f"{len(wrong)} of {len(found)} messages that came again are no DUPLICATE: {listed(wrong, 3)}")
