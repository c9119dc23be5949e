"""Request tags: how requests ask the hook inside SGLang for exact figures of each token.

SGLang reports one log-probability per token: after temperature and before top_p, or the model's own
(SGLANG_RETURN_ORIGINAL_LOGPROB), never both. The hook (`hook`) computes both, adds the version that produced the token,
and draws the tokens of seeded requests. Input and output use a field that SGLang carries through batching, overlap and
streaming: `token_ids_logprob`, the ids whose log-probabilities are wanted. A list that begins with PREFIX, which has no
other use, is a tag.
"""

from __future__ import annotations

from collections.abc import Sequence

#: The beginning of a tag: three times the same token.
PREFIX = [0, 0, 0]
#: A seed follows in digits of this base, lowest first; each must be a token id in any vocabulary.
_BASE = 128
_DIGITS = 9  # 63 bits
#: Variable that enables the hook.
VARIABLE = "OPENCLAW_RL_SGLANG"


def ask(seed: int | None) -> list[int]:
    """Return the tag of a request."""
    if seed is None:
        return list(PREFIX)
    return PREFIX + [seed // _BASE**i % _BASE for i in range(_DIGITS)]


def asked(ids: Sequence[int] | None) -> bool:
    """Whether a list is a tag."""
    return ids is not None and len(ids) >= len(PREFIX) and list(ids[:len(PREFIX)]) == PREFIX


def seed_of(ids: Sequence[int]) -> int | None:
    """The seed in a tag."""
    digits = ids[len(PREFIX):]
    return sum(digit * _BASE**i for i, digit in enumerate(digits)) if digits else None
