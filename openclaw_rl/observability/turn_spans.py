"""Spans of a turn after its response: record, next state, votes, sample, and the version trained on it.

Each hop's span hangs on the context that the turn carries (`Turn.trace`), so that it finds its trace after any
restart, and a span that was lost leaves no hole in the tree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from google.protobuf.timestamp_pb2 import Timestamp
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event

from openclaw_rl.observability import content, context, names
from openclaw_rl.observability.context import Attributes
from openclaw_rl.observability.state import current, guarded
from openclaw_rl.v1 import trainer_pb2, turn_pb2, weights_pb2
from openclaw_rl.v1.common_pb2 import TraceContext

logger = logging.getLogger(__name__)

_CLASSES = {turn_pb2.TURN_CLASS_MAIN: "main", turn_pb2.TURN_CLASS_SIDE: "side", turn_pb2.TURN_CLASS_UNKNOWN: "unknown"}
_KINDS = {turn_pb2.NEXT_STATE_KIND_CONTINUED: "continued", turn_pb2.NEXT_STATE_KIND_FEEDBACK: "feedback",
          turn_pb2.NEXT_STATE_KIND_SESSION_ENDED: "session ended",
          turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT: "session timeout",
          turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED: "episode ended"}
_LABELS = {1: "satisfied", 0: "neutral", -1: "dissatisfied"}


def _about(turn: turn_pb2.Turn) -> dict[str, str | int | None]:
    return {names.SESSION: turn.session_id, names.CONVERSATION: turn.session_id, names.TURN: turn.turn_id,
            names.VERSION: turn.policy_version, names.TURN_CLASS: _CLASSES.get(turn.turn_class),
            names.EPISODE: turn.episode.episode_id or None, names.GROUP: turn.episode.group_id or None}


@guarded
def recorded(turn: turn_pb2.Turn, note: str = "", parent_turn: str = "") -> None:
    """The environment server has taken the turn and given it its class. A turn that carries no context yet (it comes
    from a policy server that does not trace) gets one here; so call it before the turn is written."""
    span = context.emit(names.RECORD, context.of_message(turn.trace), _about(turn) | {
        "openclaw.turn.class.reason": turn.class_reason, "openclaw.turn.note": note,
        "openclaw.turn.parent": parent_turn})
    if not turn.trace.traceparent and (own := context.to_message(span)) is not None:
        turn.trace.CopyFrom(own)


@guarded
def next_state(turn: turn_pb2.Turn, state: turn_pb2.NextState) -> None:
    """The turn's next state is complete; its span shows how long that took."""
    captured = {"openclaw.next_state.messages": content.messages(state.messages)} if current().capture_content else {}
    context.emit(names.NEXT_STATE, context.of_message(turn.trace), _about(turn) | captured | {
        "openclaw.next_state.kind": _KINDS.get(state.kind), "openclaw.next_state.messages.count": len(state.messages),
        "openclaw.next_state.turn.id": state.next_turn_id,
        "openclaw.feedback.score": [given.score for given in state.feedback if given.HasField("score")] or None},
        begin=_ns(turn.finished_at), end=_ns(state.observed_at))


@guarded
def judged(judged_ones: Iterable[tuple[turn_pb2.Transition, turn_pb2.Judgement]]) -> None:
    """Transitions were judged: a span for each judgement, and one below it for each vote."""
    for transition, judgement in judged_ones:
        _judged(transition.turn, judgement)


def _judged(turn: turn_pb2.Turn, judgement: turn_pb2.Judgement) -> None:
    end = _ns(judgement.judged_at) or time.time_ns()
    longest = max((vote.duration_ms for vote in judgement.votes), default=0.0)
    about = _about(turn)
    result: dict[str, str | int | float | None] = {
        names.EVALUATION_NAME: "openclaw.judgement", names.RESPONSE_ID: turn.turn_id}
    if not judgement.failed:
        result |= {names.SCORE: float(judgement.score), names.LABEL: _LABELS.get(judgement.score)}
    if current().capture_content and judgement.hint:
        result["openclaw.hint"] = judgement.hint
    error = "no vote succeeded" if judgement.failed else ""
    span = context.emit(names.EVALUATE, context.of_message(turn.trace), about | result | {
        "openclaw.judge.panel": judgement.panel, "openclaw.judge.votes": len(judgement.votes),
        "openclaw.hint.present": bool(judgement.hint), names.ERROR: "judge" if error else None},
        begin=end - int(longest * 1e6), end=end, error=error, events=[
            Event(names.EVALUATION, {key: value for key, value in result.items() if value is not None}, end)])
    parent = context.of_span(span)
    for vote in judgement.votes:
        _vote(parent, about, vote, end)


