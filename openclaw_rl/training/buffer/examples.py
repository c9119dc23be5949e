"""From a judged turn to what a training step needs, without PyTorch.

The student's prompt and response are always the recorded token ids; nothing is tokenized again or padded. A record
that doesn't fit together is refused with a reason.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Protocol

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.buffer.texts import numbers
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)

#: A phrase counts as repeated from so many tokens on; short answers repeat themselves by chance.
REPETITION_TOKENS = 16
_PHRASE = 4
_CUT = {turn_pb2.FINISH_REASON_LENGTH: "the length limit was reached",
        turn_pb2.FINISH_REASON_CANCELLED: "the client went away",
        turn_pb2.FINISH_REASON_ERROR: "the engine failed"}


@dataclass(frozen=True, slots=True)
class Example:
    """One sample as numbers, or several turns of an episode that are one text (see trajectories.py). R is the number of
    response tokens, of all turns together."""

    turn_id: str  #: of the first turn
    prompt_ids: list[int]  #: of the first turn
    response_ids: list[int]  #: R
    behaviour: list[float]  #: R: the engine's own log-probabilities (temperature 1)
    versions: list[int]  #: R: policy version that sampled each token
    score: int  #: +1, 0 or -1; of all turns together
    hint: str  #: empty when there is none
    teacher_prompt_ids: list[int] | None  #: prompt with the hint in it; None without a hint
    advantages: list[float] | None = None  #: R, of a step of an episode; None of a user's turn
    turns: int = 1  #: how many they are
    #: What stands between two responses: the number of response tokens before it, and its token ids; ascending.
    gaps: Sequence[tuple[int, list[int]]] = ()

    def text(self) -> tuple[list[int], list[int]]:
        """All token ids in order, prompts and responses, and R positions: those that predict the response tokens."""
        ids, done = list(self.prompt_ids), 0
        places: list[int] = []
        for at, between in (*self.gaps, (len(self.response_ids), [])):
            places += range(len(ids) - 1, len(ids) - 1 + at - done)
            ids += [*self.response_ids[done:at], *between]
            done = at
        return ids, places


def problem(sample: turn_pb2.Sample, max_tokens: int | None) -> str | None:
    """Why a sample can't be trained on, or None. What stands before a colon is the reason's class.

    Args:
        sample: as the judge sent it.
        max_tokens: most tokens of prompt and response together; None: its text is enough, no token ids are needed.
    """
    turn, judgement = sample.transition.turn, sample.judgement
    if judgement.failed:
        return "judge failed"
    if turn.turn_class != turn_pb2.TURN_CLASS_MAIN:
        return f"not a main turn: class {turn_pb2.TurnClass.Name(turn.turn_class)}"
    if judgement.score not in (-1, 0, 1):
        return f"bad score: {judgement.score} is not -1, 0 or +1"
    if max_tokens is None:
        return None
    record = turn.tokens
    if not record.prompt_ids or not record.response_ids:
        return "no token ids"
    if wrong := _record_problem(record):
        return f"bad token record: {wrong}"
    if (total := len(record.prompt_ids) + len(record.response_ids)) > max_tokens:
        return f"too long: {total} tokens, max_tokens_per_sample is {max_tokens}"
    return None


def _record_problem(record: turn_pb2.TokenRecord) -> str | None:
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
    if min(min(record.prompt_ids), min(record.response_ids)) < 0:
        return "negative token id"
    return None


def unwanted(turn: turn_pb2.Turn, config: TrainerConfig) -> str | None:
    """Why a turn that could be trained on is not to be, as configured, or None; `problem` must have found nothing."""
    if config.truncated == "drop" and truncated(turn):
        return f"truncated: {_CUT[turn.finish_reason]}"
    if config.degenerate == "keep":
        return None
    response = turn.response
    ids = turn.tokens.response_ids or numbers(response.content)
    if not (response.content.strip() or response.parts or response.tool_calls):
        return "degenerate: the response is empty"
    if looping(ids):
        return f"degenerate: the same {_PHRASE} tokens again and again are {repetition(ids)} of {len(ids)}"
    return None


def truncated(turn: turn_pb2.Turn) -> bool:
    """Something other than the model ended the response."""
    return turn.finish_reason in _CUT


def looping(ids: Sequence[int]) -> bool:
    """One phrase again and again makes up over half of the tokens."""
    repeated = repetition(ids)
    return repeated >= REPETITION_TOKENS and 2 * repeated > len(ids)


def repetition(ids: Sequence[int]) -> int:
    """How many of the tokens belong to the 4-gram that covers most of them."""
    last: dict[tuple[int, ...], int] = {}
    covered: Counter[tuple[int, ...]] = Counter()
    for at in range(len(ids) - _PHRASE + 1):
        phrase = tuple(ids[at:at + _PHRASE])
        covered[phrase] += min(_PHRASE, at - last.get(phrase, -_PHRASE))
        last[phrase] = at
    return max(covered.values(), default=0)


def sampled_from(turn: turn_pb2.Turn) -> int:
    """The oldest policy version that sampled a token of the response; `problem` must have found nothing."""
    return min((span.version for span in turn.tokens.spans), default=turn.policy_version)


def outside_vocabulary(sample: turn_pb2.Sample, vocab_size: int) -> str | None:
    """Why a sample doesn't belong to a model of `vocab_size` tokens, or None."""
    record = sample.transition.turn.tokens
    if (worst := max(max(record.prompt_ids), max(record.response_ids))) >= vocab_size:
        return f"bad token record: token id {worst}, but the model has {vocab_size}"
    return None


