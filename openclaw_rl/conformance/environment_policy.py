"""The kit as an environment server's policy server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.services import SERVICES
from openclaw_rl.v1 import common_pb2, policy_pb2, turn_pb2


class Policy:
    """Answers Chat with always the same words, until the check is over.

    Attributes:
        answer: those words.
        requests: what it was asked.
        turn_ids: ids of its turns.
    """

    answer = "Hello from the kit."

    def __init__(self, kit: Context) -> None:
        assert kit.listener is not None
        self.requests: list[policy_pb2.ChatRequest] = []
        self.turn_ids: list[str] = []
        self._kit = kit
        kit.listener.replace(SERVICES["policy"].path("Chat"), self._chat)

    async def _chat(self, request: policy_pb2.ChatRequest, context: Any) -> AsyncIterator[policy_pb2.ChatResponse]:
        self.requests.append(request)
        self.turn_ids.append(self._kit.id())
        yield policy_pb2.ChatResponse(start=policy_pb2.ChatStart(
            turn_id=self.turn_ids[-1], session_id=request.turn.session_id, model="conformance"))
        for word in (self.answer[:6], self.answer[6:]):
            yield policy_pb2.ChatResponse(delta=policy_pb2.ChatDelta(content=word))
        yield policy_pb2.ChatResponse(end=policy_pb2.ChatEnd(
            message=turn_pb2.ChatMessage(role="assistant", content=self.answer),
            generation=policy_pb2.GenerationEnd(finish_reason=turn_pb2.FINISH_REASON_STOP, prompt_tokens=3,
                                                completion_tokens=2,
                                                spans=[common_pb2.VersionSpan(version=0, begin=0, end=2)])))
