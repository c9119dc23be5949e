"""Checks of deadlines, large messages, malformed bytes and callers of other contract versions."""

from __future__ import annotations

import asyncio
import time

import grpc
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.conformance import http2
from openclaw_rl.conformance.context import COMPONENT, UNLIMITED, Context
from openclaw_rl.conformance.frame import check
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.v1 import component_pb2

_STATUS, _STATS = f"/{COMPONENT.full_name}/GetStatus", f"/{COMPONENT.full_name}/WatchStats"
_LIMIT = "delivery/README.md: a single message has up to 16 MiB"
_VERSIONS = "versioning: in v1 fields, values and RPCs are only added, and what is unknown is passed over"
#: What the libraries say of a message beyond the limit; tonic says OUT_OF_RANGE, and some only end the stream.
_TOO_LARGE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE)


@check("component.deadline", "The server itself ends a call whose deadline has passed.",
       where="design, Contracts: deadlines are honoured", after=["component.stats.cancel"])
async def deadline(kit: Context) -> None:
    if kit.secure:
        kit.skip("asked without a gRPC library, which the kit does in plain text only")
    interval = component_pb2.WatchStatsRequest(interval=Duration(nanos=200_000_000))
    found = await http2.watch(kit.address, _STATS, interval.SerializeToString(), "600m", 3.0)
    kit.expect(found.ended is not None, f"a WatchStats with a deadline of 0.6 s went on for 3 s ({found.messages} "
               "answers)")
    kit.expect(found.ended is None or found.ended >= 0.4, f"it was ended after {found.ended:.2f} s, before its "
               "deadline of 0.6 s")


@check("component.big", "Messages of up to 16 MiB are accepted.", where=_LIMIT, seconds=30)
async def big(kit: Context) -> None:
    for size in (4, 8, 15):
        try:
            await kit.raw(_STATUS, _unknown(size * 2**20))
        except grpc.aio.AioRpcError as error:
            kit.fail(f"a request of {size} MiB was answered {refusal(error)}")


@check("component.big.refused", "A message of more than 16 MiB is rejected; only its own call fails.",
       where=_LIMIT,
       after=["component.big", "component.stats.cancel"], seconds=30)
async def big_refused(kit: Context) -> None:
    channel = kit.connect()
    request = component_pb2.WatchStatsRequest(interval=Duration(nanos=100_000_000))
    other = kit.stream("ComponentService/WatchStats", request, channel=channel)
    await kit.within(other.read(), kit.deadline, "WatchStats was not answered")
    large = kit.connect(options=UNLIMITED)
    try:
        again = large.unary_stream(_STATS)(request.SerializeToString(), timeout=kit.deadline)
        await again.read()
        refused = await kit.refused(large.unary_unary(_STATUS)(_unknown(17 * 2**20), timeout=kit.deadline),
                                    what="a request of 17 MiB")
        kit.expect(refused.code in _TOO_LARGE or refused.code in (
            grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED,
            grpc.StatusCode.INVALID_ARGUMENT), f"a request of 17 MiB was answered {refused}")
        answer = await kit.within(again.read(), 3, "another call on the connection got no answer any more")
        kit.expect(answer is not grpc.aio.EOF, "another call on the connection was ended by it")
        again.cancel()
    except grpc.aio.AioRpcError as error:
        kit.fail(f"another call on the connection was ended by it: {refusal(error)}")
    answer = await kit.within(other.read(), 3, "a call on another connection got no answer any more")
    kit.expect(answer is not grpc.aio.EOF, "a call on another connection was ended by it")


@check("component.big.code", "A message that is too large is rejected with RESOURCE_EXHAUSTED (or OUT_OF_RANGE, as one "
                             "library does).", where=_LIMIT, after=["component.big.refused"])
async def big_code(kit: Context) -> None:
    call = kit.connect(options=UNLIMITED).unary_unary(_STATUS)
    await kit.refused(call(_unknown(17 * 2**20), timeout=kit.deadline), *_TOO_LARGE, what="a request of 17 MiB")


@check("component.garbage", "Malformed bytes are rejected, and the server keeps responding.",
       where="design, Contracts: errors are google.rpc.Status")
async def garbage(kit: Context) -> None:
    channel = kit.connect()
    for payload in (b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", b"\x00\x00\x00"):
        await kit.refused(kit.raw(_STATUS, payload, channel=channel),
                          what=f"the bytes {payload[:6].hex()}...")
        await kit.unary("ComponentService/GetStatus", channel=channel)


@check("component.unknown.method", "Unknown RPCs are answered with UNIMPLEMENTED, so that newer clients can do without "
                                   "them.", where=_VERSIONS)
async def unknown_method(kit: Context) -> None:
    for path in (f"/{kit.service.full_name}/NoSuchRpc", f"/{COMPONENT.full_name}/NoSuchRpc", "/no.such.Service/Rpc"):
        await kit.refused(kit.raw(path, b""), grpc.StatusCode.UNIMPLEMENTED, what=path)


@check("component.unknown.fields", "Unknown fields, from newer clients, are ignored.",
       where=_VERSIONS)
async def unknown_fields(kit: Context) -> None:
    for kind, payload in (("a number", b"\xb8\x3e\x07"), ("text", b"\xc2\x3e\x05hello"),
                          ("8 bytes", b"\xc9\x3e12345678"), ("4 bytes", b"\xd5\x3e1234")):
        try:
            await kit.raw(_STATUS, payload)
        except grpc.aio.AioRpcError as error:
            kit.fail(f"a request with an unknown field ({kind}) was answered {refusal(error)}")


@check("component.slow", "A caller that does not read its responses delays no other.",
       where="design, Guarantees 3: the reply path waits for nobody", after=["component.stats.cancel"])
async def slow(kit: Context) -> None:
    channel = kit.connect()
    request = component_pb2.WatchStatsRequest(interval=Duration(nanos=100_000_000))
    for _ in range(30):
        kit.stream("ComponentService/WatchStats", request, channel=channel)  # and never read
    await asyncio.sleep(0.3)
    for one in (channel, kit.connect()):
        for _ in range(5):
            began = time.monotonic()
            try:
                await kit.unary("ComponentService/GetStatus", channel=one)
            except grpc.aio.AioRpcError as error:
                kit.fail(f"with 30 watches that nobody reads GetStatus was answered {refusal(error)}")
            took = time.monotonic() - began
            kit.expect(took < 3, f"with 30 watches that nobody reads GetStatus took {took:.1f} s")


def _unknown(size: int) -> bytes:
    """A message of about `size` bytes that is one unknown field (number 1000)."""
    length, body = size, b""
    while length >= 128:
        body += bytes((length % 128 + 128,))
        length //= 128
    return b"\xc2\x3e" + body + bytes((length,)) + bytes(size)

