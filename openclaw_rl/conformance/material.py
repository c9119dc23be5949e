"""Messages to send: the ring's three kinds, complete, and marked as the kit's own by their ids.

On a mesh that lives nothing is to be learned from them: unless the kit is the neighbour itself, turns are declared side
ones, transitions have no token ids, and samples a judgement that failed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from openclaw_rl.conformance.context import Context
from openclaw_rl.rpc.messages import now
from openclaw_rl.v1 import common_pb2, environment_pb2, turn_pb2

_MAIN = turn_pb2.TURN_CLASS_MAIN


class Material:
    """Makes messages for the server under test.

    Args:
        real: they may be trained on: what they lead to arrives at the kit, or in a server that the kit has started.
    """

    def __init__(self, kit: Context, real: bool | None = None) -> None:
        self._kit = kit
        self._real = (kit.listener is not None or kit.process is not None) if real is None else real

    def message(self, id: str, session: str = "", *, bulk: int = 0) -> Any:
        """A complete message of the service's ring stream with this id.

        Args:
            session: of its turn; default one of its own.
            bulk: characters of its longest text.
        """
        turn = self.turn(id, session or f"{id}-session", bulk=bulk)
        if self._kit.service.name == "environment":
            return environment_pb2.PolicyEvent(turn=turn)
        transition = self.transition(turn)
        return transition if self._kit.service.name == "judge" else self.sample(transition)

    def messages(self, count: int, *, bulk: int = 0) -> list[Any]:
        """So many, each of a session of its own."""
        return [self.message(self._kit.id(), bulk=bulk) for _ in range(count)]

    def request(self, messages: list[Any]) -> Any:
        """A request of the ring stream with these messages."""
        method = self._kit.service.descriptor.methods_by_name[self._kit.service.ring]
        request = GetMessageClass(method.input_type)()
        getattr(request, method.input_type.fields[0].name).extend(messages)
        return request

    def turn(self, id: str, session: str, *, bulk: int = 0, said: str = "Name a colour.",
             history: list[turn_pb2.ChatMessage] | None = None) -> turn_pb2.Turn:
        """A turn as a policy server sends it.

        Args:
            said: by the user at last.
            history: what came before that.
        """
        at, ids = now(), [11, 12, 13, 14]
        asked = turn_pb2.ChatMessage(role="user", content=said + "x" * bulk)
        turn = turn_pb2.Turn(
            turn_id=id, session_id=session, session_source=turn_pb2.SESSION_SOURCE_CLIENT,
            declared_type="main" if self._real or self._kit.service.name != "environment" else "side",
            messages=[*(history or ()), asked],
            response=turn_pb2.ChatMessage(role="assistant", content=f"Blue ({id})."),
            finish_reason=turn_pb2.FINISH_REASON_STOP, model="conformance", api="grpc.chat", requested_at=at,
            first_token_at=at, finished_at=at, client="conformance", metadata={"conformance": "1"},
            mesh_id=self._kit.mesh,
            trace=common_pb2.TraceContext(traceparent=f"00-{hashlib.md5(id.encode()).hexdigest()}-{7:016x}-00"))
        if self._real:
            turn.tokens.CopyFrom(turn_pb2.TokenRecord(
                prompt_ids=[1, 2, 3], response_ids=ids, logprobs=[-0.5] * len(ids), model_logprobs=[-0.75] * len(ids),
                spans=[common_pb2.VersionSpan(version=0, begin=0, end=len(ids))]))
        return turn

    def transition(self, turn: turn_pb2.Turn) -> turn_pb2.Transition:
        """The turn with what came next: words that neither praise nor blame."""
        turn.turn_class, turn.class_reason, turn.branch_id = _MAIN, "declared", turn.turn_id
        return turn_pb2.Transition(turn=turn, next_state=turn_pb2.NextState(
            kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, next_turn_id=f"{turn.turn_id}-next", observed_at=now(),
            messages=[turn_pb2.ChatMessage(role="user", content="And a shape.")]))

    def sample(self, transition: turn_pb2.Transition, score: int | None = None, hint: str = "") -> turn_pb2.Sample:
        """The transition with a judgement; one that failed when there is no score."""
        vote = turn_pb2.Vote(judge="conformance", duration_ms=1.0, score=score or 0, hint=hint)
        if score is None:
            vote.error = "no vote: a message of the conformance kit"
        return turn_pb2.Sample(transition=transition, judgement=turn_pb2.Judgement(
            turn_id=transition.turn.turn_id, votes=[vote], score=score or 0, failed=score is None, hint=hint,
            judged_at=now(), panel="conformance"))

    def conversation(self, session: str, turns: int) -> list[turn_pb2.Turn]:
        """So many turns, each of which continues the one before."""
        made: list[turn_pb2.Turn] = []
        history: list[turn_pb2.ChatMessage] = []
        for number in range(turns):
            turn = self.turn(self._kit.id(), session, said=f"Question {number}: name a colour.", history=history)
            history = [*turn.messages, turn.response]
            made.append(turn)
        return made
