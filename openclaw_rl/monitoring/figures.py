"""Figures of a mesh, made of the components' status. Their names and units:

    policy.qps                  requests per second, mean of ten seconds (the policy server's own)
    policy.p50 p95 p99          milliseconds from request to the end of its response, live requests of the last minute
    policy.first50 first95 first99   the same to the first token
    policy.running, .waiting    responses being made, requests that wait for the engine
    policy.tokens_per_s
    policy.cached               share of the last minute's prompt tokens that were in the prefix cache, 0 to 1
    env.TYPE.leased .capacity .waiting .warm
    judge.positive .neutral .negative .failed   judgements of the last minute
    judge.votes, .votes_failed  votes of the last minute
    judge.count.NAME            the judge's counters that these are made of
    judge.queue                 turns that wait
    trainer.loss .kl .grad_norm .staleness   of the last step
    trainer.updates_h           versions made within the last hour (the trainer's own)
    trainer.pending             samples that wait
    version                     that answers
    up.COMPONENT                1 while it answers, else 0
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from openclaw_rl.monitoring.mesh import ComponentView, MeshData
from openclaw_rl.monitoring.series import Figures, Series
from openclaw_rl.observability.metrics import environment_gauge

if TYPE_CHECKING:
    from openclaw_rl.v1.component_pb2 import ComponentStatus

_POLICY = {"qps": "qps", "running": "running", "waiting": "waiting", "tokens_per_s": "tokens_per_s",
           "cached": "prefix_cache_hit_rate", "p50": "latency_p50_ms", "p95": "latency_p95_ms", "p99": "latency_p99_ms",
           "first50": "first_token_p50_ms", "first95": "first_token_p95_ms", "first99": "first_token_p99_ms"}
_JUDGE_RATES = {"positive": "positive", "neutral": "neutral", "negative": "negative", "failed": "judgements_failed",
                "votes": "votes", "votes_failed": "votes_failed"}
_TRAINER = {"updates_h": "updates_per_hour", **{
    name: name for name in ("loss", "kl", "grad_norm", "staleness", "pending", "training", "paused")}}
_ENVIRONMENT = ("leased", "capacity", "waiting", "warm")
#: Seconds between two readings of a counter beyond which what was counted in between belongs to no single minute.
_APART = 15.0
#: Seconds of a counter's window.
_MINUTE = 60.0


class Rates:
    """Gains of counters in the last minute."""

    def __init__(self) -> None:
        self._gains: dict[str, deque[tuple[float, int]]] = {}  # readings of the last minute: when, and the counter

    def seed(self, series: Series) -> None:
        """Start from the counts of an earlier process."""
        for t, row in series.recent(_MINUTE):
            for name in _JUDGE_RATES:
                if (count := row.get(f"judge.count.{name}")) is not None:
                    self._gains.setdefault(name, deque()).append((float(t), int(count)))

    def last_minute(self, name: str, seen: ComponentView, counter: str) -> float | None:
        """Return the gain of a counter in the minute before its last report; None if it is not reported now. Gains
        during gaps between reports belong to no minute and are left out."""
        count = seen.counter(counter)
        if count is None:
            return None
        readings = self._gains.setdefault(name, deque())
        if readings and (seen.heard - readings[-1][0] > _APART or count < readings[-1][1]):
            readings.clear()
        if not readings or seen.heard > readings[-1][0]:
            readings.append((seen.heard, count))
        while len(readings) > 1 and readings[1][0] <= seen.heard - _MINUTE:
            readings.popleft()
        return float(count - readings[0][1])


def figures(mesh: MeshData, rates: Rates) -> Figures:
    """Return all current figures by name."""
    policy, judge, trainer = mesh.status("policy_server"), mesh.status("prm_judge"), mesh.status("trainer")
    found: dict[str, float | None] = {f"policy.{name}": policy.gauge(gauge) for name, gauge in _POLICY.items()}
    found |= {f"trainer.{name}": trainer.gauge(gauge) for name, gauge in _TRAINER.items()}
    found |= {f"judge.{name}": rates.last_minute(name, judge, counter) for name, counter in _JUDGE_RATES.items()}
    found |= {f"judge.count.{name}": judge.counter(counter) for name, counter in _JUDGE_RATES.items()}
    found["judge.queue"] = judge.gauge("queue")
    found["version"] = None if mesh.version is None else float(mesh.version)
    for seen in mesh.all():
        if seen.state != "ABSENT":
            found[f"up.{seen.name}"] = float(seen.live)
    environments = mesh.status("env_server")
    if environments.live and environments.status is not None:
        for name, value in environments.status.gauges.items():
            if (gauge := environment_gauge(name)) is not None and gauge[1] in _ENVIRONMENT:
                found[f"env.{gauge[0]}.{gauge[1]}"] = value
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def waits_for(status: ComponentStatus | None) -> str:
    """Return what a component waits for or suffers from: its detail, alarms and outboxes, without repetition."""
    if status is None:
        return ""
    alarms = "; ".join(alarm.message for alarm in status.alarms)
    rest = status.detail.removeprefix(alarms).removeprefix("; ") if alarms else status.detail
    boxes = [f"{box.name}: {box.pending} wait{f' ({box.last_error})' if box.last_error else ''}"
             for box in status.outboxes if box.pending and (box.last_error or not box.connected)]
    return "; ".join(part for part in (rest, alarms, *boxes) if part)
