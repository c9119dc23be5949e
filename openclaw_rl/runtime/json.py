"""JSON from outside: model output, tools, peers, files that others write."""

from __future__ import annotations

import json
from typing import Any

_decoders = {strict: json.JSONDecoder(strict=strict) for strict in (True, False)}


def parse_json(text: str | bytes | bytearray) -> Any:
    """The value of a JSON document.

    Raises:
        ValueError: it is none, is not UTF-8, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json_prefix(text: str, start: int = 0, *, strict: bool = True) -> tuple[Any, int]:
    """The value that begins at `start`, whatever follows, and where it ends.

    Args:
        strict: refuse control characters within strings.

    Raises:
        ValueError: none begins there, or it is nested too deeply.
    """
    try:
        return _decoders[strict].raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
