"""Parsing and validation of actions before they reach an environment."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.rpc.errors import MeshError, invalid, invalid_many

#: Bytes of an action as JSON.
MOST_BYTES = 2**20
_FIELD = "action_json"
_SHAPE = '{"name": ..., "arguments": {...}}'
#: Digits of a possible integer beyond 64 bits: orjson would silently lose precision.
_LONG_NUMBER = re.compile(r"[0-9]{19}")


class BadJson(ValueError):
    """A text is no JSON, or none that can be passed on; the message says why."""


def read(text: str) -> Any:
    """Parse JSON of an action, wherever it comes from: only what can be written as JSON again.

    Raises:
        BadJson: it is none, or has half of a surrogate pair, NaN, an infinite number, an integer beyond 64 bits, or
            nesting too deep to be written.
    """
    try:
        value = orjson.loads(text)
        if _LONG_NUMBER.search(text):
            json.loads(text, parse_int=_small)
        orjson.dumps(value)
    except BadJson:
        raise
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        raise BadJson(str(error)) from None
    except (orjson.JSONEncodeError, RecursionError):
        raise BadJson("too many lists or objects in one another") from None
    return value


def _small(digits: str) -> int:
    if len(digits) > 20 or not -2**63 <= int(digits) < 2**64:
        raise BadJson(f"the integer {digits[:20]}{'...' * (len(digits) > 20)} is beyond 64 bits")
    return int(digits)


def parse(text: str) -> Action:
    """Parse an action.

    Raises:
        MeshError: INVALID_ARGUMENT.
    """
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise invalid(_FIELD, f"{text[:40]}...", f"at most {MOST_BYTES:,} bytes")
    try:
        value = read(text)
    except BadJson as error:
        raise invalid(_FIELD, text, f"JSON such as {_SHAPE} ({error})") from None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) \
            or not isinstance(value.get("arguments", {}), dict) or not value.keys() <= {"name", "arguments"}:
        raise invalid(_FIELD, text, f"an object such as {_SHAPE}")
    return Action(value["name"], value.get("arguments", {}))


def to_json(action: Action) -> str:
    """Encode an action."""
    return orjson.dumps({"name": action.name, "arguments": action.arguments}).decode()


class Checker:
    """Checks actions against a JSON schema. In a choice of functions (`oneOf` with a `name` each) the name selects the
    schema, so that the error says what is wrong with the call and not only that none matches."""

    def __init__(self) -> None:
        self._schema: dict[str, Any] | None = None
        self._by_name: dict[str, Any] = {}
        self._any: Any = None

    def check(self, action: Action, schema: dict[str, Any]) -> None:
        """
        Args:
            schema: of the environment type; a changed one must be another object.

        Raises:
            MeshError: INVALID_ARGUMENT; names the member, its value and what is allowed.
        """
        if schema is not self._schema:
            self._read(schema)
        if self._by_name:
            if action.name not in self._by_name:
                raise _bad("name", f"{action.name[:80]!r} is not allowed: must be one of "
                                   f"{', '.join(sorted(self._by_name))}")
            validator = self._by_name[action.name]
        else:
            validator = self._any
        from openclaw_rl.rollouts.environments.json_schema import errors_of

        try:
            errors = sorted(errors_of(validator, {"name": action.name, "arguments": action.arguments}),
                            key=lambda error: list(map(str, error.absolute_path)))
        except Exception as error:  # a schema of somebody else's server
            raise _bad("", f"can't be checked, since the environment's schema is none: {error}") from None
        if errors:
            first = errors[0]
            raise _bad(".".join(map(str, first.absolute_path)), first.message if len(first.message) <= 500 else
                       first.message[:200] + " ... " + first.message[-290:])

    def _read(self, schema: dict[str, Any]) -> None:
        from openclaw_rl.rollouts.environments.json_schema import validator

        choices = schema.get("oneOf")
        names = [_name(choice) for choice in choices] if isinstance(choices, list) else []
        if names and None not in names and "$defs" not in schema:
            self._by_name = {str(name): validator(choice) for name, choice in zip(names, choices or (), strict=True)}
            self._any = None
        else:
            self._by_name, self._any = {}, validator(schema)
        self._schema = schema


def _name(choice: Any) -> str | None:
    """The name of the function that a choice describes."""
    try:
        name = choice["properties"]["name"]["const"]
    except (TypeError, KeyError):
        return None
    return name if isinstance(name, str) else None


def _bad(member: str, text: str) -> MeshError:
    return invalid_many([(_FIELD, f"{member}: {text}" if member else text)])
