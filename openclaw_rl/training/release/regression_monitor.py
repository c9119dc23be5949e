"""Automatic rollback: looks for a regression when there are new scores, and sends the policy server back."""

from __future__ import annotations

import asyncio
import logging

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.storage.database import StorageError
from openclaw_rl.training.events import Events
from openclaw_rl.training.release.policy_client import PolicyClient
from openclaw_rl.training.release.regression import RegressionDetector
from openclaw_rl.training.tables.versions import VersionTable
from openclaw_rl.v1 import policy_pb2, trainer_pb2

logger = logging.getLogger(__name__)

#: Seconds until it is tried again when the policy server does not answer.
RETRY = 15.0


class RegressionMonitor:
    """Monitors the scores of live turns, in a task of its own.

    Args:
        detector: decides.
        versions: the trainer's.
        policy: the mesh's own policy server; None: nothing goes back by itself.
        events: told when it went back.
    """

    def __init__(self, detector: RegressionDetector, versions: VersionTable, policy: PolicyClient | None,
                 events: Events) -> None:
        self.detector = detector
        self._versions, self._policy, self._events = versions, policy, events
        self._policy_known = False  # it has reported its versions
        self._news = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None
        self._problem = ""  # why it can't look or go back now
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to monitor."""
        if self._policy is not None:
            self._task = asyncio.create_task(self._run(self._policy), name="regression monitor")

    async def stop(self, grace: float) -> None:
        """End, within so many seconds."""
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=grace)

    def judged(self) -> None:
        """Note that there are new scores."""
        self._news.set()

    def answers(self, state: policy_pb2.PolicyState) -> None:
        """Note what the policy server has now."""
        self._policy_known = True
        self.detector.answers(state.active_version, state.pinned)
        self._news.set()

    def alarms(self) -> list[Raised]:
        """Return a rollback that happened, and why none is possible now."""
        raised = [("watch_went_back", self.detector.alarm)] if self.detector.alarm else []
        if self._problem:
            raised.append(("watch_cannot_look", f"the watch can't look or go back now: {self._problem}"))
        return raised

    async def _run(self, policy: PolicyClient) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._look(policy)
                self._problem = ""
            except Exception as error:  # it is tried again; whatever it was, the trainer goes on
                self._problem = str(error)
                logger.error("the watch can't look or go back now: %s", error,
                          exc_info=not isinstance(error, MeshError | StorageError))
                self._retry = asyncio.get_running_loop().call_later(RETRY, self._news.set)

    async def _look(self, policy: PolicyClient) -> None:
        """Roll back when the live turns of the active version are judged worse than those before it."""
        if self.detector.going is None and self._policy_known:
            active = await asyncio.to_thread(lambda: self._versions.active or 0)
            if not await asyncio.to_thread(self.detector.due, active):
                return
            state = await policy.state()
            if state.pinned or state.active_version != active:
                return  # the operator's word, or a version of which the weight stream tells in a moment
            fall = await asyncio.to_thread(self.detector.look, active, state.kept_versions)
            if fall is not None:
                logger.error("%s; rolling back to version %d", fall.reason, fall.target)
        if self.detector.going is not None:
            target, reason = self.detector.going
            state = await policy.state()
            if state.pinned or state.active_version == target:
                return
            await policy.activate(target, reason)
            logger.warning("the policy server was rolled back to version %d: %s", target, reason)
            self._events.tell(trainer_pb2.TRAINING_EVENT_KIND_WATCH_WENT_BACK, reason, version=target)
