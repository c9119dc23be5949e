"""Parser of task files: YAML as plain JSON values.

Parsed event by event, by the rules of YAML 1.2: `no`, `12:30` and `2026-01-01` stay text. Anchors and tags, which could
make a small file huge or be more than data, are rejected, as are duplicate keys.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

#: Depth of nesting.
MOST_DEEP = 40

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None, "true": True, "True": True, "TRUE": True,
          "false": False, "False": False, "FALSE": False}


class BadText(Exception):
    """It is no acceptable YAML; the message names the line."""


class Entry(dict[str, Any]):
    """A mapping, and the line that it begins in, from 1."""

    line = 0


class _Open:
    """An unfinished mapping or list."""

    def __init__(self, value: dict[str, Any] | list[Any]) -> None:
        self.value = value
        self.key: str | None = None


def parse(data: bytes) -> Any:
    """Parse the only document of a file as None, bool, int, float, str, list and dict; None for an empty file.

    Raises:
        BadText: it is no UTF-8, no YAML, or more than plain data.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadText(f"byte {error.start + 1} (0x{data[error.start]:02x}) is no UTF-8: a task file is text") from None
    try:
        return _parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise BadText(f"{where}no YAML: {what}") from None


def _parse(text: str) -> Any:
    documents: list[Any] = []
    stack: list[_Open] = []
    for event in yaml.parse(text, _Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise BadText(f"line {line}: anchors and aliases (& and *) are not allowed: write it out")
        if getattr(event, "tag", None) not in (None, "!"):
            raise BadText(f"line {line}: the tag {event.tag!r} is not allowed: plain values only")
        if isinstance(event, yaml.ScalarEvent):
            _put(stack, documents, _scalar(event, line, key=_wants_key(stack)), line)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if _wants_key(stack):
                raise BadText(f"line {line}: a key must be a plain word, not a list or a mapping")
            if len(stack) == MOST_DEEP:
                raise BadText(f"line {line}: more than {MOST_DEEP} lists and mappings in one another")
            opened: Entry | list[Any] = Entry() if isinstance(event, yaml.MappingStartEvent) else []
            if isinstance(opened, Entry):
                opened.line = line
            stack.append(_Open(opened))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            _put(stack, documents, stack.pop().value, line)
    if len(documents) > 1:
        raise BadText("there are several documents (---): put the tasks of a file into one list")
    return documents[0] if documents else None


def _wants_key(stack: list[_Open]) -> bool:
    return bool(stack) and isinstance(stack[-1].value, dict) and stack[-1].key is None


def _put(stack: list[_Open], documents: list[Any], value: Any, line: int) -> None:
    if not stack:
        documents.append(value)
        return
    top = stack[-1]
    if isinstance(top.value, list):
        top.value.append(value)
    elif top.key is None:
        if value in top.value:
            raise BadText(f"line {line}: the key {value} is there twice")
        top.key = value
    else:
        top.value[top.key] = value
        top.key = None


def _scalar(event: yaml.ScalarEvent, line: int, *, key: bool) -> Any:
    text = event.value
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadText(f"line {line}: half a surrogate pair, which is no character") from None
    if key or not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) and len(text) < 40 else text
