"""The sending end of a ring stream in a program of yours: at-least-once, with acks by id and resend.

    async with AsyncDelivery("turns", "127.0.0.1:50052") as delivery:
        await delivery.send(turn)          # waits only while very many are not acknowledged
        await delivery.flush(timeout=30)   # all acknowledged

    with Delivery("transitions", "127.0.0.1:50053") as delivery: ...   # blocking

A message is kept in memory until it is acknowledged; one of a known id is acknowledged as a duplicate, so sending it
again is harmless. A component that must not lose any when it is killed keeps them on disk: openclaw_rl.delivery.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import grpc

from openclaw_rl.client.base import find
from openclaw_rl.client.ring_memory import Memory
from openclaw_rl.delivery.ids import message_id
from openclaw_rl.delivery.requests import make_request
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.delivery.validation import validate_id
from openclaw_rl.rpc.auth import current
from openclaw_rl.rpc.channel import with_true_status
from openclaw_rl.rpc.errors import MeshError, invalid_many
from openclaw_rl.rpc.membership import Membership, of_client
from openclaw_rl.v1.environment_pb2 import PolicyEvent, RecordTurnsRequest
from openclaw_rl.v1.environment_pb2_grpc import EnvironmentServiceStub
from openclaw_rl.v1.judge_pb2 import JudgeTransitionsRequest
from openclaw_rl.v1.judge_pb2_grpc import JudgeServiceStub
from openclaw_rl.v1.trainer_pb2 import SubmitSamplesRequest
from openclaw_rl.v1.trainer_pb2_grpc import TrainerServiceStub
from openclaw_rl.v1.turn_pb2 import Feedback, Sample, SessionActive, SessionEnd, Transition, Turn

if TYPE_CHECKING:
    from openclaw_rl.rpc.channel import Credentials
    from openclaw_rl.runtime.home import Home

T = TypeVar("T")
Kind = Literal["turns", "transitions", "samples"]
RingMessage = Turn | Feedback | SessionEnd | SessionActive | PolicyEvent | Transition | Sample

#: Messages that may wait for their acks before `send` waits itself.
MOST_WAITING = 2000


@dataclass(frozen=True)
class _Ring:
    """One hop: who takes the messages, and how."""

    component: str
    open: Callable[[grpc.aio.Channel], Callable[[], Any]]
    request: Callable[[list[bytes]], Any]
    types: tuple[type, ...]


_RINGS: dict[str, _Ring] = {
    "turns": _Ring("env_server", lambda channel: EnvironmentServiceStub(channel).RecordTurns,
                   partial(make_request, RecordTurnsRequest, "events"), (PolicyEvent,)),
    "transitions": _Ring("prm_judge", lambda channel: JudgeServiceStub(channel).JudgeTransitions,
                         partial(make_request, JudgeTransitionsRequest, "transitions"), (Transition,)),
    "samples": _Ring("trainer", lambda channel: TrainerServiceStub(channel).SubmitSamples,
                     partial(make_request, SubmitSamplesRequest, "samples"), (Sample,)),
}


class AsyncDelivery:
    """Sends messages of one kind to the component that takes them. An asynchronous context manager: leaving it waits
    until all are acknowledged, as `flush` does.

    Args:
        kind: "turns" (also feedback and ends of sessions) to an environment server, "transitions" to a judge,
            "samples" to a trainer.
        address: HOST:PORT; None takes the running component's own of the mesh in `home`.
        home, credentials: as of the clients (`base.Client`).
        mesh: id of the mesh that the messages belong to; default that of `home`, also with an address. A component
            takes no messages of another one, and on plain text none of a sender that names none.
        window: most messages in flight.
        ack_timeout: seconds after which a peer that acknowledges nothing is given up (NO_ACK) and connected to anew.
        on_trouble: called with whatever ends a stream; sending goes on with a new one.

    Attributes:
        trouble: the last of those; None once something was acknowledged.

    Raises:
        ValueError: `kind`, `window` or `ack_timeout` can't be one.
        MeshError, ConfigError: as the clients.
    """

    def __init__(self, kind: Kind, address: str | None = None, *, home: Home | None = None,
                 credentials: Credentials | None = None, mesh: str | None = None, window: int = 256,
                 ack_timeout: float = 60.0, on_trouble: Callable[[MeshError], None] | None = None) -> None:
        if kind not in _RINGS:
            raise ValueError(f"kind: {kind!r} is not allowed: must be one of {', '.join(_RINGS)}")
        for name, value, least in (("window", window, 1), ("ack_timeout", ack_timeout, 0.001)):
            if not value >= least:
                raise ValueError(f"{name}: {value:g} is not allowed: must be at least {least:g}")
        self._ring, self._open = _RINGS[kind], False
        self.address = address or find(self._ring.component, home)
        self.trouble: MeshError | None = None
        self._on_trouble, self._ack_timeout = on_trouble, ack_timeout
        self._change = asyncio.Event()
        self._memory = Memory(kind, self._settled)
        self._sender = Sender(self._memory, lambda: self.address,
                              self._opened, self._ring.request, window, ack_timeout=ack_timeout,
                              role=self._ring.component, credentials=credentials or current.for_client(home),
                              ours=Membership(mesh) if mesh else of_client(home, credentials),
                              on_failure=self._failed)

    async def send(self, message: RingMessage) -> None:
        """Hand a message over; it is sent, and sent again, until it is acknowledged. Waits while MOST_WAITING do.

        Raises:
            MeshError: INVALID_ARGUMENT, its id can't be one; or as `flush`, while it waits.
            RuntimeError: nothing is sent before the `with` or behind it.
        """
        event = _wrapped(message)
        if not isinstance(event, self._ring.types):
            raise TypeError(f"{type(message).__name__} is not for {self._memory.name}")
        id = message_id(event)
        if rejection := validate_id("id", id):
            raise invalid_many([("id", rejection.message)])
        if not self._open:
            raise RuntimeError(f"the delivery of {self._memory.name} is not open")
        await self._until(lambda: len(self._memory.waiting) < MOST_WAITING)
        self._memory.put(id, event.SerializeToString())

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until all that was sent is acknowledged (accepted, a duplicate, or rejected: see `rejected`).

        Raises:
            MeshError: what keeps it from being so, as soon as that won't go away by itself (FOREIGN_ACK, a wrong key,
                another service); else after `timeout` seconds: the last trouble, such as NO_ACK or UNAVAILABLE, or
                DEADLINE_EXCEEDED.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: not self._memory.waiting)
        except TimeoutError:
            left = f"{len(self._memory.waiting)} messages are not acknowledged after {timeout:g} s"
            if (why := self.trouble) is not None:
                raise MeshError(why.code, why.reason, f"{left}: {why.message}", retry_after=why.retry_after) from None
            raise MeshError(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", left) from None

    @property
    def waiting(self) -> int:
        """Messages that are not acknowledged."""
        return len(self._memory.waiting)

    @property
    def delivered(self) -> int:
        """Messages that the receiver has; `duplicates` of them it had before."""
        return self._memory.delivered

    @property
    def duplicates(self) -> int:
        """See `delivered`."""
        return self._memory.duplicates

    @property
    def rejected(self) -> dict[str, str]:
        """Reasons by id of messages that the receiver does not take; they are not sent again."""
        return dict(self._memory.rejected)

    async def aclose(self) -> None:
        """End at once. What is not acknowledged is lost to this object."""
        self._open = False
        await self._sender.stop()

    async def __aenter__(self) -> Self:
        self._open = True
        self._sender.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                await self.flush(self._ack_timeout)
        finally:
            await self.aclose()

    def _opened(self, channel: grpc.aio.Channel) -> Callable[[], Any]:
        method = self._ring.open(channel)
        return lambda: with_true_status(method())  # what ended a stream decides whether it is opened again

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.trouble is not None and not self.trouble.retryable:
                raise self.trouble
            self._change.clear()
            await self._change.wait()

    def _settled(self) -> None:
        self.trouble = None
        self._change.set()

    def _failed(self, error: MeshError) -> None:
        self.trouble = MeshError(error.code, error.reason, f"{self._ring.component} at {self.address}: {error.message}",
                                 retry_after=error.retry_after, metadata=error.metadata)
        self._change.set()
        if self._on_trouble is not None:
            self._on_trouble(self.trouble)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all blocking deliveries, on a thread of its own: grpc.aio does not do well with loops that come
    and go."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="deliveries", daemon=True).start()
    return loop


class Delivery:
    """As `AsyncDelivery`, for programs without an event loop. `on_trouble` is called on the thread of all deliveries,
    and must not hold it up."""

    def __init__(self, kind: Kind, address: str | None = None, **options: Any) -> None:
        async def made() -> AsyncDelivery:
            return await AsyncDelivery(kind, address, **options).__aenter__()

        self._delivery = self._run(made())

    def send(self, message: RingMessage) -> None:
        """As `AsyncDelivery.send`."""
        self._run(self._delivery.send(message))

    def flush(self, timeout: float | None = None) -> None:
        """As `AsyncDelivery.flush`."""
        self._run(self._delivery.flush(timeout))

    @property
    def trouble(self) -> MeshError | None:
        """As `AsyncDelivery.trouble`."""
        return self._delivery.trouble

    @property
    def waiting(self) -> int:
        """As `AsyncDelivery.waiting`."""
        return self._delivery.waiting

    @property
    def delivered(self) -> int:
        """As `AsyncDelivery.delivered`."""
        return self._delivery.delivered

    @property
    def duplicates(self) -> int:
        """As `AsyncDelivery.duplicates`."""
        return self._delivery.duplicates

    @property
    def rejected(self) -> dict[str, str]:
        """As `AsyncDelivery.rejected`."""
        return self._delivery.rejected

    def close(self) -> None:
        """As `AsyncDelivery.aclose`."""
        self._run(self._delivery.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._run(self._delivery.__aexit__(kind, error, trace))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def _wrapped(message: RingMessage) -> PolicyEvent | Transition | Sample:
    match message:
        case Turn():
            return PolicyEvent(turn=message)
        case Feedback():
            return PolicyEvent(feedback=message)
        case SessionEnd():
            return PolicyEvent(session_end=message)
        case SessionActive():
            return PolicyEvent(session_active=message)
    return message
