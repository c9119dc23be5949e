"""Generated gRPC messages for every RPC of a component, from well-formed to nonsense, by a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from openclaw_rl.rpc.membership import MESH_KEY
from openclaw_rl.v1 import component_pb2, environment_pb2, judge_pb2, policy_pb2, trainer_pb2
from tools.campaign.http_requests import Tally

#: The services of each component.
SERVICES: dict[str, list[ServiceDescriptor]] = {
    name: [module.DESCRIPTOR.services_by_name[service],
           component_pb2.DESCRIPTOR.services_by_name["ComponentService"]]
    for name, module, service in (("policy_server", policy_pb2, "PolicyService"),
                                  ("env_server", environment_pb2, "EnvironmentService"),
                                  ("prm_judge", judge_pb2, "JudgeService"), ("trainer", trainer_pb2, "TrainerService"))}
#: These end or suspend a component on purpose, or run for minutes.
_LEFT_OUT = {"Drain", "Pause", "RunEpisodes"}
#: A server says these of a fault of its own.
WRONG = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
#: What grpc.aio says, as INTERNAL, when the server has ended a call to which the client still writes.
_CLIENTS_OWN = "Internal error from Core"
#: Seconds of a call, and of one whose responses may have no end.
_TIMEOUT, _WATCHED = 20.0, 0.5
_TEXTS = ("", "x", "main", "\0", "é", "a" * 5000, "../../etc/passwd", "session_1", "turn_1", "terminal", "0", "-1",
          "\u202e", "%s", "😀", "00-" + "0" * 32 + "-" + "0" * 16 + "-01")
_NUMBERS = (0, 1, 2, 3, 7, 100, 2**31 - 1, 2**32 - 1, 2**63 - 1)
_SIGNED = (*_NUMBERS, -1, -2**31, -2**63)
_REALS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"))
_DEEPEST = 4


@dataclass(frozen=True)
class Manner:
    """How a call is made.

    Attributes:
        path: /SERVICE/METHOD.
        seconds: its deadline.
        cancelled: seconds after which the caller gives up.
    """

    path: str
    seconds: float
    compression: grpc.Compression
    cancelled: float | None = None


def _endless(method: MethodDescriptor) -> bool:
    return method.server_streaming and method.name.startswith(("Watch", "Read", "List"))


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


class GrpcMessages:
    """Makes messages; the same seed makes the same.

    Args:
        texts: what stands where a text may.
    """

    def __init__(self, seed: int, texts: Sequence[str] = _TEXTS) -> None:
        self._random, self._texts = random.Random(f"grpc/{seed}"), texts

    def method(self, components: Sequence[str]) -> tuple[str, MethodDescriptor]:
        """The next RPC to call, and the component."""
        component = self._random.choice(components)
        methods = [method for service in SERVICES[component] for method in service.methods
                   if method.name not in _LEFT_OUT]
        return component, self._random.choice(methods)

    def payloads(self, method: MethodDescriptor) -> list[bytes]:
        """Serialized requests of a call; one unless the method takes a stream."""
        rng = self._random
        count = rng.choice((0, 1, 1, 2, 5)) if method.client_streaming else 1
        return [self._payload(method) for _ in range(count)]

    def metadata(self, mesh: str) -> list[tuple[str, str | bytes]]:
        """Headers of a call to this mesh."""
        rng = self._random
        headers: list[tuple[str, str | bytes]] = []
        if rng.random() < 0.9:
            headers.append((MESH_KEY, mesh if rng.random() < 0.98 else rng.choice(("x", "a" * 300))))
        for _ in range(rng.choice((0,) * 8 + (1, 3))):
            key = rng.choice(("x-session-id", "authorization", "traceparent", "tracestate", "x-openclaw-key",
                              "user-data", "openclaw-component", "baggage", MESH_KEY, "junk-bin", "traceparent-bin"))
            headers.append((key, rng.randbytes(rng.choice((0, 1, 500))) if key.endswith("-bin") else rng.choice(
                ("", "Bearer x", "00-zz", "a" * 3000, "x y", "trainer", "00-" + "f" * 32 + "-" + "f" * 16 + "-ff"))))
        return headers

    def manner(self, method: MethodDescriptor) -> Manner:
        """How a call is made."""
        rng = self._random
        seconds = _WATCHED if _endless(method) else _TIMEOUT
        if rng.random() < 0.04:
            seconds = rng.choice((0.0, 1e-6, 0.001, 0.05))
        path = f"/{method.containing_service.full_name}/{method.name}"
        if rng.random() < 0.01:
            path = rng.choice((path + "x", "/" + method.name, "/openclaw_rl.v2.PolicyService/Chat", "/", path * 2))
        return Manner(path, seconds, rng.choice((grpc.Compression.NoCompression,) * 6 + (
            grpc.Compression.Gzip, grpc.Compression.Deflate)), rng.choice((0.0, 0.01)) if rng.random() < 0.03 else None)

    def _payload(self, method: MethodDescriptor) -> bytes:
        rng, chance = self._random, self._random.random()
        if chance < 0.06:
            return rng.choice((b"\xff" * 20, rng.randbytes(60), rng.randbytes(5000), b"\x0a\xff\xff\xff\xff\x0f",
                               b"\x0b" * 500, b"\x0a\x02" * 200 + b"\x0a\0", b"\x08" + b"\xff" * 9 + b"\x01",
                               b"\x00\x00", b"\x0f"))
        kind = method.input_type
        if chance < 0.10:  # a message of another call
            kind = rng.choice([other.input_type for other in method.containing_service.methods])
        data = self.message(GetMessageClass(kind)()).SerializeToString()
        if chance > 0.95:  # fields of another number or type: unknown ones are kept, wrong ones are too
            number, wire = rng.choice((1, 2, 3, 7, 500, 2**29 - 1)), rng.choice((0, 1, 2, 5))
            value = {0: b"\x01", 1: bytes(8), 2: b"\x03abc", 5: bytes(4)}[wire]
            return data + _varint(number << 3 | wire) + value
        if chance > 0.93:
            return data + data  # merges with itself
        if data and chance > 0.88:
            at = rng.randrange(len(data))
            return data[:at] + rng.choice((rng.randbytes(1) + data[at + 1:], b""))
        return data

    def message(self, message: Message, depth: int = 0) -> Message:
        """Fill a message with values of chance."""
        rng = self._random
        for descriptor in message.DESCRIPTOR.fields:
            if rng.random() < (0.3 if depth < 2 else 0.6):
                continue
            if descriptor.message_type is not None:
                if depth < _DEEPEST:
                    self._fill_message(message, descriptor, depth)
            elif descriptor.is_repeated:
                getattr(message, descriptor.name).extend(self._scalar(descriptor) for _ in range(rng.choice((0, 1, 3))))
            else:
                setattr(message, descriptor.name, self._scalar(descriptor))
        return message

    def _fill_message(self, message: Message, descriptor: FieldDescriptor, depth: int) -> None:
        rng = self._random
        assert descriptor.message_type is not None
        value: Any = getattr(message, descriptor.name)
        if descriptor.message_type.GetOptions().map_entry:
            kind = descriptor.message_type.fields_by_name["value"]
            key = self._scalar(descriptor.message_type.fields_by_name["key"])
            if kind.message_type is None:
                value[key] = self._scalar(kind)
            else:
                self.message(value[key], depth + 1)
        elif descriptor.is_repeated:
            for _ in range(rng.choice((0, 1, 2))):
                self.message(value.add(), depth + 1)
        elif descriptor.message_type.full_name == "google.protobuf.Struct":
            value.update({rng.choice(self._texts): rng.choice(_REALS[:4])})
        else:
            value.SetInParent()
            self.message(value, depth + 1)

    def _scalar(self, descriptor: FieldDescriptor) -> Any:
        rng = self._random
        match descriptor.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                return rng.choice((*(value.number for value in descriptor.enum_type.values), 99))
            case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
                return rng.choice(_REALS if descriptor.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE else
                                  [value for value in _REALS if abs(value) != 1e300])
            case FieldDescriptor.CPPTYPE_STRING:
                text = rng.choice(self._texts)
                return text.encode() if descriptor.type == FieldDescriptor.TYPE_BYTES else text
            case FieldDescriptor.CPPTYPE_INT32:
                return rng.choice([value for value in _SIGNED if -2**31 <= value < 2**31])
            case FieldDescriptor.CPPTYPE_UINT32:
                return rng.choice([value for value in _NUMBERS if value < 2**32])
            case FieldDescriptor.CPPTYPE_INT64:
                return rng.choice(_SIGNED)
        return rng.choice(_NUMBERS)


async def send_all(addresses: dict[str, str], mesh: str, made: GrpcMessages, count: int, at_once: int = 8) -> Tally:
    """Send so many messages to the components at these addresses, most of them in the name of their mesh."""
    tally, left = Tally(), count
    async with AsyncExitStack() as stack:
        channels = {name: await stack.enter_async_context(grpc.aio.insecure_channel(address))
                    for name, address in addresses.items()}

        async def sender() -> None:
            nonlocal left
            while left > 0:
                component, method = made.method(sorted(addresses))
                payloads, metadata, manner = made.payloads(method), made.metadata(mesh), made.manner(method)
                left -= max(len(payloads), 1)
                tally.sent += max(len(payloads), 1)
                code, detail = await _call(channels[component], method, payloads, metadata, manner)
                tally.statuses[code.name] += 1
                if code in WRONG:
                    tally.wrong.append(f"{method.full_name}: {code.name}: {detail[:300]} to "
                                       f"{[payload[:60].hex() for payload in payloads]}")

        await asyncio.gather(*(sender() for _ in range(at_once)))
    return tally


async def _call(channel: grpc.aio.Channel, method: MethodDescriptor, payloads: list[bytes],
                metadata: list[tuple[str, str | bytes]], manner: Manner) -> tuple[grpc.StatusCode, str]:
    async def requests() -> AsyncIterator[bytes]:
        for payload in payloads:
            yield payload

    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call: Any = getattr(channel, kind)(manner.path)(
        requests() if method.client_streaming else payloads[0], timeout=manner.seconds, metadata=metadata,
        compression=manner.compression)
    if manner.cancelled is not None:
        asyncio.get_running_loop().call_later(manner.cancelled, call.cancel)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        if error.details() == _CLIENTS_OWN:
            return grpc.StatusCode.ABORTED, ""
        return error.code(), error.details() or ""
    except asyncio.CancelledError:
        return grpc.StatusCode.CANCELLED, ""
    return grpc.StatusCode.OK, ""
