"""Checks of the receiving end of a ring stream under faults: cuts, kills, large and malformed messages."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
from google.protobuf.message_factory import GetMessageClass

from openclaw_rl.conformance.context import UNLIMITED, Context, listed
from openclaw_rl.conformance.frame import Failed, Need, check
from openclaw_rl.conformance.material import Material
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.conformance.ring_stream import (
    ACCEPTED,
    DUPLICATE,
    REJECTED,
    RingStream,
    accepted,
    named,
    statuses,
)
from openclaw_rl.conformance.services import RING
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.v1 import common_pb2, turn_pb2

_DELIVERY = "delivery/README.md; design, Guarantees 2: nothing is lost, nothing is trained twice"
_VERSIONS = "versioning: in v1 fields, values and RPCs are only added, and what is unknown is passed over"


@check("ring.cut", "Whenever a stream is cut: resent messages are settled, and acknowledged ones are DUPLICATEs.",
       where=_DELIVERY, services=RING,
       after=["ring.duplicate.other"], seconds=40)
async def cut(kit: Context) -> None:
    for k in (0, 1, 2, 5, 9):
        messages = Material(kit).messages(10)
        stream = RingStream(kit, kit.connect(sender=True))
        await stream.send(messages, 1 if k % 2 else 3)
        done = {ack.id for ack in await stream.some(k)}
        stream.cut()
        found = await statuses(kit, messages, size=4)
        wrong = [f"{id}: {named(status)}" for id, status in found.items()
                 if status not in ((DUPLICATE,) if id in done else (ACCEPTED, DUPLICATE))]
        kit.expect(not wrong, f"cut behind {k} acknowledgements, sent again: {listed(wrong, 3)}")


@check("ring.cut.connection", "The same holds if the whole connection is lost.", where=_DELIVERY, services=RING,
       after=["ring.cut"])
async def cut_connection(kit: Context) -> None:
    messages, channel = Material(kit).messages(10), kit.connect(sender=True)
    stream = RingStream(kit, channel)
    await stream.send(messages, 2)
    done = {ack.id for ack in await stream.some(3)}
    await channel.close()
    found = await statuses(kit, messages)
    wrong = [f"{id}: {named(found[id])}" for id in done & found.keys() if found[id] != DUPLICATE]
    kit.expect(not wrong, f"acknowledged before: {listed(wrong, 3)}")


@check("ring.kill", "Messages ACCEPTED before the server is killed (SIGKILL) are on disk: they are DUPLICATEs after a "
                    "restart.",
       where=_DELIVERY, services=RING, needs=[Need.START], after=["ring.duplicate.other"], seconds=200)
async def kill(kit: Context) -> None:
    for k in (1, 20):
        messages = Material(kit).messages(20)
        stream = RingStream(kit)
        await stream.send(messages, 1)
        done = {ack.id for ack in await stream.some(k) if ack.status == ACCEPTED}
        await kit.restart()
        found = await statuses(kit, messages)
        lost = [id for id in done & found.keys() if found[id] != DUPLICATE]
        kit.expect(not lost, f"killed behind {k} acknowledgements; {len(lost)} of {len(done)} messages that were "
                   f"ACCEPTED are {named(found[lost[0]]) if lost else ''} when they come again: {listed(lost, 2)}")


@check("ring.big", "A message of up to 16 MiB is accepted.",
       where="delivery/README.md: a single message has up to 16 MiB",
       services=RING, after=["ring.acks.accepted", "component.big"], seconds=40)
async def big(kit: Context) -> None:
    for megabytes in (4, 15):
        await accepted(kit, [Material(kit).message(kit.id(), bulk=megabytes * 2**20)], size=1, seconds=15)


@check("ring.big.refused", "A message of more than 16 MiB ends its own stream only, and nothing acknowledged is lost.",
       where="delivery/README.md: a single message has up to 16 MiB", services=RING,
       after=["ring.big"], seconds=40)
async def big_refused(kit: Context) -> None:
    channel = kit.connect(sender=True, options=UNLIMITED)
    material = Material(kit)
    other, stream = RingStream(kit, channel), RingStream(kit, channel)
    known = material.message(kit.id())
    await other.acked(await other.send(material.messages(1)))
    await stream.acked(await stream.send([known]))
    with contextlib.suppress(Failed):  # a server may refuse it before all of it has come
        await stream.send([material.message(kit.id(), bulk=17 * 2**20)])
    await kit.until(lambda: stream.ended is not None or len(stream.acks) > 1, 10,
                    "the stream went on without an answer for 10 s")
    kit.expect(stream.ended or stream.acks[-1].status == REJECTED, "it was not refused")
    await other.acked(await other.send(material.messages(1)))
    found = await statuses(kit, [known])
    kit.expect(found[message_id(known)] == DUPLICATE, "what the stream had acknowledged before is "
               f"{named(found[message_id(known)])} when it comes again")


@check("ring.garbage", "Malformed bytes end their own stream only.", where="design, Contracts: errors are "
       "google.rpc.Status", services=RING, after=["ring.acks"])
async def garbage(kit: Context) -> None:
    channel = kit.connect(sender=True)
    other = RingStream(kit, channel)
    call = kit.raw_stream(kit.service.ring, channel=channel)
    await call.write(b"\xff" * 32)
    try:
        answer = await kit.within(call.read(), 5, "the stream went on without an answer for 5 s")
        kit.expect(answer is grpc.aio.EOF, "they were acknowledged")
    except grpc.aio.AioRpcError as error:
        kit.expect(error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, f"it ended with {refusal(error)}")
    await other.acked(await other.send(Material(kit).messages(1)))


@check("ring.unknown.fields", "Messages with unknown fields, from newer senders, are accepted.",
       where=_VERSIONS, services=RING, after=["ring.acks.accepted"])
async def unknown_fields(kit: Context) -> None:
    id = kit.id()
    message = Material(kit).message(id)
    # Field 500 of the message itself, and of the request: text.
    inner = message.SerializeToString() + b"\xa2\x1f\x05hello"
    payload = b"\x0a" + _varint(len(inner)) + inner + b"\xa2\x1f\x05hello"
    call = kit.raw_stream(kit.service.ring)
    await call.write(payload)
    try:
        answer = await kit.within(call.read(), 5, "no answer within 5 s")
    except grpc.aio.AioRpcError as error:
        kit.fail(f"the stream ended with {refusal(error)}")
    kit.expect(answer is not grpc.aio.EOF, "the stream ended")
    acks = _acks(kit, answer)
    kit.expect([(ack.id, ack.status) for ack in acks] == [(id, ACCEPTED)],
               f"the answer is {listed(f'{a.id} {named(a.status)} {a.reason}' for a in acks)}")


@check("ring.unknown.values", "Unknown enum values, from newer senders, are accepted.",
       where=_VERSIONS, services=RING, after=["ring.acks.accepted"])
async def unknown_values(kit: Context) -> None:
    message = Material(kit).message(kit.id())
    turn = _turn(message)
    turn.finish_reason = 77  # type: ignore[assignment]
    turn.session_source = 78  # type: ignore[assignment]
    await accepted(kit, [message])


@check("ring.old", "Messages without any optional field, from older senders, are accepted.", where=_VERSIONS,
       services=RING, after=["ring.acks.accepted"])
async def old(kit: Context) -> None:
    message = Material(kit).message(kit.id())
    turn = _turn(message)
    for name in ("trace", "client", "metadata", "api", "class_reason", "branch_id", "first_token_at", "session_source"):
        turn.ClearField(name)
    await accepted(kit, [message])


@check("ring.many", "Several senders are served concurrently.", where=_DELIVERY, services=RING,
       after=["ring.acks.accepted"])
async def many(kit: Context) -> None:
    material = Material(kit)
    await asyncio.gather(*(accepted(kit, material.messages(16), size=4) for _ in range(8)))


def _turn(message: object) -> turn_pb2.Turn:
    """The turn in a ring message of any kind."""
    if isinstance(message, turn_pb2.Sample):
        return message.transition.turn
    return message.turn  # type: ignore[attr-defined, no-any-return]


def _acks(kit: Context, payload: bytes) -> list[common_pb2.Ack]:
    output = kit.service.descriptor.methods_by_name[kit.service.ring].output_type
    return list(GetMessageClass(output).FromString(payload).acks)  # type: ignore[attr-defined]


def _varint(number: int) -> bytes:
    result = b""
    while number >= 128:
        result += bytes((number % 128 + 128,))
        number //= 128
    return result + bytes((number,))
