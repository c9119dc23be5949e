"""The form that a request wants its response's text to have: OpenAI's `response_format`, vLLM's and SGLang's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from openclaw_rl.rpc import errors
from openclaw_rl.serving.engines.interface import TextGrammar
from openclaw_rl.serving.entrypoints.openai.errors import missing, wrong_type, wrong_value
from openclaw_rl.serving.entrypoints.openai.fields import Fields

_TYPES = "text, json_object or json_schema"


def parse_format(fields: Fields) -> tuple[TextGrammar | None, dict[str, Any]]:
    """Parse the fields that describe the response's form.

    Returns:
        The grammar, None for free text; and the fields as they came, for an API model.

    Raises:
        ApiError: 400, a field has the wrong type, or two of them are given.
    """
    found: list[TextGrammar] = []
    given: dict[str, Any] = {}
    if (wanted := fields.object("response_format")) is not None:
        given["response_format"] = wanted
        if grammar := _response_format(Fields(wanted, "response_format")):
            found.append(grammar)
    found += _fields(fields, {**_GUIDED, **_SGLANG}, given)
    if (outputs := fields.object("structured_outputs")) is not None:
        given["structured_outputs"] = outputs
        inner = Fields(outputs, "structured_outputs")
        found += _fields(inner, _STRUCTURED, {})
        if inner.flag("json_object"):
            found.append(TextGrammar("json_schema", '{"type": "object"}', "structured_outputs.json_object"))
    if len(found) > 1:
        raise wrong_value(found[1].field, given.get(found[1].field, {}), f"left out: {found[0].field} is given too")
    return (found[0] if found else None), given


def _response_format(wanted: Fields) -> TextGrammar | None:
    kind = wanted.text("type") or "text"
    if kind == "text":
        return None
    if kind == "json_object":
        return TextGrammar("json_schema", '{"type": "object"}', "response_format")
    if kind != "json_schema":
        raise wrong_value("response_format.type", kind, _TYPES)
    inner = Fields(wanted.object("json_schema", required=True) or {}, "response_format.json_schema")
    schema = inner.object("schema", required=True)
    return TextGrammar("json_schema", _dumps(schema, inner.name("schema")), inner.name("schema"),
                       strict=inner.flag("strict") or False)


def _json(value: Any, field: str) -> TextGrammar:
    if not isinstance(value, str | dict):
        raise wrong_type(field, value, "a JSON schema: an object, or its text")
    return TextGrammar("json_schema", value if isinstance(value, str) else _dumps(value, field), field)


def _regex(value: Any, field: str) -> TextGrammar:
    text = _text(value, field)
    # The whole text has to match, so that the anchors of a search say nothing new.
    text = text.removeprefix("^")
    return TextGrammar("regex", text[:-1] if text.endswith("$") and not text.endswith("\\$") else text, field)


def _choice(value: Any, field: str) -> TextGrammar:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong_type(field, value, "an array of strings")
    if not value or "" in value:
        raise wrong_value(field, value, "at least one text, none of them empty")
    return TextGrammar("choice", _dumps(value, field), field)


def _grammar(value: Any, field: str) -> TextGrammar:
    return TextGrammar("grammar", _text(value, field), field)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(field, value, "a string")
    if not value.strip():
        raise missing(field, "It is empty.")
    return value


_Read = Callable[[Any, str], TextGrammar]
_STRUCTURED: Mapping[str, _Read] = {"json": _json, "regex": _regex, "choice": _choice, "grammar": _grammar}
_GUIDED: Mapping[str, _Read] = {f"guided_{name}": read for name, read in _STRUCTURED.items()}
_SGLANG: Mapping[str, _Read] = {"json_schema": _json, "regex": _regex, "ebnf": _grammar}
#: All fields that are read here.
FORMATS = ("response_format", "structured_outputs", *_GUIDED, *_SGLANG)


def _fields(fields: Fields, readers: Mapping[str, _Read], given: dict[str, Any]) -> list[TextGrammar]:
    found = []
    for name, read in readers.items():
        if (value := fields.get(name)) is not None:
            given[name] = value
            found.append(read(value, fields.name(name)))
    return found


def _dumps(value: Any, field: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # it reads deeper nesting than it writes
        raise errors.invalid_many([(field, "is nested too deeply; at most 250 levels")]) from None
