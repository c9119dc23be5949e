"""Validation of a call's arguments against the function's JSON schema.

Schemas come from task files and from MCP servers, so they must neither fetch an address nor take forever.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import orjson
import regex
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import SchemaError
from jsonschema.validators import extend
from referencing import Registry

from openclaw_rl.rollouts.environments.interface import BadAction
from openclaw_rl.rollouts.environments.untrusted_text import inert, short

#: Characters of one schema as JSON.
MOST_SCHEMA = 32_768
#: Of the arguments of one call as JSON.
MOST_ARGUMENTS = 262_144
#: Time limit in seconds for all patterns and references of one validation.
_SECONDS = 0.1
_deadline: ContextVar[float] = ContextVar("deadline")


class BadSchema(Exception):
    """It is no schema of a function's arguments; the message says why."""


class _TooLong(Exception):
    """The validation takes too long."""


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, str):
        return
    try:
        found = regex.search(pattern, instance, timeout=max(_deadline.get() - time.monotonic(), 1e-4))
    except TimeoutError:
        yield ValidationError(f"takes too long to match against {pattern!r}")
        return
    except regex.error:
        yield ValidationError(f"can't be matched: {pattern!r} is no regular expression")
        return
    if not found:
        yield ValidationError(f"does not match {pattern!r}")


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    # jsonschema matches the patterns itself to find additional properties.
    if not schema.get("patternProperties"):
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, allowed, instance, schema)


def _reference(keyword: str) -> Any:
    follow = Draft202012Validator.VALIDATORS[keyword]

    def timed(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if time.monotonic() > _deadline.get():  # a few that refer to one another are followed 2^n times
            raise _TooLong
        yield from follow(validator, reference, instance, schema) or ()

    return timed


def _unseen(*_: Any) -> Iterator[ValidationError]:
    return iter(())


#: Properties by pattern are not validated: jsonschema's own search is unbounded in time.
_Validator = extend(Draft202012Validator, {
    "pattern": _pattern, "patternProperties": _unseen, "additionalProperties": _additional,
    "unevaluatedProperties": _unseen, "$ref": _reference("$ref"), "$dynamicRef": _reference("$dynamicRef")})


def validator(schema: Mapping[str, Any]) -> Any:
    """Make a validator for `errors_of`. Unlike the default one, it fetches nothing that a `$ref` names."""
    return _Validator(schema, registry=Registry())


def errors_of(validator: Any, value: Any) -> list[ValidationError]:
    """List all errors of a value within a bounded time.

    Args:
        validator: made by `validator`.

    Raises:
        Exception: any; the schema is broken, or takes too long.
    """
    before = _deadline.set(time.monotonic() + _SECONDS)
    try:
        return list(validator.iter_errors(value))
    finally:
        _deadline.reset(before)


class Arguments:
    """The schema of a function's arguments."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """
        Raises:
            BadSchema: it is not the schema of an object.
        """
        if schema.get("type", "object") != "object":
            raise BadSchema(f"type: {short(schema['type'])} is not allowed: object, whose properties are the arguments")
        try:
            if len(json.dumps(schema)) > MOST_SCHEMA:
                raise BadSchema(f"larger than {MOST_SCHEMA:,} characters")
            orjson.dumps(schema)  # it is passed on: no numbers beyond 64 bits, no lone surrogates
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise BadSchema(inert(f"{_path(error.absolute_path)}: {error.message}", 300)) from None
        except (RecursionError, TypeError, ValueError) as error:
            raise BadSchema(f"no JSON schema: {type(error).__name__}") from None
        self.schema: dict[str, Any] = {"type": "object", **schema}
        self._validator = validator(self.schema)

    def check(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Validate arguments.

        Raises:
            BadAction: names the argument, its value and what is allowed.
        """
        if len(json.dumps(arguments, default=str)) > MOST_ARGUMENTS:
            raise BadAction(f"{function}: the arguments are longer than {MOST_ARGUMENTS:,} characters")
        try:
            error = min(errors_of(self._validator, arguments), key=lambda e: len(e.absolute_path), default=None)
        except Exception as broken:  # a schema that refers to nothing, or to itself
            raise BadAction(f"{function}: the arguments can't be checked: its schema is broken "
                            f"({type(broken).__name__})") from None
        if error is not None:
            raise BadAction(f"{function}: {self._words(error)}")

    def _words(self, error: ValidationError) -> str:
        where, value = _path(error.absolute_path), error.validator_value
        names = ", ".join(list(self.schema.get("properties", {}))[:20]) or "none"
        if error.validator == "required" and isinstance(error.instance, dict):
            missing = next((name for name in value if name not in error.instance), "?")
            return f"the argument `{_path([*error.absolute_path, missing])}` is missing; the arguments are {names}"
        if error.validator == "additionalProperties" and not error.absolute_path:
            extra = [name for name in error.instance if name not in self.schema.get("properties", {})]
            return f"`{short(extra[0])[1:-1] if extra else '?'}` is no argument; the arguments are {names}"
        allowed = {"type": lambda: f"of type {' or '.join([value] if isinstance(value, str) else value)}",
                   "enum": lambda: f"one of {short(value, 300)}", "const": lambda: short(value),
                   "minimum": lambda: f"at least {value}", "maximum": lambda: f"at most {value}"}.get(
                       str(error.validator), lambda: inert(error.message, 200))()
        return f"`{where}`: {short(error.instance)} is not allowed: {allowed}"


def _path(path: Any) -> str:
    return ".".join(str(part) for part in path) or "arguments"
