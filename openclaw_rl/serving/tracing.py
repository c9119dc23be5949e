"""The span of a generation, from what the desk knows of it."""

from __future__ import annotations

from openclaw_rl.observability import request_spans
from openclaw_rl.serving.interfaces import ChatCall, RequestContext
from openclaw_rl.serving.token_policy import Transcript
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.common_pb2 import TraceContext


def generated(head: RequestContext, call: ChatCall, choice: int, transcript: Transcript,
              reason: turn_pb2.FinishReason.ValueType, model: str, active: int) -> TraceContext | None:
    """A response has ended, whole or not: its span, and the context that the turn carries on. A request that leaves
    no record has a span too, without its messages. `active`: the version that answers now, for one without tokens."""
    ids = transcript.prompt_ids
    return request_spans.generated(
        head.span, turn_id=head.choice_id(choice), session_id=head.session_id, api=head.api, model=model,
        messages=call.messages, response=None if head.options.no_record else transcript.message,
        sampling=call.sampling, finish_reason=reason, prompt_tokens=None if ids is None else len(ids),
        completion_tokens=len(transcript.response_ids), spans=transcript.spans,
        version=transcript.version if transcript.first_token_at else active, began=head.requested_at,
        first_token_at=transcript.first_token_at,
        episode=head.options.episode if head.options.HasField("episode") else None)
