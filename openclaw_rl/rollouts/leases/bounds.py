"""Size limits of observations."""

from __future__ import annotations

from typing import Any

import orjson

from openclaw_rl.rollouts.environments.interface import Observation
from openclaw_rl.rpc.messages import well_formed

#: Characters of a text in an observation, bytes of the whole as JSON, bytes of its picture; depth of nesting.
MOST_TEXT = 64 * 2**10
MOST_JSON = 512 * 2**10
MOST_IMAGE = 6 * 2**20
MOST_DEEP = 50
_CUT = "\n... [cut]"


def bounded(observation: Observation) -> Observation:
    """Cut an observation that is too large: long texts first, in the worst case all but a part of its text."""
    data, image = observation.data, observation.image_png
    encoded = _encoded(data)
    if encoded is not None and len(encoded) <= MOST_TEXT and len(image) <= MOST_IMAGE:
        return observation
    data = _cut(data)
    if len(image) > MOST_IMAGE:
        image, data = b"", {**data, "image_left_out": f"{len(observation.image_png):,} bytes are too many"}
    encoded = _encoded(data)
    if encoded is None or len(encoded) > MOST_JSON:
        data = {"text": _cut(observation.text), "left_out": "the rest of the observation is too large or no JSON"}
    return Observation(data, image)


def encode(observation: Observation) -> str:
    """Encode the data of a bounded observation as JSON."""
    return orjson.dumps(observation.data).decode()


def _encoded(data: Any) -> bytes | None:
    try:
        return orjson.dumps(data)
    except TypeError:
        return None


def _cut(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        text = well_formed(value)  # half a surrogate pair is no JSON
        return text if len(text) <= MOST_TEXT else text[:MOST_TEXT - len(_CUT)] + _CUT
    if depth > MOST_DEEP:
        return None
    if isinstance(value, dict):
        return {str(key)[:200]: _cut(member, depth + 1) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(member, depth + 1) for member in value]
    return value
