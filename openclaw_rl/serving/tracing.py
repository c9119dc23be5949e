"""The span of a generation, as the chat service knows it."""

from __future__ import annotations

from openclaw_rl.observability import request_spans
from openclaw_rl.serving.interfaces import ChatCall, RequestContext
from openclaw_rl.serving.token_policy import Transcript
from openclaw_rl.v1 import turn_pb2
from openclaw_rl.v1.common_pb2 import TraceContext


def generated(context: RequestContext, call: ChatCall, choice: int, transcript: Transcript,
              reason: turn_pb2.FinishReason.ValueType, model: str, active: int) -> TraceContext | None:
    """Write the span of a response that has ended, whole or not.

    A request that leaves no record has a span too, without its messages.

    Args:
        active: the version that answers now, for a response without tokens.

    Returns:
        The context that the turn carries on.
    """
    ids, options, origin = transcript.prompt_ids, context.options, context.origin
    return request_spans.generated(
        origin.span, turn_id=context.choice_id(choice), session_id=context.session_id, api=origin.api, model=model,
        messages=call.messages, response=None if options.no_record else transcript.message,
        sampling=call.sampling, finish_reason=reason, prompt_tokens=None if ids is None else len(ids),
        completion_tokens=len(transcript.response_ids), spans=transcript.spans,
        version=transcript.version if transcript.first_token_at else active, began=context.requested_at,
        first_token_at=transcript.first_token_at, episode=options.episode if options.HasField("episode") else None)
