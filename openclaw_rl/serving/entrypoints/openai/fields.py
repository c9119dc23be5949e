"""JSON objects read field by field; errors name the field, its value and what is allowed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, overload

import orjson

from openclaw_rl.serving.entrypoints.openai.errors import ApiError, missing, wrong_type, wrong_value

T = TypeVar("T")

_MARKS = (b",", b"{", b"[")  # each begins a value, but for texts
_PART = 2**18  # bytes that are looked at together
#: An escape in a JSON text: a surrogate pair, half of one (group 1), or any other.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|"
                     r"(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)")
#: Values of a request's body: to parse so many takes some 50 ms, in which nothing else runs.
MOST_VALUES = 2**20


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a request body as a JSON object.

    Raises:
        ApiError: 400, not UTF-8, not JSON, or not an object; 413, it has too many values.
    """
    if _has_more_values(body, MOST_VALUES):
        raise ApiError(413, f"The request's body has more than {MOST_VALUES} values, the most that is taken.",
                       code="request_too_large")
    try:
        value = _loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}. The API expects a JSON "
                            f"object in UTF-8.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise wrong_type("body", value, "an object")
    return value


def _loads(body: bytes | bytearray) -> Any:
    """Parse JSON, also as Python's own parser takes and writes it: a history may hold half of a surrogate pair, NaN, or
    a number that no double holds. The former becomes U+FFFD, the latter null. A setting has to be a number.

    Raises:
        JSONDecodeError: as orjson has it.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            text = _ESCAPE.sub(lambda match: "\\ufffd" if match[1] else match[0], body.decode("utf-8-sig"))
            value = json.loads(text, parse_int=_integer)
            # Writes null for what is not finite, and refuses what is nested too deeply to work with.
            clean = orjson.loads(orjson.dumps(value))
        except (ValueError, TypeError, RecursionError):
            value = None
        if not isinstance(value, dict) or any(isinstance(item, float) and not math.isfinite(item)
                                              for item in value.values()):
            raise
        return clean


def _integer(digits: str) -> int | float:
    number = float(digits)
    return int(digits) if abs(number) < 2**63 else number


def _has_more_values(body: bytes | bytearray, most: int) -> bool:
    """Whether JSON has more than `most` values, without parsing it. Texts may have as many commas as they like."""
    if len(body) <= 2 * most or sum(map(body.count, _MARKS)) <= most:  # a value has two bytes at least
        return False
    count = begin = 0
    within = False  # a text
    while begin < len(body) and count <= most:
        end = begin + _PART
        while end < len(body) and body[end - 1] == 0x5C:  # a backslash, which belongs to what follows
            end += 1
        parts = body[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[within::2])
        count += sum(map(outside.count, _MARKS))
        within ^= len(parts) % 2 == 0
        begin = end
    return count > most


class Fields:
    """A JSON object. Null counts as absent, as in OpenAI's API; `known` has every name that was read."""

    def __init__(self, data: dict[str, Any], path: str = "") -> None:
        self.data = data
        self.known: set[str] = set()
        self._path = path

    def name(self, key: str) -> str:
        """The full name of a field, for errors."""
        return f"{self._path}.{key}" if self._path else key

    def get(self, key: str) -> Any:
        """The raw value; None when absent."""
        self.known.add(key)
        return self.data.get(key)

    def refuse(self, keys: Iterable[str]) -> None:
        """Refuse fields that are not supported; without a value, or an empty one, they ask for nothing."""
        for key in keys:
            if value := self.data.get(key):
                raise wrong_value(self.name(key), value, "left out: it is not supported")

    def text(self, key: str) -> str | None:
        """A string."""
        return self._typed(key, str, "a string")

    def required_text(self, key: str) -> str:
        """A required string."""
        return self._typed(key, str, "a string", required=True)

    def flag(self, key: str) -> bool | None:
        """A boolean."""
        return self._typed(key, bool, "a boolean")

    def object(self, key: str, required: bool = False) -> dict[str, Any] | None:
        """An object."""
        return self._typed(key, dict, "an object", required)

    def array(self, key: str, required: bool = False) -> list[Any] | None:
        """An array."""
        return self._typed(key, list, "an array", required)

    def integer(self, key: str, low: int, high: int) -> int | None:
        """An integer from `low` to `high`."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.name(key), value, "an integer")
        if not low <= value <= high:
            raise wrong_value(self.name(key), value, f"from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float) -> float | None:
        """A number from `low` to `high`."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.name(key), value, "a number")
        if not low <= value <= high:
            raise wrong_value(self.name(key), value, f"from {low:g} to {high:g}")
        return float(value)

    def rest(self) -> dict[str, Any]:
        """The fields that were not read."""
        return {key: value for key, value in self.data.items() if key not in self.known}

    @overload
    def _typed(self, key: str, kind: type[T], expected: str, required: Literal[True]) -> T: ...

    @overload
    def _typed(self, key: str, kind: type[T], expected: str, required: bool = False) -> T | None: ...

    def _typed(self, key: str, kind: type[T], expected: str, required: bool = False) -> T | None:
        value = self.get(key)
        if value is None and required:
            raise missing(self.name(key))
        if value is None or isinstance(value, kind):
            return value
        raise wrong_type(self.name(key), value, expected)


def objects(items: list[Any], path: str) -> list[Fields]:
    """Return the elements of an array, all of which must be objects."""
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise wrong_type(f"{path}[{i}]", item, "an object")
    return [Fields(item, f"{path}[{i}]") for i, item in enumerate(items)]
