"""Forgetting a session in the whole mesh: ask every component in the ring's order, then see to the versions.

Each step may be done again, so a call that was cut short, or that found a component down, is completed by the same
call later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.client.policy import PolicyServiceClient
from openclaw_rl.client.trainer import TrainerServiceClient
from openclaw_rl.rpc.errors import MeshError, unavailable
from openclaw_rl.rpc.messages import now
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.v1 import component_pb2, policy_pb2

#: Seconds that one component may take: it rewrites its files, or loads a version on a busy machine.
_TIMEOUT = 600.0
#: Seconds for which a rebuild is waited for, and between two looks.
_LONGEST_WAIT, _LOOK_EVERY = 1800.0, 0.5
#: Seconds that a rebuilt version, or the older one at a further policy server, has to become active.
_ACTIVATION = 60.0

Outcome = Literal["nothing_trained", "rebuilt", "rebuilding", "rolled_back"]
_REASON = "a session was forgotten"


@dataclass
class Forgotten:
    """What became of it."""

    session: str
    turns: list[str] = field(default_factory=list)  #: ids of its turns
    removed: dict[str, dict[str, int]] = field(default_factory=dict)  #: by component and kind
    void: list[int] = field(default_factory=list)  #: versions that were trained on its turns; they are gone
    base: int | None = None  #: the version that training goes on from; None when no version was trained on the turns
    active: int | None = None  #: the version that answers now
    rebuilding: int = 0  #: samples that still wait to be trained on again
    outcome: Outcome = "nothing_trained"
    message: str = "no version was trained on its turns"

    def json(self) -> dict[str, Any]:
        """As `openclaw-rl forget --json` prints it."""
        return {"session": self.session, "turns": self.turns, "removed": self.removed, "void_versions": self.void,
                "base_version": self.base, "active_version": self.active, "rebuilding": self.rebuilding,
                "outcome": self.outcome, "message": self.message}


class _Call:
    """One call to forget."""

    def __init__(self, home: Home, session: str, further: Sequence[str], say: Callable[[str], None]) -> None:
        self.home, self.further, self.say = home, further, say
        self.before = now()
        self.result = Forgotten(session)
        self.done: list[str] = []
        self.failed: dict[str, str] = {}  #: component -> why

    def component(self, name: str, label: str, address: str | None = None, versions: Collection[int] = ()
                  ) -> component_pb2.ForgetResponse | None:
        """Ask one component, by default that of the mesh; None when it could not be done."""
        try:
            with ComponentServiceClient(address, component=name, home=self.home) as client:
                answer = client.forget(session_id=self.result.session, turn_ids=self.result.turns, before=self.before,
                                       versions=sorted(versions), timeout=_TIMEOUT)
        except MeshError as error:
            self.failed[label] = error.message
            self.say(f"{label}: not done: {error.message}")
            return None
        self.failed.pop(label, None)
        self.result.turns = list(answer.turn_ids)
        counts = self.result.removed.setdefault(label, {})
        for kind, count in answer.removed.items():
            counts[kind] = counts.get(kind, 0) + count
        if label not in self.done:
            self.done.append(label)
        removed = ", ".join(f"{count} {kind}" for kind, count in sorted(answer.removed.items()) if count)
        self.say(f"{label}: {removed or 'nothing there'}")
        return answer

    def policy_servers(self, versions: Collection[int] = ()) -> dict[str, component_pb2.ForgetResponse]:
        """Ask the mesh's own policy server and the further ones."""
        places = {"policy_server": None, **{f"policy_server {address}": address for address in self.further}}
        answers = {label: self.component("policy_server", label, address, versions)
                   for label, address in places.items()}
        return {label: answer for label, answer in answers.items() if answer is not None}

    def check(self) -> None:
        """Raise when something was not done."""
        if self.failed:
            missing = "; ".join(f"{label}: {why}" for label, why in self.failed.items())
            raise unavailable(
                f"the session is not forgotten everywhere yet. Not done: {missing}. Done: "
                f"{', '.join(label for label in self.done if label not in self.failed) or 'nothing'}. Start what is "
                "missing (`openclaw-rl local-start`) and repeat the command: it goes on from here")


