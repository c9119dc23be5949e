"""Validation of actions against flat functions: name, arguments and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.rollouts.environments.interface import BadAction, Tool
from openclaw_rl.rollouts.tasks.task import Action

_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
_NAMES = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


def checked(tools: Sequence[Tool], action: Action) -> dict[str, Any]:
    """Validate an action; returns its arguments with the defaults of those left out.

    Supports the part of JSON schema that flat functions need: `type` (string, integer, number, boolean), `enum`,
    `minimum`, `maximum`, `minLength`, `maxLength`, `default` and `required`. None counts as left out.

    Raises:
        BadAction: names the function or the argument, its value and what is allowed.
    """
    tool = next((tool for tool in tools if tool.name == action.name), None)
    if tool is None:
        raise BadAction(f"`name`: {short(action.name)} is no action here; there are "
                        f"{', '.join(f'`{tool.name}`' for tool in tools)}")
    if not isinstance(action.arguments, Mapping):
        raise BadAction(f"`arguments` of `{tool.name}`: {short(action.arguments)} is not allowed: an object")
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    for key in action.arguments:
        if key not in properties:
            allowed = ", ".join(f"`{name}`" for name in properties) or "none"
            raise BadAction(f"`{tool.name}` has no argument {short(key)}; allowed: {allowed}")
    found: dict[str, Any] = {}
    for key, schema in properties.items():
        value = action.arguments.get(key)
        if value is None:
            if key in tool.parameters.get("required", ()):
                raise BadAction(f"`{key}` of `{tool.name}` is missing: {_allowed(schema)}")
            value = schema.get("default")
        elif not _good(value, schema):
            raise BadAction(f"`{key}` of `{tool.name}`: {short(value)} is not allowed: {_allowed(schema)}")
        found[key] = value
    return found


def function(name: str, description: str, required: Sequence[str] = (), **properties: dict[str, Any]) -> Tool:
    """Define a function with exactly these arguments."""
    return Tool(name, description, {"type": "object", "properties": properties, "required": list(required),
                                    "additionalProperties": False})


def short(value: object, most: int = 100) -> str:
    """A value for an error message, cut."""
    text = repr(value[:most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else text[:most - 3] + "..."


def _good(value: object, schema: Mapping[str, Any]) -> bool:
    expected = schema.get("type", "string")
    if not isinstance(value, _TYPES[expected]) or (isinstance(value, bool) and expected != "boolean"):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    if isinstance(value, int | float):  # NaN, which equals nothing, fails here
        return bool(schema.get("minimum", float("-inf")) <= value <= schema.get("maximum", float("inf")))
    return True


def _allowed(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(repr(value) for value in schema["enum"])
    text = _NAMES[schema.get("type", "string")]
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None or most is not None:
        return text + (f" from {least}" if least is not None else "") + (f" to {most}" if most is not None else "")
    if "maxLength" in schema:
        return f"{text} of {schema.get('minLength', 0)} to {schema['maxLength']:,} characters"
    return text
