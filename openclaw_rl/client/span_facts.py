"""Attributes of a span worth showing, beside its name and its time."""

from __future__ import annotations

from typing import Any, Literal

from openclaw_rl.observability import names

#: How a fact is meant; "" is plain.
Tone = Literal["", "good", "bad", "warn", "version", "trained", "dim"]

_SCORE_TONES: dict[float, Tone] = {1.0: "good", 0.0: "", -1.0: "bad"}


def duration(nanoseconds: int) -> str:
    """A time for a person."""
    seconds = max(0, nanoseconds) / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def facts(span: dict[str, Any]) -> list[tuple[str, Tone]]:
    """Facts of a span as telemetry keeps it, and how each is meant."""
    values = span["attributes"]
    found: list[tuple[str, Tone]] = []
    if (status := values.get("http.response.status_code", values.get("rpc.response.status_code"))) is not None:
        found.append((str(status), ""))
    if names.OUTPUT_TOKENS in values:
        found.append((f"{values[names.INPUT_TOKENS]} + {values[names.OUTPUT_TOKENS]} tokens", ""))
    if values.get(names.FINISH_REASONS):
        found.append((values[names.FINISH_REASONS][0], ""))
    if span["name"] == names.RECORD:
        found.append((f"{values.get(names.TURN_CLASS, '')}: {values.get('openclaw.turn.class.reason', '')}", ""))
    if "openclaw.next_state.kind" in values:
        found.append((values["openclaw.next_state.kind"], ""))
    if (score := values.get(names.SCORE)) is not None:
        found.append((f"score {score:+.0f}" if score else "score 0", _SCORE_TONES.get(score, "")))
    if values.get("openclaw.vote.certain"):
        found.append(("certain", ""))
    if values.get(names.FATE) == "dropped":
        found.append((values.get(names.REASON, ""), "warn"))
    spans = values.get(names.SPANS, [])
    if len(spans) > 1:
        found.append((f"versions {', '.join(spans)}", "version"))
    elif names.TRAINED in values:
        found.append((f"trained version {values[names.TRAINED]}", "trained"))
    elif names.VERSION in values and (span["kind"] != 2 or names.TURN not in values):
        found.append((f"version {values[names.VERSION]}", "version"))
    if "openclaw.activation.pause_ms" in values and span["name"] == names.ACTIVATE:
        found.append((f"decoding paused {values['openclaw.activation.pause_ms']:.1f} ms", ""))
    if "openclaw.transfer.bytes" in values:
        found.append((f"{values['openclaw.transfer.bytes'] / 1e6:.1f} MB to {values.get('server.address', '?')}", ""))
    if values.get("openclaw.gate.failures"):
        found.append((f"not served: {'; '.join(values['openclaw.gate.failures'])}", "bad"))
    if "openclaw.activation.reason" in values:
        found.append((values["openclaw.activation.reason"], ""))
    if span["links"]:
        found.append((f"{len(span['links'])} links", "dim"))
    if span["status"] == "error":
        found.append((span["message"], "bad"))
    return found