def from_the_future(sample: turn_pb2.Sample, newest: int | None) -> str | None:
    """Why a sample can't have come from this trainer's policy, or None.

    Args:
        newest: the newest version that there ever was; None when that is not known for certain.
    """
    turn = sample.transition.turn
    latest = max((span.version for span in turn.tokens.spans), default=turn.policy_version)
    if newest is not None and latest > newest:
        return f"bad token record: sampled from version {latest}, but the newest is {newest}"
    return None


class Codec(Protocol):
    """Text to token ids and back. In a text nothing is a special token."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def runs(self, ids: Sequence[int]) -> list[list[int]]:
        """The ids in order, cut into runs of text and single special tokens."""
        ...


class FileCodec:
    """The tokenizer.json of a model folder."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.encode_special_tokens = True  # as text
        self._special = {index for index, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def runs(self, ids: Sequence[int]) -> list[list[int]]:
        # Each special token is a group of its own, by its place.
        places = groupby(enumerate(ids), lambda item: item[0] if item[1] in self._special else -1)
        return [[index for _, index in run] for _, run in places]


def example(sample: turn_pb2.Sample, codec: Codec) -> Example:
    """The sample as numbers; `problem` must have found nothing."""
    turn, judgement = sample.transition.turn, sample.judgement
    versions = [span.version for span in turn.tokens.spans for _ in range(span.begin, span.end)]
    teacher = teacher_prompt(turn, judgement.hint, codec) if judgement.hint.strip() else None
    return Example(turn.turn_id, list(turn.tokens.prompt_ids), list(turn.tokens.response_ids),
                   list(turn.tokens.model_logprobs), versions, judgement.score, judgement.hint, teacher)


def teacher_prompt(turn: turn_pb2.Turn, hint: str, codec: Codec) -> list[int] | None:
    """The recorded prompt with the hint behind the last user message, or None when that isn't found in it.

    The hint is put into the text of the recorded prompt rather than into a prompt rendered anew: whatever template,
    tool descriptions or default system message the policy server used are the teacher's too, so the hint is the
    only difference between teacher and student. Special tokens stay where the prompt has them; only the text that the
    message stands in is tokenized again, so that no hint can end the user's message.
    """
    runs = codec.runs(turn.tokens.prompt_ids)
    for message in reversed(turn.messages):
        if message.role == "user":
            texts = [message.content, *(part.text for part in message.parts)]
            words = "\n".join(filter(None, texts)).strip()  # as the policy server joins them
            for i in reversed(range(len(runs)) if words else ()):
                text = codec.decode(runs[i])
                if (at := text.rfind(words)) >= 0:
                    at += len(words)
                    runs[i] = codec.encode(f"{text[:at]}\n\n{hint.strip()}{text[at:]}")
                    return list(chain.from_iterable(runs))
            break
    logger.warning("turn %s: its last user message is not in its prompt; trained without the hint", turn.turn_id)
    return None
