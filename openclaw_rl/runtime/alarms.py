"""Alarms of a component, each with the time from which it holds."""

from __future__ import annotations

import time
from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from openclaw_rl.v1.component_pb2 import (
    COMPONENT_STATE_DEGRADED,
    COMPONENT_STATE_RUNNING,
    Alarm,
    ComponentStatus,
    OutboxStats,
)

#: (name, message) of an alarm that holds now.
Raised = tuple[str, str]

#: Seconds that the oldest message of an outbox may wait before that is an alarm: a neighbour's restart takes less.
WAITING_SECONDS = 120.0
#: Seconds for which a refused message is an alarm; it stays counted and kept aside afterwards.
REFUSED_SECONDS = 3600.0


class Alarms:
    """Remembers since when each alarm holds, and puts them into a status.

    An alarm has a name, by which metrics and tests know it, and a sentence for the operator: what is wrong, and what to
    do. The server asks for the status every few seconds, so that the begin is known even when nobody looks.
    """

    def __init__(self) -> None:
        self._since: dict[str, Timestamp] = {}

    def report(self, status: ComponentStatus, raised: Iterable[Raised]) -> None:
        """Add the alarms that hold now to `status`; with one, a running component is DEGRADED and its detail begins
        with the messages. Alarms that are not among them have ended. Those of one name are joined; empty messages are
        ignored."""
        messages: dict[str, list[str]] = {}
        for name, message in raised:
            if message:
                messages.setdefault(name, []).append(message)
        now = Timestamp()
        now.GetCurrentTime()
        self._since = {name: self._since.get(name) or now for name in messages}
        new = [Alarm(name=name, message="; ".join(dict.fromkeys(texts)), since=self._since[name])
               for name, texts in messages.items()]
        if new:
            before = list(status.alarms)  # of another one's report; the detail begins with theirs
            del status.alarms[:]
            status.alarms.extend([*new, *before])
            if status.state == COMPONENT_STATE_RUNNING:
                status.state = COMPONENT_STATE_DEGRADED
            status.detail = "; ".join([*(alarm.message for alarm in new), *filter(None, [status.detail])])


def outbox_alarms(stats: OutboxStats, neighbour: str, last_refused: float | None = None) -> list[Raised]:
    """The alarms of a ring stream.

    Args:
        stats: the outbox's; its name, such as "turns", begins the alarms' names.
        neighbour: the component that takes its messages.
        last_refused: when a message was last set aside, in seconds since the epoch.
    """
    raised = []
    waited = stats.oldest_age.ToNanoseconds() / 1e9
    if stats.pending and waited > WAITING_SECONDS:
        why = stats.last_error or ("it answers but does not keep up" if stats.connected else "connecting")
        raised.append((f"{stats.name}_waiting", f"{stats.pending} {stats.name} wait on disk for {neighbour}, the "
                       f"oldest for {duration(waited)}: {why}; nothing is lost, start or repair {neighbour} and they "
                       "go on by themselves"))
    if stats.rejected and last_refused is not None and time.time() - last_refused < REFUSED_SECONDS:
        raised.append((f"{stats.name}_refused", f"{neighbour} has refused {stats.name} ({stats.rejected} are kept "
                       "aside): `openclaw-rl set-aside` lists them with the reasons"))
    return raised


def quarantine_alarm(name: str, count: int, last: float | None) -> Raised:
    """Messages that were refused or damaged, for a while after the last one."""
    recent = last is not None and time.time() - last < REFUSED_SECONDS
    return f"{name}_set_aside", recent * (
        f"{name} that can't be used were set aside ({count} kept): `openclaw-rl set-aside` lists them with the reasons")


def duration(seconds: float) -> str:
    """A time for people: 42 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
