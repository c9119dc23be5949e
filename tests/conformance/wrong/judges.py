"""Judges with one fault each. `fails` is the check that must fail of it, `seen` a pattern of what the report says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from openclaw_rl.mesh.errors import MeshError
from openclaw_rl.mesh.interceptor import ErrorInterceptor
from openclaw_rl.v1 import common_pb2, component_pb2, judge_pb2, judge_pb2_grpc, turn_pb2

from .judge import SERVICE, Judge, Store

_ACCEPTED = common_pb2.ACK_STATUS_ACCEPTED

FAULTS: dict[str, type[Judge]] = {}
#: Name of a fault -> the check that fails, and a pattern of what was seen.
EXPECTED: dict[str, tuple[str, str]] = {}


def wrong(fails: str, seen: str) -> Any:
    def register(judge: type[Judge]) -> type[Judge]:
        FAULTS[judge.__name__] = judge
        EXPECTED[judge.__name__] = (fails, seen)
        return judge

    return register


# -- acknowledgements ------------------------------------------------------------------------------------------------

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


# -- disk ------------------------------------------------------------------------------------------------------------

@wrong("ring.kill", "messages that were ACCEPTED are ACCEPTED when they come again")
class KeepsNothing(Judge):
    """Acknowledges what it has in memory only."""

    def make_store(self, data: Path | None) -> Store:
        return Store(":memory:")


@wrong("ring.kill", "messages that were ACCEPTED are ACCEPTED when they come again")
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


# -- errors ----------------------------------------------------------------------------------------------------------

class _Changed(ErrorInterceptor):
    """Sends other errors than the handlers raise."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self._change = change

    def _coroutine(self, behaviour: Any, method: str, many: bool, streaming: bool) -> Any:
        right = super()._coroutine(behaviour, method, many, streaming)

        async def handle(requests: Any, context: Any) -> Any:
            return await right(requests, _Context(context, self._change))

        return handle


class _Context:
    def __init__(self, context: Any, change: Any) -> None:
        self._context, self._change = context, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: Any, message: str = "", trailing: Any = ()) -> None:
        if trailing:  # else it is the health's
            code, message, trailing = self._change(code, message, trailing)
        await self._context.abort(code, message, trailing)


def _without(detail: Any) -> Any:
    """A change that leaves one kind of details out."""
    def change(code: Any, message: str, trailing: Any) -> Any:
        status = status_pb2.Status.FromString(trailing[0][1])
        kept = [one for one in status.details if not one.Is(detail.DESCRIPTOR)]
        del status.details[:]
        status.details.extend(kept)
        return code, message, ((trailing[0][0], status.SerializeToString()),)

    return change


