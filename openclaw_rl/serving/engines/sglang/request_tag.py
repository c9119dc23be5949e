"""How a request asks our hook inside SGLang for each token's exact figures, and reads them.

SGLang reports one log-probability a token: of the distribution after temperature and before top_p, or of the model
itself (SGLANG_RETURN_ORIGINAL_LOGPROB), never both. The hook (`hook`) computes both, adds the version that made the
token, and draws the tokens of requests with a seed. What goes in and out travels in a field that SGLang carries for
each request through batching, overlap and streaming: `token_ids_logprob`, the ids whose log-probabilities are wanted.
A list that begins with PREFIX, which nobody has a reason to ask for, is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

#: What a list of ours begins with: three times the same token.
PREFIX = [0, 0, 0]
#: A seed follows in digits of this base, lowest first: each must be a token id of the smallest vocabulary there is.
_BASE = 128
_DIGITS = 9  # 63 bits
#: Variable that makes SGLang load the hook; unset, the hook does nothing.
VARIABLE = "OPENCLAW_RL_SGLANG"


def ask(seed: int | None) -> list[int]:
    """The list that a request carries."""
    if seed is None:
        return list(PREFIX)
    return PREFIX + [seed // _BASE**i % _BASE for i in range(_DIGITS)]


def asked(ids: Sequence[int] | None) -> bool:
    """Whether a list is ours."""
    return ids is not None and len(ids) >= len(PREFIX) and list(ids[:len(PREFIX)]) == PREFIX


def seed_of(ids: Sequence[int]) -> int | None:
    """The seed that a list of ours carries."""
    digits = ids[len(PREFIX):]
    return sum(digit * _BASE**i for i, digit in enumerate(digits)) if digits else None
