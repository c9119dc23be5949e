"""What should have moved and did not: a component's alarms, each with the moment from which it holds."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from openclaw_rl.mesh.helpers import now
from openclaw_rl.v1.component_pb2 import COMPONENT_STATE_DEGRADED, COMPONENT_STATE_RUNNING, Alarm, ComponentStatus


class Alarms:
    """Remembers since when each alarm holds, and puts them into a status.

    An alarm has a name, by which metrics and tests know it, and a sentence for a tired operator: what is wrong, and
    what to do.
    """

    def __init__(self) -> None:
        self._since: dict[str, Timestamp] = {}

    def report(self, status: ComponentStatus, raised: Iterable[tuple[str, str]]) -> None:
        """Tell in `status` the alarms (name, message) that hold now; with one, a running component is DEGRADED and its
        detail begins with the messages. Alarms that are not among them have ended."""
        messages = dict(raised)
        self._since = {name: self._since.get(name) or now() for name in messages}
        status.alarms.extend(Alarm(name=name, message=message, since=self._since[name])
                             for name, message in messages.items())
        if messages:
            if status.state == COMPONENT_STATE_RUNNING:
                status.state = COMPONENT_STATE_DEGRADED
            status.detail = "; ".join([*messages.values(), *filter(None, [status.detail])])
