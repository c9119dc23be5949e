"""Judges that are wrong in how they take the ring's messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.v1 import common_pb2, judge_pb2, turn_pb2
from tests.conformance.wrong.fault import read_by, wrong
from tests.conformance.wrong.judge import Judge
from tests.conformance.wrong.store import Store

_ACCEPTED = common_pb2.ACK_STATUS_ACCEPTED
_LIMIT = 16 * 2**20


@wrong("ring.acks", r"1 of 1 messages were not acknowledged \(within")
class NeverAcks(Judge):
    def accept_all(self, transitions: list[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        super().accept_all(transitions)
        return []


@wrong("ring.acks", r"not acknowledged \(within")
class AcksInHeaps(Judge):
    """Acknowledges when ten have come."""

    async def on_ring(self, requests: AsyncIterator[judge_pb2.JudgeTransitionsRequest]
                      ) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        acks: list[common_pb2.Ack] = []
        async for request in requests:
            acks += self.accept_all(list(request.transitions))
            if len(acks) >= 10:
                yield judge_pb2.JudgeTransitionsResponse(acks=acks)
                acks = []
        yield judge_pb2.JudgeTransitionsResponse(acks=acks)


@wrong("ring.acks.own", "acknowledged, and never sent: somebody-else")
class AcksForeignIds(Judge):
    def accept_all(self, transitions: list[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        acks = super().accept_all(transitions)
        return acks if len(acks) == 1 else [*acks, common_pb2.Ack(id="somebody-else", status=_ACCEPTED)]


@wrong("ring.acks.once", "24 of 24 messages were acknowledged more than once")
class AcksTwice(Judge):
    def accept_all(self, transitions: list[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        acks = super().accept_all(transitions)
        return acks * 2 if len(transitions) == 6 else acks


@wrong("ring.duplicate.other", "5 of 5 messages that came again are no DUPLICATE: .*ACCEPTED")
class ForgetsWithTheStream(Judge):
    """Knows the ids of one stream only."""

    async def on_ring(self, requests: AsyncIterator[judge_pb2.JudgeTransitionsRequest]
                      ) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        seen: set[str] = set()
        async for request in requests:
            for transition in request.transitions:
                if transition.turn.turn_id not in seen and not self.problem(transition):
                    self.store.db.execute("DELETE FROM inbox WHERE id = ?", (transition.turn.turn_id,))
                seen.add(transition.turn.turn_id)
            yield judge_pb2.JudgeTransitionsResponse(acks=self.accept_all(list(request.transitions)))


@wrong("ring.duplicate.content", "it is ACCEPTED")
class TakesAnIdTwice(Judge):
    def accept(self, transition: turn_pb2.Transition) -> list[common_pb2.Ack]:
        [ack] = super().accept(transition)
        if ack.reason == "the id was used before":
            return [common_pb2.Ack(id=ack.id, status=_ACCEPTED)]
        return [ack]


@wrong("ring.rejected", "it is ACCEPTED")
class TakesEmptyIds(Judge):
    def problem(self, transition: turn_pb2.Transition) -> str:
        return super().problem(transition) if transition.turn.turn_id else ""


@wrong("ring.rejected", "REJECTED without a reason")
class RejectsWithoutReason(Judge):
    def accept(self, transition: turn_pb2.Transition) -> list[common_pb2.Ack]:
        [ack] = super().accept(transition)
        ack.reason = ""
        return [ack]


@wrong("ring.rejected", "it ended the stream with INVALID_ARGUMENT")
class RejectsTheStream(Judge):
    def accept(self, transition: turn_pb2.Transition) -> list[common_pb2.Ack]:
        [ack] = super().accept(transition)
        if self.problem(transition):
            raise MeshError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", ack.reason)
        return [ack]


@wrong("ring.rejected.others", "REJECTED")
class OneBadRejectsAll(Judge):
    def accept_all(self, transitions: list[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        if len(transitions) > 1 and any(map(self.problem, transitions)):
            return [common_pb2.Ack(id=one.turn.turn_id, status=common_pb2.ACK_STATUS_REJECTED, reason="a bad request")
                    for one in transitions]
        return super().accept_all(transitions)


@wrong("ring.half-closed", "messages were not acknowledged")
class ForgetsTheLast(Judge):
    """Does not acknowledge what came last before the sender closed its side."""

    async def on_ring(self, requests: AsyncIterator[judge_pb2.JudgeTransitionsRequest]
                      ) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        read = aiter(requests)
        upcoming = asyncio.ensure_future(anext(read, None))
        while (request := await upcoming) is not None:
            upcoming = asyncio.ensure_future(anext(read, None))
            acks = self.accept_all(list(request.transitions))
            await asyncio.wait((upcoming,), timeout=0.05)
            if not (upcoming.done() and upcoming.result() is None and len(acks) == 4):
                yield judge_pb2.JudgeTransitionsResponse(acks=acks)


@wrong("ring.kill", "messages that were ACCEPTED are ACCEPTED when they come again",
       start=True)
class KeepsNothing(Judge):
    """Acknowledges what it has in memory only."""

    def make_store(self, data: Path | None) -> Store:
        return Store(":memory:")


@wrong("ring.kill", "messages that were ACCEPTED are ACCEPTED when they come again",
       start=True)
class AcksBeforeStoring(Judge):
    """Commits a second behind the acknowledgements."""

    def make_store(self, data: Path | None) -> Store:
        class Late(Store):
            saved = time.monotonic()

            def save(self) -> None:
                if time.monotonic() > self.saved + 1:
                    self.db.commit()
                    self.saved = time.monotonic()

        assert data is not None
        return Late(str(data / "judge.db"))


@wrong("ring.unknown.fields", "the stream ended with")
class StopsAtUnknownFields(Judge):
    def add_services(self, server: grpc.aio.Server) -> None:
        right = judge_pb2.JudgeTransitionsRequest.FromString

        def strict(payload: bytes) -> judge_pb2.JudgeTransitionsRequest:
            request = right(payload)
            size = request.ByteSize()
            request.DiscardUnknownFields()
            if request.ByteSize() != size:
                raise ValueError("unknown fields")
            return request

        with read_by(judge_pb2, "JudgeTransitionsRequest", strict):
            super().add_services(server)


@wrong("ring.big.refused", "it was not refused")
class TakesTooLarge(Judge):
    limit = -1


@wrong("ring.big.refused", "the server ended the stream|the stream ended")
class EndsAllStreamsByALargeMessage(Judge):
    limit = -1

    def accept_all(self, transitions: list[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        if sum(one.ByteSize() for one in transitions) > _LIMIT:
            self.interceptor.end_streams()
            raise MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_LARGE", "more than 16 MiB")
        return super().accept_all(transitions)


@wrong("ring.slow", "beside a sender that does not read|messages were not acknowledged")
class OneReaderAtATime(Judge):
    """Gives acknowledgements under one lock for all streams."""

    async def on_ring(self, requests: AsyncIterator[judge_pb2.JudgeTransitionsRequest]
                      ) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        async for request in requests:
            async with self.lock:
                yield judge_pb2.JudgeTransitionsResponse(acks=self.accept_all(list(request.transitions)))


class _NoHeaders:
    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def send_initial_metadata(self, metadata: Any) -> None:
        pass


@wrong("ring.headers", "no headers of JudgeTransitions within 3 s")
class HeadersLate(Judge):
    """Sends headers with the first answer."""

    def make_interceptor(self) -> ErrorInterceptor:
        class Late(ErrorInterceptor):
            def _generator(self, behaviour: Any, method: str, many: bool, streaming: bool) -> Any:
                if not method.endswith("/JudgeTransitions"):
                    return super()._generator(behaviour, method, many, streaming)
                right = super()._generator(behaviour, method, many, streaming)

                async def handle(requests: Any, context: Any) -> AsyncIterator[Any]:
                    async for answer in right(requests, _NoHeaders(context)):
                        yield answer

                return handle

        return Late()
