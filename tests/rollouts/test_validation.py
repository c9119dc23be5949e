"""Codes of rejected events and transitions: what follows from a rejection is decided by these, never by its text."""

from __future__ import annotations

import pytest

from openclaw_rl.delivery.ids import message_id
from openclaw_rl.delivery.validation import RejectionCode
from openclaw_rl.reward.validation import validate_transition
from openclaw_rl.rollouts.sandboxes.factory import Auto
from openclaw_rl.rollouts.sandboxes.interface import Limits, Spec, Unusable
from openclaw_rl.rollouts.tracking.validation import validate_event
from openclaw_rl.runtime.rejection import Rejection
from openclaw_rl.v1.environment_pb2 import PolicyEvent
from openclaw_rl.v1.turn_pb2 import (
    TURN_CLASS_MAIN,
    TURN_CLASS_SIDE,
    Feedback,
    SessionActive,
    SessionEnd,
    Transition,
    Turn,
)


@pytest.mark.parametrize(("event", "code"), [
    (PolicyEvent(), RejectionCode.MALFORMED),
    (PolicyEvent(turn=Turn()), RejectionCode.INVALID_ID),
    (PolicyEvent(turn=Turn(turn_id="x" * 257)), RejectionCode.INVALID_ID),
    (PolicyEvent(turn=Turn(turn_id="t", session_id="a\nb")), RejectionCode.INVALID_ID),
    (PolicyEvent(session_end=SessionEnd(event_id="e")), RejectionCode.MALFORMED),
    (PolicyEvent(session_active=SessionActive(event_id="e")), RejectionCode.MALFORMED),
    (PolicyEvent(feedback=Feedback(feedback_id="f")), RejectionCode.MALFORMED),
    (PolicyEvent(feedback=Feedback(feedback_id="f", turn_id="t", score=1.5)), RejectionCode.OUT_OF_RANGE),
    (PolicyEvent(feedback=Feedback(feedback_id="f", turn_id="t", score=float("nan"))), RejectionCode.OUT_OF_RANGE)])
def test_rejected_events(event: PolicyEvent, code: RejectionCode) -> None:
    rejection = validate_event(event, message_id(event))
    assert rejection is not None and rejection.code is code and rejection.message


@pytest.mark.parametrize("event", [
    PolicyEvent(turn=Turn(turn_id="t")), PolicyEvent(feedback=Feedback(feedback_id="f", session_id="s", score=-1)),
    PolicyEvent(session_end=SessionEnd(event_id="e", session_id="s"))])
def test_accepted_events(event: PolicyEvent) -> None:
    assert validate_event(event, message_id(event)) is None


@pytest.mark.parametrize(("turn", "code"), [
    (Turn(), RejectionCode.INVALID_ID),
    (Turn(turn_id="t", turn_class=TURN_CLASS_SIDE), RejectionCode.WRONG_CLASS),
    (Turn(turn_id="t", turn_class=TURN_CLASS_MAIN), None)])
def test_transitions(turn: Turn, code: RejectionCode | None) -> None:
    rejection = validate_transition(Transition(turn=turn))
    assert (rejection.code if rejection is not None else None) is code


class _Refusing:
    """A back end that rejects every sandbox with one code."""

    name = "bubblewrap"

    def __init__(self, code: Unusable) -> None:
        self._code = code

    async def validate(self, spec: Spec) -> Rejection[Unusable] | None:
        return Rejection(self._code, "any text")


@pytest.mark.parametrize(("code", "both"), [(Unusable.IMAGE_ABSENT, True), (Unusable.NOT_PERMITTED, False)])
async def test_the_automatic_back_end_names_both_builds_of_an_absent_image(
        monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, code: Unusable, both: bool) -> None:
    auto = Auto(tmp_path_factory.mktemp("home"))
    monkeypatch.setattr(auto, "_bubblewrap", _Refusing(code))
    monkeypatch.setattr(auto, "_docker", _Refusing(Unusable.NO_ENGINE))
    rejection = await auto.validate(Spec(Limits(1, 1, 1), "openclaw/gui-env:latest"))
    assert rejection is not None and rejection.code is code
    assert ("--for docker" in rejection.message) == both
