"""Keeps the watch: looks when there are new scores, and lets the policy server go back."""

from __future__ import annotations

import asyncio
import logging

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.storage.database import StorageError
from openclaw_rl.training.events import Events
from openclaw_rl.training.release.policy_client import PolicyDoor
from openclaw_rl.training.release.regression import Watch
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import policy_pb2, trainer_pb2

logger = logging.getLogger(__name__)

#: Seconds until it is tried again when the policy server does not answer.
RETRY = 15.0


class Watcher:
    """One task beside the training.

    Args:
        watch: decides.
        store: tells which version answers.
        policy: the mesh's own policy server; None: nothing goes back by itself.
        events: told when it went back.
    """

    def __init__(self, watch: Watch, store: TrainerStore, policy: PolicyDoor | None, events: Events) -> None:
        self.watch = watch
        self._store, self._policy, self._events = store, policy, events
        self._heard = False  # of the policy server
        self._news = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        self._problem = ""  # why it can't look or go back now
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        if self._policy is not None:
            self._task = asyncio.create_task(self._run(self._policy), name="watch")

    async def stop(self, grace: float) -> None:
        """End, within so many seconds."""
        if self._again is not None:
            self._again.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=grace)

    def judged(self) -> None:
        """There are new scores."""
        self._news.set()

    def answers(self, state: policy_pb2.PolicyState) -> None:
        """What the policy server has now."""
        self._heard = True
        self.watch.answers(state.active_version, state.pinned)
        self._news.set()

    def alarms(self) -> list[Raised]:
        """That it went back, and why it can't look."""
        raised = [("watch_went_back", self.watch.alarm)] if self.watch.alarm else []
        if self._problem:
            raised.append(("watch_cannot_look", f"the watch can't look or go back now: {self._problem}"))
        return raised

    async def _run(self, policy: PolicyDoor) -> None:
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
                self._again = asyncio.get_running_loop().call_later(RETRY, self._news.set)

    async def _look(self, policy: PolicyDoor) -> None:
        """Go back when the live turns of the active version are judged worse than those before it."""
        if self.watch.going is None and self._heard:
            active = int(self._store.get("active") or 0)
            if not await asyncio.to_thread(self.watch.due, active):
                return
            state = await policy.state()
            if state.pinned or state.active_version != active:
                return  # the operator's word, or a version of which the weight stream tells in a moment
            fall = await asyncio.to_thread(self.watch.look, active, state.kept_versions)
            if fall is not None:
                logger.error("%s; going back to version %d", fall.reason, fall.target)
        if self.watch.going is not None:
            target, reason = self.watch.going
            state = await policy.state()
            if state.pinned or state.active_version == target:
                return
            await policy.activate(target, reason)
            logger.warning("the policy server went back to version %d: %s", target, reason)
            self._events.tell(trainer_pb2.TRAINING_EVENT_KIND_WATCH_WENT_BACK, reason, version=target)