def _vote(parent: Context, about: Attributes, vote: turn_pb2.Vote, end: int) -> None:
    attributes = {**about, names.EVALUATION_NAME: vote.judge, "openclaw.vote.certain": vote.certain}
    if vote.error:
        attributes[names.ERROR] = "vote"
    else:
        attributes |= {names.SCORE: float(vote.score), names.LABEL: _LABELS.get(vote.score)}
        if current().capture_content:
            attributes |= {names.EXPLANATION: vote.rationale, "openclaw.hint": vote.hint}
    # The failure's text may quote the model's answer.
    failure = (vote.error if current().capture_content else "the vote failed") if vote.error else ""
    context.emit(f"{names.VOTE} {vote.judge}", parent, attributes, begin=end - int(vote.duration_ms * 1e6), end=end,
                 error=failure)


@guarded
def accepted(samples: Sequence[turn_pb2.Sample],
             statuses: Callable[[Sequence[str]], Iterable[trainer_pb2.SampleStatus]]) -> None:
    """The trainer has these new samples on disk; `statuses` tells what became of them there."""
    for sample in samples:
        turn, judgement = sample.transition.turn, sample.judgement
        about = _about(turn)
        context.emit(names.SAMPLE, context.of_message(turn.trace), about | {
            names.FATE: "pending", names.SCORE: None if judgement.failed else float(judgement.score),
            "openclaw.hint.present": bool(judgement.hint)})
        current().samples.add(turn.turn_id, turn.trace, about)
    for status in statuses([sample.transition.turn.turn_id for sample in samples]) if samples else ():
        if status.fate == trainer_pb2.SAMPLE_FATE_DROPPED:
            dropped([status.turn_id], status.reason)


def _sample(turn_id: str) -> tuple[Context, Attributes]:
    """Context and attributes of a sample that was accepted, maybe before a restart."""
    telemetry = current()
    if (known := telemetry.samples.get(turn_id)) is not None:
        message, about = known
        return context.of_message(message), about
    if telemetry.store is not None:
        for span in reversed(telemetry.store.of_turn(turn_id)):
            if span["parent"]:
                kept = (names.SESSION, names.CONVERSATION, names.VERSION, names.TURN_CLASS)
                parent = context.of_message(TraceContext(traceparent=f"00-{span['trace']}-{span['parent']}-01"))
                return parent, {names.TURN: turn_id, **{key: span["attributes"].get(key) for key in kept}}
    return Context(), {names.TURN: turn_id}


@guarded
def dropped(turn_ids: Iterable[str], reason: str) -> None:
    """The trainer will never train on these turns."""
    for turn_id in turn_ids:
        parent, about = _sample(turn_id)
        context.emit(names.DROPPED, parent, {**about, names.FATE: "dropped", names.REASON: reason})
        current().samples.remove(turn_id)


@guarded
def trained(manifest: weights_pb2.VersionManifest, begin: int | None = None) -> None:
    """The version is made: in each of its turns' traces a span that names it, with a link to the step. `begin`: of the
    step, nanoseconds since the epoch."""
    step = context.span_context(context.of_message(manifest.trace))
    links = [trace.Link(step, {names.TRAINED: manifest.version})] if step else []
    for turn_id in manifest.turn_ids:
        parent, about = _sample(turn_id)
        span = context.start(names.TRAIN, parent, {
            **about, names.TRAINED: manifest.version, names.FATE: "trained", "openclaw.algorithm": manifest.algorithm},
            begin=begin, links=links)
        context.finish(span)
        current().samples.remove(turn_id)


def step_links(turn_ids: Sequence[str]) -> list[trace.Link]:
    """Links of a training step to its turns; those whose context is not known are left out."""
    links = []
    for turn_id in turn_ids:
        if (target := context.span_context(_sample(turn_id)[0])) is not None:
            links.append(trace.Link(target, {names.TURN: turn_id}))
    return links


def _ns(timestamp: Timestamp) -> int | None:
    """Nanoseconds since the epoch; None when it is not set."""
    return timestamp.ToNanoseconds() or None