def forget(home: Home, session: str, further: Sequence[str] = (), *, wait: bool = True,
           say: Callable[[str], None] = lambda text: None) -> Forgotten:
    """Forget a session.

    Args:
        home: the mesh's.
        session: its id.
        further: addresses of further policy servers.
        wait: until the versions are rebuilt, at most half an hour.
        say: takes a line for each thing that was done.

    Raises:
        MeshError: UNAVAILABLE, a component could not be asked; the text says what was done and what was not. The same
            call again completes it.
    """
    call = _Call(home, session, further, say)
    result = call.result
    call.policy_servers()
    for name in COMPONENTS[1:]:
        answer = call.component(name, name)
    if answer is not None:  # the trainer's
        result.void, result.rebuilding = list(answer.versions), answer.rebuilding
        result.base = answer.base_version if answer.HasField("base_version") else None
        if result.void:
            result.message = answer.message
            _see_to_versions(call)
    call.check()
    if result.void:
        _conclude(call, wait)
    elif not result.turns:
        result.message = ("no turn of this session was found (`openclaw-rl turns` lists the sessions); one that comes "
                          "late is let go")
    return result


def _see_to_versions(call: _Call) -> None:
    """Let no policy server answer with a void version, and have their files deleted."""
    result = call.result
    try:
        with PolicyServiceClient(home=call.home) as policy:
            state = policy.get_policy().state
            if state.active_version in result.void:
                target = _way_back(call, state)
                state = policy.get_policy().state  # a trainer that learns in no time may have sent its rebuilt version
            if state.active_version in result.void:
                pin = {"pin": False} if state.pinned else {}
                after = policy.activate_version(version=target, reason=_REASON, timeout=_TIMEOUT, **pin).state
                # Or it came in the moment between; then that activation took it back.
                rebuilt = max(set(after.kept_versions).difference(result.void), default=target)
                if rebuilt > max(result.void):
                    policy.activate_version(version=rebuilt, reason=_REASON, timeout=_TIMEOUT)
                lifted = f"; the pin on version {state.active_version} is lifted" if state.pinned else ""
                call.say(f"policy_server: version {target} answers in place of {state.active_version}{lifted}")
                result.message += lifted
    except MeshError as error:
        call.failed["policy_server"] = error.message
        return
    deadline = time.monotonic() + _ACTIVATION
    while True:
        answers = call.policy_servers(result.void)
        stuck = {label: answer.message for label, answer in answers.items() if answer.message}
        if not stuck or time.monotonic() > deadline:
            call.failed |= stuck
            return
        time.sleep(_LOOK_EVERY)  # further policy servers follow the mesh's own one within a moment


def _way_back(call: _Call, state: policy_pb2.PolicyState) -> int:
    """The version to answer with in place of a void one: the one that training goes on from, or the nearest of those
    that it was made from that the policy server keeps."""
    with TrainerServiceClient(home=call.home) as trainer:
        manifests = {v.manifest.version: v.manifest for v in trainer.every_version()}
    good = set(state.kept_versions).difference(call.result.void)
    at = call.result.base or 0
    while at not in good and at in manifests and manifests[at].HasField("parent"):
        at = manifests[at].parent
    return at if at in good else 0


def _conclude(call: _Call, wait: bool) -> None:
    """Wait for the rebuild, and say what came of it."""
    result, last, hoped = call.result, max(call.result.void), call.result.rebuilding > 0
    deadline = time.monotonic() + (_LONGEST_WAIT if wait else 0)
    made_at: float | None = None
    with TrainerServiceClient(home=call.home) as trainer, \
            ComponentServiceClient(component="trainer", home=call.home) as component, \
            PolicyServiceClient(home=call.home) as policy:
        while True:
            status = component.get_status().status
            state, head = policy.get_policy().state, status.policy_version
            left = int(status.gauges.get("rebuilding", 0.0))
            if left != result.rebuilding:
                call.say(f"trainer: {left} samples are still to be trained on again")
            result.rebuilding, result.active = left, state.active_version
            if not left and head > last:
                made_at = made_at or time.monotonic()
            served = state.active_version == head or state.pinned
            waited = made_at is not None and time.monotonic() - made_at > _ACTIVATION
            if (not left and (served or head <= last or waited)) or status.gauges.get("paused") or (
                    time.monotonic() >= deadline):
                break
            time.sleep(_LOOK_EVERY)
        if left:
            result.outcome = "rebuilding"
        elif head > last:
            result.outcome = "rebuilt"
            result.message = f"version {head} is rebuilt from version {result.base} without the forgotten turns"
            if state.active_version != head:
                detail = trainer.get_version(version=head).version.detail
                result.message += f"; it does not answer yet: {detail or 'another version is pinned'}"
        else:
            result.outcome = "rolled_back"
            if hoped:
                result.message = (f"rolled back to version {head}: the steps that were to bring the rest back made no "
                                  "version that can be served (`openclaw-rl versions` and `status` tell why)")
