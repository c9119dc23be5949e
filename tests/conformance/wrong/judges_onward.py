"""Judges that are wrong in what they send on, and in their votes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.v1 import common_pb2, judge_pb2, trainer_pb2, turn_pb2
from tests.conformance.wrong.fault import wrong
from tests.conformance.wrong.judge import Judge


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
        behind = 0
        while not reader.done():
            await asyncio.sleep(0.15)
            rows = self.store.waiting(behind)
            for _, _, payload in reversed(rows):
                await call.write(trainer_pb2.SubmitSamplesRequest(samples=[turn_pb2.Sample.FromString(payload)]))
            behind = max([behind, *(seq for seq, _, _ in rows)])


@wrong("onward.slow", r"(12 messages were acknowledged after|of 12 messages were not acknowledged \(within) \d")
class AcksWhenTheTrainerDoes(Judge):
    patience = 60.0

    async def on_ring(self, requests: AsyncIterator[judge_pb2.JudgeTransitionsRequest]
                      ) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        loop = asyncio.get_running_loop()
        async for request in requests:
            acks = self.accept_all(list(request.transitions))
            end = loop.time() + self.patience
            while self.store.waiting():
                if loop.time() > end:
                    raise unavailable("the trainer is away")
                await asyncio.sleep(0.02)
            yield judge_pb2.JudgeTransitionsResponse(acks=acks)


@wrong("onward.away", r"5 of 5 messages were not acknowledged \(the stream ended with UNAVAILABLE")
class NeedsTheTrainer(AcksWhenTheTrainerDoes):
    patience = 1.0


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
