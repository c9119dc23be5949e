"""JSON schemas of responses and of tool calls' arguments, checked before they are compiled."""

from __future__ import annotations

import json
from typing import Any

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.engines.interface import GrammarError

#: Characters of a schema, or of all functions' schemas together.
LONGEST_SCHEMA = 65536
#: White space between the tokens of JSON: enough to indent, and no endless blank lines, which small models fall into.
_WHITE_SPACE = r"[ \n\r\t]{1,40}"
#: Subschemas that are looked at for endless recursion.
_MOST_VISITS = 20_000


def check_schema(text: str, field: str) -> dict[str, Any]:
    """Parse a schema, and refuse one whose references to itself never end: `{"next": {"$ref": "#"}}`, required.

    Raises:
        GrammarError: it is not JSON, not an object, or endless; llguidance finds all else.
    """
    try:
        schema = parse_json(text)
    except ValueError as error:
        raise GrammarError(field, f"is not JSON: {error}") from None
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise GrammarError(field, "must be a JSON schema, an object")
    try:
        endless = _Endless(schema).find(schema, frozenset())
    except RecursionError:
        raise GrammarError(field, "is nested too deeply") from None
    if endless:
        raise GrammarError(field, f"no text fits: {endless} requires itself without end")
    return schema


def with_options(schema: dict[str, Any], lenient: bool, object_only: bool = False) -> str:
    """The schema as JSON, with llguidance's options.

    Args:
        lenient: pass over keywords that can't be enforced.
        object_only: without a type of its own, it is an object's.
    """
    if object_only and not {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"} & schema.keys():
        schema = {"type": "object", **schema}
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE, "lenient": lenient}})


class _Endless:
    """Looks for a reference that has to be followed again and again."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._finite: set[str] = set()  # references that were found to end
        self._visits = 0

    def find(self, schema: Any, open_: frozenset[str]) -> str:
        """The reference; empty when every text ends. `open_`: those that lead here, each followed by necessity."""
        self._visits += 1
        if not isinstance(schema, dict) or self._visits > _MOST_VISITS:
            return ""
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref not in self._finite:
            if ref in open_:
                return ref
            if found := self.find(self._target(ref), open_ | {ref}):
                return found
            self._finite.add(ref)
        for part in self._needed(schema):
            if found := self.find(part, open_):
                return found
        for key in ("anyOf", "oneOf"):
            parts = schema.get(key)
            if isinstance(parts, list) and parts:
                found = ""
                for part in parts:
                    if not (found := self.find(part, open_)):
                        break
                if found:
                    return found
        return ""

    @staticmethod
    def _needed(schema: dict[str, Any]) -> list[Any]:
        """Subschemas that a part of every text that fits has to fit."""
        parts: list[Any] = []
        if isinstance(every := schema.get("allOf"), list):
            parts += every
        properties, required = schema.get("properties"), schema.get("required")
        if schema.get("type", "object") == "object" and isinstance(properties, dict) and isinstance(required, list):
            parts += [properties.get(name) for name in required if isinstance(name, str)]
        least = schema.get("minItems")
        if schema.get("type", "array") == "array" and isinstance(least, int) and least > 0:
            first = schema.get("prefixItems")
            first = first[:least] if isinstance(first, list) else []
            parts += first
            if least > len(first):
                parts.append(schema.get("items"))
        return parts

    def _target(self, ref: str) -> Any:
        """What a reference within the schema stands for; None if there is nothing."""
        if not ref.startswith("#"):
            return None
        value: Any = self._root
        for key in ref[1:].split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            elif isinstance(value, dict):
                value = value.get(key)
            else:
                return None
        return value
