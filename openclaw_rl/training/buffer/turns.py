"""Facts of a judged turn that the trainer decides by."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_rl.v1 import turn_pb2

#: Finishes that cut a response, and why.
CUT = {turn_pb2.FINISH_REASON_LENGTH: "the length limit was reached",
       turn_pb2.FINISH_REASON_CANCELLED: "the client went away",
       turn_pb2.FINISH_REASON_ERROR: "the engine failed"}


def turn_id(sample: turn_pb2.Sample) -> str:
    """Return the id of a sample's turn."""
    return sample.transition.turn.turn_id


def truncated(turn: turn_pb2.Turn) -> bool:
    """Return whether something other than the model ended the response."""
    return turn.finish_reason in CUT


def sampled_from(turn: turn_pb2.Turn) -> int:
    """Return the oldest policy version that sampled a token of the response, of a turn whose record is valid."""
    return min((span.version for span in turn.tokens.spans), default=turn.policy_version)


def answered_by(turn: turn_pb2.Turn) -> int | None:
    """Return the one version that sampled the whole response; None when there were several."""
    versions = {span.version for span in turn.tokens.spans} or {turn.policy_version}
    return versions.pop() if len(versions) == 1 else None


def chosen(record: turn_pb2.TokenRecord) -> tuple[list[int], list[float], list[int], list[tuple[int, list[int]]]]:
    """Return of the response's tokens those that the policy chose: ids, the model's log-probabilities, versions; and
    those that a grammar forced, as the gaps between them (see Example.gaps)."""
    forced = set(record.forced)
    kept = [i for i in range(len(record.response_ids)) if i not in forced]
    versions = [span.version for span in record.spans for _ in range(span.begin, span.end)]
    gaps: dict[int, list[int]] = {}
    for nth, i in enumerate(record.forced):
        gaps.setdefault(i - nth, []).append(record.response_ids[i])
    return ([record.response_ids[i] for i in kept], [record.model_logprobs[i] for i in kept],
            [versions[i] for i in kept], list(gaps.items()))


def live_score(sample: turn_pb2.Sample) -> tuple[int, int] | None:
    """Return the version that a sample speaks for, and its score as it was judged.

    None of failed judgements, which are no opinion, of turns that several versions answered together, which speak for
    none of them, and of steps of episodes: they are no user's, and tasks differ more than versions do.
    """
    turn, judgement = sample.transition.turn, sample.judgement
    version = answered_by(turn)
    counts = (turn.turn_class == turn_pb2.TURN_CLASS_MAIN and not turn.HasField("episode") and not judgement.failed
              and judgement.score in (-1, 0, 1))
    return (version, judgement.score) if counts and version is not None else None


def staleness(samples: Sequence[turn_pb2.Sample], parent: int) -> float:
    """Return by how many version numbers the policy that sampled lags behind `parent`, which the step builds on; the
    mean."""
    return sum(max(0, parent - sampled_from(sample.transition.turn)) for sample in samples) / max(1, len(samples))
