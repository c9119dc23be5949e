"""Validation of samples: which can be trained on, and which are to be as configured."""

from __future__ import annotations

import math
from itertools import pairwise

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.buffer.repetition import PHRASE, looping, repetition
from openclaw_rl.training.buffer.turns import CUT, truncated
from openclaw_rl.training.buffer.words import numbers
from openclaw_rl.training.tables.reasons import Drop, DropReason, drop
from openclaw_rl.v1 import turn_pb2


def validate_origin(turn: turn_pb2.Turn, mesh_id: str) -> Drop | None:
    """Return why a turn is not one of this mesh, whose id is "" where those of any are trained on."""
    if not mesh_id or turn.mesh_id == mesh_id:
        return None
    return drop(DropReason.FOREIGN_MESH, f"the turn is of the mesh {turn.mesh_id[:80]}, and this is {mesh_id}"
                if turn.mesh_id else "no environment server of this mesh took the turn in: turn.mesh_id is empty")


def validate_sample(sample: turn_pb2.Sample, max_tokens: int | None) -> Drop | None:
    """Return why a sample can't be trained on.

    Args:
        sample: as the judge sent it.
        max_tokens: most tokens of prompt and response together; None: its text is enough, no token ids are needed.
    """
    turn, judgement = sample.transition.turn, sample.judgement
    if judgement.failed:
        return drop(DropReason.JUDGE_FAILED)
    if turn.turn_class != turn_pb2.TURN_CLASS_MAIN:
        return drop(DropReason.NOT_MAIN, f"class {turn_pb2.TurnClass.Name(turn.turn_class)}")
    if judgement.score not in (-1, 0, 1):
        return drop(DropReason.BAD_SCORE, f"{judgement.score} is not -1, 0 or +1")
    if max_tokens is None:
        return None
    record = turn.tokens
    if not record.prompt_ids or not record.response_ids:
        return drop(DropReason.NO_TOKENS)
    if flaw := _flaw(record):
        return drop(DropReason.BAD_TOKENS, flaw)
    if (total := len(record.prompt_ids) + len(record.response_ids)) > max_tokens:
        return drop(DropReason.TOO_LONG, f"{total} tokens, max_tokens_per_sample is {max_tokens}")
    return None


def _flaw(record: turn_pb2.TokenRecord) -> str:
    count = len(record.response_ids)
    for name in ("logprobs", "model_logprobs"):
        values = getattr(record, name)
        if len(values) != count:
            return f"{count} response_ids but {len(values)} {name}"
        # Rounding in the engine may leave a hair above 0.
        if not all(math.isfinite(value) and value < 1e-3 for value in values):
            return f"{name} must be finite and at most 0"
    end = 0
    for span in record.spans:
        if span.begin != end or span.end <= span.begin:
            return f"span {span.begin}-{span.end} doesn't follow token {end}"
        if span.version < 0:
            return f"span {span.begin}-{span.end} is of version {span.version}"
        end = span.end
    if end != count:
        return f"spans cover {end} of {count} tokens"
    if any(later <= earlier for earlier, later in pairwise((-1, *record.forced, count))):
        return f"forced must be ascending indexes below {count}"
    if min(min(record.prompt_ids), min(record.response_ids)) < 0:
        return "negative token id"
    return ""


def validate_quality(turn: turn_pb2.Turn, config: TrainerConfig) -> Drop | None:
    """Return why a turn of a valid sample is not to be trained on, as configured."""
    if config.truncated == "drop" and truncated(turn):
        return drop(DropReason.TRUNCATED, CUT[turn.finish_reason])
    if config.degenerate == "keep":
        return None
    response = turn.response
    ids = turn.tokens.response_ids or numbers(response.content)
    if not (response.content.strip() or response.parts or response.tool_calls):
        return drop(DropReason.DEGENERATE, "the response is empty")
    if looping(ids):
        return drop(DropReason.DEGENERATE,
                    f"the same {PHRASE} tokens again and again are {repetition(ids)} of {len(ids)}")
    return None


def validate_use(turn: turn_pb2.Turn, config: TrainerConfig, tokens: bool) -> Drop | None:
    """Return why nothing that is configured learns from such a turn.

    Args:
        tokens: token ids are trained on; else texts.
    """
    if turn.HasField("episode"):
        return None if tokens else drop(DropReason.OF_EPISODE,
                                        "the playbook of an API model does not learn from episodes")
    return NOT_OF_EPISODE if tokens and config.algorithm == "grpo" else None


NOT_OF_EPISODE = drop(DropReason.NOT_OF_EPISODE, "algorithm grpo learns from episodes only")


def validate_vocabulary(sample: turn_pb2.Sample, vocab_size: int) -> Drop | None:
    """Return why a valid sample doesn't belong to a model of `vocab_size` tokens."""
    record = sample.transition.turn.tokens
    if (worst := max(max(record.prompt_ids), max(record.response_ids))) >= vocab_size:
        return drop(DropReason.BAD_TOKENS, f"token id {worst}, but the model has {vocab_size}")
    return None


def validate_choice(sample: turn_pb2.Sample) -> Drop | None:
    """Return why nothing can be learned from how a valid sample's tokens were chosen."""
    record = sample.transition.turn.tokens
    if len(record.forced) == len(record.response_ids):
        return drop(DropReason.NO_SIGNAL, "a grammar forced every token of the response")
    return None


def validate_version(sample: turn_pb2.Sample, newest: int | None) -> Drop | None:
    """Return why a sample can't have come from this trainer's policy.

    Args:
        newest: the newest version that there ever was; None when that is not known for certain.
    """
    turn = sample.transition.turn
    latest = max((span.version for span in turn.tokens.spans), default=turn.policy_version)
    if newest is not None and latest > newest:
        return drop(DropReason.BAD_TOKENS, f"sampled from version {latest}, but the newest is {newest}")
    return None
