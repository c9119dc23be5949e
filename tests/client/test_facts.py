"""A turn's fate, put together from what three components know."""

from __future__ import annotations

import pytest

from openclaw_rl.client.facts import fate
from openclaw_rl.v1 import environment_pb2 as env
from openclaw_rl.v1 import trainer_pb2, turn_pb2
from openclaw_rl.v1.trainer_pb2 import SampleStatus
from openclaw_rl.v1.turn_pb2 import Judgement

MAIN, SIDE, UNKNOWN = turn_pb2.TURN_CLASS_MAIN, turn_pb2.TURN_CLASS_SIDE, turn_pb2.TURN_CLASS_UNKNOWN
TRAINED, DROPPED, PENDING = (trainer_pb2.SAMPLE_FATE_TRAINED, trainer_pb2.SAMPLE_FATE_DROPPED,
                             trainer_pb2.SAMPLE_FATE_PENDING)


def summary(turn_class: turn_pb2.TurnClass = MAIN, state: env.TurnState = env.TURN_STATE_SENT,
            **fields: str) -> env.TurnSummary:
    return env.TurnSummary(turn_id="t", session_id="s", turn_class=turn_class, state=state, policy_version=4, **fields)


@pytest.mark.parametrize(("known", "judgement", "sample", "down", "expected"), [
    (summary(SIDE, env.TURN_STATE_NOT_TRAINABLE, class_reason="declared side"), None, None, [],
     ("not_trainable", None, "declared side", None)),
    (summary(UNKNOWN, env.TURN_STATE_NOT_TRAINABLE, class_reason="no evidence"), None, None, [],
     ("not_trainable", None, "no evidence", None)),
    (summary(state=env.TURN_STATE_OPEN), None, None, [],
     ("pending", None, "open: waits for the next message", None)),
    (summary(), None, None, [], ("pending", None, "waits for the judge", None)),
    (summary(), None, None, ["the judge"], ("pending", None, "the judge did not answer", None)),
    (summary(), Judgement(score=-1), None, [], ("pending", None, "waits for the trainer to take it", -1)),
    (summary(), Judgement(score=1), SampleStatus(fate=PENDING), [],
     ("pending", None, "waits for the trainer's next step", 1)),
    (summary(), Judgement(score=0), SampleStatus(fate=TRAINED, version=5), [], ("trained", 5, "", 0)),
    (summary(), None, SampleStatus(fate=TRAINED, version=5, score=-1), ["the judge"], ("trained", 5, "", -1)),
    (summary(), Judgement(failed=True), SampleStatus(fate=DROPPED, reason="judge failed"), [],
     ("dropped", None, "judge failed", None)),
    (summary(state=env.TURN_STATE_REJECTED, reason="the judge refused it: too large"), None, None, [],
     ("dropped", None, "the judge refused it: too large", None)),
    (summary(state=env.TURN_STATE_SUPERSEDED, reason="retried as u"), None, None, [],
     ("not_trainable", None, "retried as u", None)),
])
def test_fate(known: env.TurnSummary, judgement: Judgement | None, sample: SampleStatus | None, down: list[str],
              expected: tuple[str, int | None, str, int | None]) -> None:
    result = fate(known, judgement, sample, down)
    assert (result.fate, result.trained_version, result.reason, result.score) == expected
    assert set(result.json()) == {"turn", "session", "class", "version", "score", "fate", "trained_version", "reason",
                                  "branch", "flaw", "context_change", "class_reason", "finished_at", "request",
                                  "response"}
    assert result.json()["version"] == 4


def test_a_waiting_sample_tells_what_the_trainer_needs() -> None:
    result = fate(summary(), Judgement(score=1), SampleStatus(fate=PENDING), [], "has 1 sample; needs 3 more or 20 s")
    assert result.reason == "waits for the trainer's next step: has 1 sample; needs 3 more or 20 s"
