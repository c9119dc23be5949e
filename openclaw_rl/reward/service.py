"""Judging of transitions, independent of gRPC.

An instant judge votes in the very transaction that stores the transitions. Any other works from the queue on disk,
`workers` transitions at a time; while the probe says that the judge can't work just now, transitions wait there, each
for at most HOLD_SECONDS, and are then judged failed (by the rules where these are certain).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence

from openclaw_rl.delivery.validation import RejectionCode
from openclaw_rl.observability import turn_spans as traces
from openclaw_rl.observability.journal import Journal
from openclaw_rl.privacy import Target
from openclaw_rl.reward.alarms import FailedShare, waiting_alarm
from openclaw_rl.reward.broadcast import Broadcast
from openclaw_rl.reward.interface import BudgetedJudge
from openclaw_rl.reward.panel import Panel
from openclaw_rl.reward.probe import RETRY_SECONDS, Probe
from openclaw_rl.reward.queue import JudgeQueue
from openclaw_rl.reward.validation import validate_transition
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.alarms import Alarms, Raised, quarantine_alarm
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.storage.inbox import IdConflict
from openclaw_rl.v1 import common_pb2, component_pb2, turn_pb2

logger = logging.getLogger(__name__)

#: Seconds for which a transition waits for a judge that can't be reached.
HOLD_SECONDS = 15 * 60.0
#: Transitions per transaction when a backlog is judged at once.
_BACKLOG_BATCH = 64
_WORD = {1: "satisfied", 0: "neutral", -1: "dissatisfied"}

_Judged = tuple[turn_pb2.Transition, turn_pb2.Judgement]


class JudgeService:
    """Takes transitions, has them judged, and publishes the judgements; samples go into the outbox."""

    def __init__(self, panel: Panel, queue: JudgeQueue, broadcast: Broadcast, journal: Journal, workers: int,
                 hold_seconds: float = HOLD_SECONDS, probe_seconds: float = RETRY_SECONDS) -> None:
        self.panel, self.queue, self.broadcast = panel, queue, broadcast
        self._journal, self._workers, self._hold = journal, workers, hold_seconds
        self._wake = asyncio.Event()
        self.probe = Probe(panel, self._wake.set, probe_seconds)
        self._alarms, self._failed = Alarms(), FailedShare()
        self._in_hand: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Start judging, beginning with what was left waiting."""
        work = [self._judge_backlog()] if self.panel.instant else [self._work() for _ in range(self._workers)]
        self._tasks = [asyncio.create_task(task) for task in (self.probe.run(), *work)]

    async def stop(self, grace: float = 0.0) -> None:
        """Stop taking from the queue and wait `grace` seconds for judgements in progress; the rest stays on disk."""
        self._stopping = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*self._tasks[1:], return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def accept(self, transitions: Sequence[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        """Store transitions in one transaction, and answer each.

        Raises:
            StorageError: none was stored.
        """
        acks, judged = await self.queue.call(self._accept, transitions)
        self._publish(judged)
        self._wake.set()
        return acks

    def _accept(self, transitions: Sequence[turn_pb2.Transition]) -> tuple[list[common_pb2.Ack], list[_Judged]]:
        acks: list[common_pb2.Ack] = []
        judged: list[_Judged] = []
        with self.queue.batch() as batch:
            for transition in transitions:
                turn_id = transition.turn.turn_id
                if self.queue.forgot(transition):  # while it was in transit
                    acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_ACCEPTED))
                    continue
                rejection, new = validate_transition(transition), False
                try:
                    new = rejection is None and batch.accept(transition)
                except IdConflict as error:
                    rejection = Rejection(RejectionCode.ID_CONFLICT, f"turn.turn_id: {error}")
                if rejection is not None:
                    batch.refuse(transition, rejection.message)
                    acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_REJECTED,
                                               reason=rejection.message))
                    continue
                if not new:
                    acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_DUPLICATE))
                    continue
                acks.append(common_pb2.Ack(id=turn_id, status=common_pb2.ACK_STATUS_ACCEPTED))
                if self.panel.instant:
                    judgement = self.panel.decide_now(transition).judgement
                    batch.judged(transition, judgement)
                    judged.append((transition, judgement))
                else:
                    batch.wait(transition)
        return acks, judged

    async def forget(self, target: Target) -> tuple[Target, dict[str, int]]:
        """Delete everything of a session, including what is being judged; see JudgeQueue.forget.

        Raises:
            StorageError, OSError: the store or the journal can't be written.
        """
        samples = await self.queue.read(self.queue.find_samples, target)
        target, removed = await self.queue.call(self.queue.forget, target, samples)
        lines = await asyncio.to_thread(self._journal.forget, target.session_id)
        return target, removed | {"journal lines": lines}

    async def judge(self, transition: turn_pb2.Transition) -> turn_pb2.Judgement:
        """Judge a transition now, without storing anything."""
        return (await self.panel.decide(transition)).judgement

    @property
    def holding(self) -> bool:
        """Whether transitions wait because the judge can't work just now."""
        return not self.panel.instant and self.probe.outage and (not self.probe.done or bool(self.probe.problem))

    def status(self, more: Iterable[Raised] = ()) -> component_pb2.ComponentStatus:
        """State, detail, counters, gauges and alarms.

        Args:
            more: alarms of other parts of the component.
        """
        states = component_pb2
        status = component_pb2.ComponentStatus(state=states.COMPONENT_STATE_RUNNING,
                                               counters=dict(self.queue.counters),
                                               gauges={"queue": self.queue.waiting, "in_hand": len(self._in_hand)})
        if not self.probe.done:
            status.state = states.COMPONENT_STATE_STARTING
            status.detail = f"asking judge {self.panel.judge.name} for a first vote"
        elif not self.probe.problem:
            votes = self.panel.votes
            status.detail = f"judge {self.panel.judge.name}, {votes} vote{'s' if votes > 1 else ''} a turn"
        if isinstance(self.panel.judge, BudgetedJudge) and (limit := self.panel.judge.budget.per_minute) is not None:
            budget = self.panel.judge.budget
            status.gauges.update({"budget_waiting": budget.waiting, "budget_wait_s": budget.wait})
            if budget.waiting:
                status.detail += (f"; {self.queue.waiting} turns wait, {budget.waiting} votes of them for the budget "
                                  f"of {limit} requests a minute")
        self._alarms.report(status, [
            ("judge_failing", self._failing()), self._failed.alarm,
            waiting_alarm(self.queue.waiting, self.queue.oldest_received, self._workers),
            quarantine_alarm("transitions", self.queue.quarantine.count, self.queue.quarantine.last), *more])
        return status

    def _failing(self) -> str:
        """Message for a judge that does not work, with what happens to the turns; empty if it works."""
        if not self.probe.problem:
            return ""
        wait = (f"{self.queue.waiting} turns wait, each for at most {self._hold / 60:.0f} min" if self.holding
                else "turns are judged failed where it gives no vote")
        return (f"judge {self.panel.judge.name} does not work: {self.probe.problem}; {wait}; next try in "
                f"{self.probe.next_try_in:.0f} s")

    async def _work(self) -> None:
        while not self._stopping:
            seq = None
            try:
                seq, expired = await self._next()
                if seq is None:
                    return
                await self._judge_waiting(seq, expired)
            except MeshError as error:  # the disk is full or gone: the transition stays in the queue
                logger.error("judging waits: %s", error.message)
                await asyncio.sleep(1.0)
            except Exception:  # it stays in hand, where it does not block the others, until the next start
                logger.exception("transition %s of the queue can't be judged; the others continue", seq)
                await asyncio.sleep(1.0)
                continue
            if seq is not None:
                self._in_hand.discard(seq)

    async def _next(self) -> tuple[int | None, bool]:
        """Take the next transition to judge, and say whether it has waited too long; None at the end."""
        while not self._stopping:
            self._wake.clear()
            oldest = await self.queue.read(self.queue.oldest, 1, frozenset(self._in_hand))
            left = None
            if oldest:
                seq, received = oldest[0]
                if seq in self._in_hand:  # another worker was faster
                    continue
                left = received + self._hold - time.time()
                if not self.holding or left <= 0:
                    self._in_hand.add(seq)
                    self._wake.set()  # there may be one for another worker, too
                    return seq, self.holding
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()
        return None, False

    async def _judge_waiting(self, seq: int, expired: bool) -> None:
        try:
            _, transition = await self.queue.read(self.queue.load, seq)
        except KeyError:  # it was judged or forgotten since it was looked for
            return
        if transition is None:
            self._publish([await self.queue.call(self._take_damaged, seq)])
            return
        if expired:
            judgement = self.panel.give_up(
                transition, f"not judged within {self._hold / 60:.0f} min: {self.probe.problem}")
        else:
            outcome = await self.panel.decide(transition)
            if outcome.outage and not await self.probe.recheck() and self.probe.outage:
                return  # it waits in the queue until the judge works again or its time is up
            judgement = outcome.judgement
        if await self.queue.call(self._keep, transition, judgement, seq):
            self._publish([(transition, judgement)])

    def _keep(self, transition: turn_pb2.Transition, judgement: turn_pb2.Judgement, seq: int) -> bool:
        with self.queue.batch() as batch:
            return batch.judged(transition, judgement, seq)

    def _take_damaged(self, seq: int) -> _Judged:
        with self.queue.batch() as batch:
            return batch.damaged(seq)

    async def _judge_backlog(self) -> None:
        """Judge what another judge left before a restart: an instant one leaves nothing waiting."""
        while not self._stopping:
            try:
                judged = await self.queue.call(self._judge_some)
            except MeshError as error:
                logger.error("judging waits: %s", error.message)
                await asyncio.sleep(1.0)
                continue
            if not judged:
                return
            self._publish(judged)

    def _judge_some(self) -> list[_Judged]:
        """Judge the oldest of the backlog; none when nothing is left."""
        judged: list[_Judged] = []
        rows = self.queue.oldest(_BACKLOG_BATCH)
        if not rows:
            return judged
        with self.queue.batch() as batch:
            for seq, _ in rows:
                _, transition = self.queue.load(seq)
                if transition is None:
                    judged.append(batch.damaged(seq))
                    continue
                judgement = self.panel.decide_now(transition).judgement
                batch.judged(transition, judgement, seq)
                judged.append((transition, judgement))
        return judged

    def _publish(self, judged: Iterable[_Judged]) -> None:
        """Write judgements to the journal and the traces and publish them, after the commit."""
        judged = list(judged)
        traces.judged(judged)
        for transition, judgement in judged:
            turn = transition.turn
            why = "; ".join(dict.fromkeys(vote.error for vote in judgement.votes)) if judgement.failed else ""
            self._failed.record(judgement.failed, why)
            if judgement.failed:
                logger.warning("turn %s could not be judged: %s", turn.turn_id, why)
            else:
                self._journal.score(turn.session_id, turn.policy_version, judgement.score, _WORD[judgement.score])
            if judgement.hint:
                self._journal.hint(turn.session_id, turn.policy_version, judgement.hint)
            self.broadcast.publish(turn.session_id, judgement)
