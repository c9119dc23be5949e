"""Forgetting of sessions in the policy server."""

from __future__ import annotations

import asyncio

from openclaw_rl.privacy import Target
from openclaw_rl.privacy.erase import clean
from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.conversations import Conversations
from openclaw_rl.serving.engines.interface import TokenEngine
from openclaw_rl.serving.event_recorder import TurnRecorder
from openclaw_rl.serving.response_history import ResponseHistory
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.storage.database import Database
from openclaw_rl.v1 import component_pb2


class PolicyForgetter:
    """Removes a session's turns, and versions that were trained on them.

    Attributes:
        versions: the policy server's, once it is ready.
        engine: likewise; None before an API.
        history: the chat service's.
    """

    def __init__(self, name: str, home: Home, store: Database, recorder: TurnRecorder, known: Conversations) -> None:
        self.versions: PolicyVersions | None = None
        self.engine: TokenEngine | None = None
        self.history: ResponseHistory | None = None
        self._name, self._home, self._store = name, home, store
        self._recorder, self._known = recorder, known

    async def forget(self, request: component_pb2.ForgetRequest) -> component_pb2.ForgetResponse:
        """ComponentService.Forget.

        Raises:
            MeshError: UNAVAILABLE, versions are to be deleted before it is ready; or the store can't be written.
            OSError: a file can't be written.
        """
        target = Target.of(request)
        target = target.with_turns(await asyncio.to_thread(self._recorder.forget, target))
        # On the loop, as remembering is: a turn that is late is remembered before this or not at all.
        conversations = await self._known.forget(target.session_id)
        if self.history is not None:
            self.history.forget(target.session_id)
        if self.engine is not None:
            # All of them: forgetting is rare, and an entry would have to know all sessions that it was kept of.
            self.engine.clear_prefixes()
        removed = {"turns": len(target.turn_ids.difference(request.turn_ids)), "conversations": conversations}
        removed |= await asyncio.to_thread(clean, self._store, self._home, self._name, target)
        message = ""
        if request.versions:
            if self.versions is None:
                raise unavailable("the policy server is getting ready, its versions can't be deleted yet",
                                  retry_after=5.0)
            removed["versions"] = len(await self.versions.withdraw(request.versions))
            active = self.versions.state().active_version
            if active in request.versions:
                message = f"version {active} answers, so it is not deleted; activate another one and repeat"
        return component_pb2.ForgetResponse(turn_ids=sorted(target.turn_ids), removed=removed, message=message)
