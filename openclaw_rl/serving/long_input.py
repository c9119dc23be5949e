"""Long requests: what can't fit is refused by its size, and what takes long is done beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from openclaw_rl.rpc import errors

T = TypeVar("T")

#: Bytes of a request from which on reading it would hold up running streams: a millisecond or more.
LONG_BYTES = 2**15
#: Bytes that JSON may take for one of text: \u00e9 for é. Only control characters take more.
_ESCAPED = 4


class PromptLimits(NamedTuple):
    """What a prompt can't exceed.

    Attributes:
        tokens: the model's context.
        token_bytes: bytes of its longest token, so that a text of `tokens * token_bytes` bytes is too long for sure.
    """

    tokens: int
    token_bytes: int

    def check_request(self, size: int, field: str = "messages") -> None:
        """Check the size of a request in bytes, before it is read.

        Raises:
            MeshError: CONTEXT_TOO_LONG, it can't fit.
        """
        most = self.tokens * self.token_bytes * _ESCAPED
        if size > most:
            raise context_too_long(self.tokens, f"request has {size} bytes; no more than {most} can fit", field)

    def check_messages(self, count: int) -> None:
        """Check the number of messages, each of which takes a token.

        Raises:
            MeshError: CONTEXT_TOO_LONG, they can't fit.
        """
        if count > self.tokens:
            raise context_too_long(self.tokens, f"messages resulted in at least {count} tokens", "messages")

    def check_tokens(self, count: int, field: str) -> None:
        """Check the number of given tokens.

        Raises:
            MeshError: CONTEXT_TOO_LONG, they can't fit.
        """
        if count > self.tokens:
            raise context_too_long(self.tokens, f"{field} resulted in {count} tokens", field)


def context_too_long(limit: int, what: str, field: str) -> errors.MeshError:
    """CONTEXT_TOO_LONG, in OpenAI's words.

    Args:
        limit: tokens of the model's context.
        what: completes "However, your ...".
        field: that is too long.
    """
    return errors.MeshError(
        errors.CATALOGUE["CONTEXT_TOO_LONG"][0], "CONTEXT_TOO_LONG",
        f"This model's maximum context length is {limit} tokens. However, your {what}. Please reduce the length of the "
        f"{field}.", violations=[(field, f"{what}; at most {limit - 1} tokens are allowed")])


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Call `work`, on another thread if it reads a request of `size` bytes for long."""
    return await asyncio.to_thread(work) if size > LONG_BYTES else work()
