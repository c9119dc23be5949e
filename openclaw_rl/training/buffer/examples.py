"""Conversion of judged turns to examples, without PyTorch.

The student's prompt and response are always the recorded token ids; nothing is tokenized again or padded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Protocol

from openclaw_rl.training.algorithms.example import Example
from openclaw_rl.training.buffer.turns import chosen
from openclaw_rl.v1 import turn_pb2

logger = logging.getLogger(__name__)


class Codec(Protocol):
    """Converts text to token ids and back. In a text nothing is a special token."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def runs(self, ids: Sequence[int]) -> list[list[int]]:
        """Cut ids, in order, into runs of text and single special tokens."""
        ...


class FileCodec:
    """Codec of the tokenizer.json in a model folder."""

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
    """Convert a valid sample."""
    turn, judgement = sample.transition.turn, sample.judgement
    response, behaviour, versions, gaps = chosen(turn.tokens)
    teacher = teacher_prompt(turn, judgement.hint, codec) if judgement.hint.strip() else None
    return Example(turn.turn_id, list(turn.tokens.prompt_ids), response, behaviour, versions, judgement.score,
                   judgement.hint, teacher, gaps=gaps)


def teacher_prompt(turn: turn_pb2.Turn, hint: str, codec: Codec) -> list[int] | None:
    """Return the recorded prompt with the hint behind the last user message; None when that isn't found in it.

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
