"""Rate limits in OpenAI's format: headers with the remaining allowance, and the error 429."""

from __future__ import annotations

import math

from openclaw_rl.rpc.limits import Allowance, Limiter, LimitReached, duration
from openclaw_rl.serving.entrypoints.openai.errors import ApiError


def take(limiter: Limiter, client: str, who: str) -> dict[str, str]:
    """Begin a request, which `limiter.give_back` ends.

    Returns:
        OpenAI's headers with the remaining allowance.

    Raises:
        ApiError: 429 with the time to retry after.
    """
    try:
        return _headers(limiter.take(client, who))
    except LimitReached as error:
        raise ApiError(429, error.message, type="requests", code="rate_limit_exceeded",
                       headers={**_headers(error.allowance), "Retry-After": str(max(1, math.ceil(error.wait))),
                                "Retry-After-Ms": str(max(1, math.ceil(error.wait * 1000)))}) from None


def _headers(allowance: Allowance) -> dict[str, str]:
    return {"x-ratelimit-limit-requests": str(allowance.limit),
            "x-ratelimit-remaining-requests": str(allowance.remaining),
            "x-ratelimit-reset-requests": duration(allowance.reset)}