@wrong("component.errors.details", "no ErrorInfo of the domain openclaw-rl: Forget without a session")
class NoDetails(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(lambda code, message, trailing: (code, message, ()))


@wrong("component.errors.fields", "Judge of nothing: transition is not named")
class NoFields(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(_without(error_details_pb2.BadRequest))


@wrong("component.errors.code", "Judge of nothing was answered INTERNAL .*, not INVALID_ARGUMENT")
class WrongCode(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(lambda code, message, trailing: (
            code if message.startswith("grace") else grpc.StatusCode.INTERNAL, message, trailing))


@wrong("component.errors.message", "no message: Forget without a session")
class NoMessage(Judge):
    def make_interceptor(self) -> ErrorInterceptor:
        return _Changed(lambda code, message, trailing: (code, "", trailing))


# -- what all components have ----------------------------------------------------------------------------------------

@wrong("component.health", "UNIMPLEMENTED")
class NoHealth(Judge):
    async def add_health(self, server: grpc.aio.Server) -> None:
        pass


@wrong("component.health", "'openclaw_rl.v1.JudgeService' is NOT_SERVING")
class HealthNotServing(Judge):
    async def add_health(self, server: grpc.aio.Server) -> None:
        await super().add_health(server)
        await self.health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)


@wrong("component.health.unknown", "Check of 'no.such.Service' succeeded")
class HealthKnowsAll(Judge):
    async def add_health(self, server: grpc.aio.Server) -> None:
        class Health(health_pb2_grpc.HealthServicer):
            async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:
                return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

            async def Watch(self, request: Any, context: Any) -> AsyncIterator[health_pb2.HealthCheckResponse]:
                yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
                await asyncio.sleep(60)

        health_pb2_grpc.add_HealthServicer_to_server(Health(), server)


@wrong("component.reflection.contract", "Vote field 2 is string score, not int32 score")
class AnotherContract(Judge):
    def describe(self, file: FileDescriptorProto) -> None:
        for message in file.message_type:
            if message.name == "Vote":
                message.field[1].type = message.field[1].TYPE_STRING


@wrong("component.status", "name is 'my_judge', and the component of openclaw_rl.v1.JudgeService is 'prm_judge'")
class WrongName(Judge):
    name = "my_judge"

    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        async for answer in super().on_stats(seconds):
            answer.status.name = Judge.name
            yield answer


@wrong("component.status", "contract_version is 2.0; this kit is for 1.x")
class NextMajor(Judge):
    def status(self) -> component_pb2.ComponentStatus:
        status = super().status()
        status.contract_version = "2.0"
        return status


@wrong("component.stats", "4 answers within 0.0. s, asked for one every 0.2 s")
class StatsWithoutPause(Judge):
    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        async for answer in super().on_stats(0.005 if seconds == 0.2 else seconds):
            yield answer


@wrong("component.stats.cancel", "20 watches at once were not answered")
class IgnoresCancellation(Judge):
    """A watch keeps its place when its caller is gone; there are 60."""

    places = 60

    async def on_stats(self, seconds: float) -> AsyncIterator[component_pb2.WatchStatsResponse]:
        while self.places <= 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.places -= 1
        async for answer in super().on_stats(seconds):
            yield answer


@wrong("component.big", "a request of 8 MiB was answered RESOURCE_EXHAUSTED")
class SmallMessages(Judge):
    limit = 5 * 2**20


@wrong("component.big.refused", "a request of 17 MiB succeeded")
class NoLimit(Judge):
    limit = -1


@wrong("component.drain", "s after Drain it still takes connections")
class DrainIgnored(Judge):
    async def drain(self) -> None:
        pass


@wrong("component.drain.retry", "without RetryInfo: JudgeTransitions")
class DrainCuts(Judge):
    async def end_streams(self) -> None:
        pass


@wrong("component.sigterm", "it ended with code 3")
class EndsWithThree(Judge):
    exit_code = 3


# -- calls of the ring -----------------------------------------------------------------------------------------------

@wrong("ring.unknown.fields", "the stream ended with")
class StopsAtUnknownFields(Judge):
    def add_services(self, server: grpc.aio.Server) -> None:
        def strict(payload: bytes) -> judge_pb2.JudgeTransitionsRequest:
            request = judge_pb2.JudgeTransitionsRequest.FromString(payload)
            size = request.ByteSize()
            request.DiscardUnknownFields()
            if request.ByteSize() != size:
                raise ValueError("unknown fields")
            return request

        original = judge_pb2.JudgeTransitionsRequest
        patched = type("Strict", (), {"FromString": staticmethod(strict)})
        judge_pb2.JudgeTransitionsRequest = patched  # type: ignore[assignment, misc]
        judge_pb2_grpc.openclaw__rl_dot_v1_dot_judge__pb2.JudgeTransitionsRequest = patched
        try:
            super().add_services(server)
        finally:
            judge_pb2.JudgeTransitionsRequest = original  # type: ignore[misc]
            judge_pb2_grpc.openclaw__rl_dot_v1_dot_judge__pb2.JudgeTransitionsRequest = original


# -- what is sent on -------------------------------------------------------------------------------------------------

@wrong("onward.arrives", "4 of 4 samples did not arrive")
class SendsNothing(Judge):
    def sending(self, rows: list[tuple[int, str, bytes]]) -> list[tuple[int, str, bytes]]:
        return []


@wrong("onward.cut", "did not (arrive|come again)")
class ForgetsWhatItSent(Judge):
    """Takes what it has written for delivered."""

    def sent(self, id: str) -> None:
        self.store.settle(id)


@wrong("onward.silent", "not acknowledged, but ids that nobody has sent did not come again")
class BelievesForeignAcks(Judge):
    """An acknowledgement settles the oldest message, whatever its id."""

    def settle(self, ack: common_pb2.Ack) -> None:
        waiting = self.store.waiting()
        if waiting:
            self.store.settle(waiting[0][1])


@wrong("onward.refused", "was rejected and sent again")
class InsistsOnTheRejected(Judge):
    def settle(self, ack: common_pb2.Ack) -> None:
        if ack.status != common_pb2.ACK_STATUS_REJECTED:
            super().settle(ack)


@wrong("onward.unchanged", "tokens of .* is nothing")
class DropsTokens(Judge):
    def sample(self, transition: turn_pb2.Transition) -> turn_pb2.Sample:
        sample = super().sample(transition)
        sample.transition.turn.ClearField("tokens")
        return sample


@wrong("onward.trace", "traceparent is ''")
class DropsTheTrace(Judge):
    def sample(self, transition: turn_pb2.Transition) -> turn_pb2.Sample:
        sample = super().sample(transition)
        sample.transition.turn.ClearField("trace")
        return sample


@wrong("onward.order.judged", "place 0 has")
class LosesOrder(Judge):
    """Sends what has gathered the newest first."""

    async def _write(self, call: Any, reader: asyncio.Task[None]) -> None:
        await call.initial_metadata()
        self.connected = True
        from openclaw_rl.v1 import trainer_pb2

        behind = 0
        while not reader.done():
            await asyncio.sleep(0.15)
            rows = self.store.waiting(behind)
            for _, _, payload in reversed(rows):
                await call.write(trainer_pb2.SubmitSamplesRequest(samples=[turn_pb2.Sample.FromString(payload)]))
            behind = max([behind, *(seq for seq, _, _ in rows)])


# -- votes -----------------------------------------------------------------------------------------------------------

@wrong("judge.judge", "the vote of small has the score 7")
class VotesSeven(Judge):
    async def on_judge(self, transition: turn_pb2.Transition) -> turn_pb2.Judgement:
        judgement = self.judge(transition)
        judgement.votes[0].score = judgement.score = 7
        return judgement


@wrong("judge.judge", r"score is 1, and the votes that count are 1, -1 \(sum 0\); their majority is 0")
class TieIsGood(Judge):
    async def on_judge(self, transition: turn_pb2.Transition) -> turn_pb2.Judgement:
        votes = [turn_pb2.Vote(judge="one", score=1), turn_pb2.Vote(judge="two", score=-1)]
        return turn_pb2.Judgement(turn_id=transition.turn.turn_id, score=1, votes=votes, judged_at=self.started)


@wrong("judge.judge.forgets", "ListJudgements tells a judgement of it")
class KeepsWhatItIsAsked(Judge):
    async def on_judge(self, transition: turn_pb2.Transition) -> turn_pb2.Judgement:
        self.accept(transition)
        return self.judge(transition)


@wrong("judge.watch", "session_id is")
class WatchTellsAll(Judge):
    def accept(self, transition: turn_pb2.Transition) -> list[common_pb2.Ack]:
        self.watchers = [("", queue) for _, queue in self.watchers]
        return super().accept(transition)


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
