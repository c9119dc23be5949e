"""Spans of a version: training step, delivery to a policy server, staging and activation there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind

from openclaw_rl.observability import context, names, turn_spans
from openclaw_rl.observability.state import guarded
from openclaw_rl.v1.common_pb2 import TraceContext
from openclaw_rl.v1.weights_pb2 import (
    GATE_VERDICT_FAILED,
    GATE_VERDICT_PASSED,
    VersionManifest,
    WeightActivated,
)

_VERDICTS = {GATE_VERDICT_PASSED: "passed", GATE_VERDICT_FAILED: "failed"}


class Step:
    """A training step under way; a trace of its own, linked to the traces of its turns."""

    def __init__(self) -> None:
        self.began = time.time_ns()
        self._span: Span | None = None
        self._ended = False

    @guarded
    def on(self, turn_ids: Sequence[str], parent: int) -> None:
        """It trains on these turns, from version `parent`. A step without turns has no span."""
        self._span = context.start(names.STEP, None, {
            "openclaw.policy.version.parent": parent, "openclaw.step.samples": len(turn_ids)},
            begin=self.began, links=turn_spans.step_links(turn_ids))

    @property
    def trace(self) -> TraceContext | None:
        """Its context, for the manifest; None when it is not traced."""
        return trace_of(self._span)

    @guarded
    def made(self, manifest: VersionManifest) -> None:
        """It made this version: it ends, and the turns' traces say so too."""
        if self._span is not None:
            self._span.set_attributes({
                names.TRAINED: manifest.version, names.VERSION: manifest.version,
                "openclaw.algorithm": manifest.algorithm,
                "openclaw.gate.verdict": _VERDICTS.get(manifest.gate.verdict, "not asked"),
                "openclaw.gate.failures": list(manifest.gate.failures),
                **{f"openclaw.metric.{name}": value for name, value in manifest.metrics.items()}})
        self.ended()
        turn_spans.trained(manifest, self.began)

    @guarded
    def ended(self, reason: str = "") -> None:
        """It made no version, for a reason ("": there was nothing to do)."""
        if self._span is not None and not self._ended:
            self._ended = True
            if reason:
                self._span.set_attribute("openclaw.step.skipped", reason)
            context.finish(self._span, reason)


@guarded
def trace_of(span: Span | None) -> TraceContext | None:
    """A span's context, as messages carry it."""
    return context.to_message(span)


@contextmanager
def step() -> Iterator[Step]:
    """Around a training step; an exception ends its span as failed."""
    running = Step()
    try:
        yield running
    except BaseException as error:
        running.ended(f"{type(error).__name__}: {error}")
        raise
    running.ended()


@guarded
def sync(manifest: VersionManifest, target: str, base: int | None) -> Span:
    """The trainer begins to send a version to a policy server, as what changed since `base` or whole (None)."""
    return context.start(names.SYNC, context.of_message(manifest.trace), {
        names.VERSION: manifest.version, "server.address": target, "openclaw.policy.version.base": base},
        kind=SpanKind.CLIENT)


@guarded
def synced(span: Span | None, sent: int, activated: WeightActivated | None = None, error: str = "") -> None:
    """The version answers there, or the sending ended with an error. `sent`: bytes that are there."""
    if span is None or not span.is_recording():
        return
    span.set_attribute("openclaw.transfer.bytes", sent)
    if activated is not None:
        span.set_attribute("openclaw.activation.pause_ms", activated.pause_ms)
        if (target := context.span_context(context.of_message(activated.trace))) is not None:
            span.add_link(target)
    context.finish(span, error)


@guarded
def staged(offer: TraceContext, version: int, began: int) -> None:
    """A policy server has a version whole, checked and loaded beside the active one. `began`: when it was offered,
    nanoseconds since the epoch."""
    context.emit(names.STAGE, context.of_message(offer), {names.VERSION: version}, kind=SpanKind.SERVER, begin=began)


@guarded
def activated(offer: TraceContext | None, version: int, before: int, began: int, pause_ms: float,
              pause_steps: int, reason: str = "") -> TraceContext | None:
    """A policy server answers with a version from now on. `offer`: that it came with; None when somebody went back or
    forward to a kept one, for a `reason`. `before`: the one that answered until now."""
    span = context.emit(names.ACTIVATE, context.of_message(offer) if offer is not None else None, {
        names.VERSION: version, "openclaw.activation.reason": reason,
        "openclaw.policy.version.before": before, "openclaw.activation.pause_ms": pause_ms,
        "openclaw.activation.pause_steps": pause_steps}, begin=began)
    return context.to_message(span)


@guarded
def refused(offer: TraceContext, version: int, reason: str) -> None:
    """A policy server did not take a version."""
    context.emit("refuse version", context.of_message(offer), {names.VERSION: version, names.ERROR: "rejected"},
                 kind=SpanKind.SERVER, error=reason)
