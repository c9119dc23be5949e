"""Expression language of tool_call tasks: references, templates, sums, comparisons. No code is executed.

A reference is a path: `$city` is the argument `city` of the call, `weather.$city.high` a place in the task's state.
In a text, `{weather.$city}` is the value there; a text that consists of one is the value itself, with its own type.
A mapping with one key that begins with `$` is evaluated: see `_EVALUATED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.rollouts.environments.untrusted_text import as_text, short

#: Characters of a filled template.
MOST_TEXT = 65_536
MOST_FOUND = 100
_PART = r"\$?[\w-]+"
_REFERENCE = re.compile(rf"{_PART}(?:\.{_PART})*")
_IN_TEXT = re.compile(rf"\{{({_PART}(?:\.{_PART})*)\}}")


class Missing(Exception):
    """A reference leads nowhere; the text says what is missing, for the policy to read."""


class BadValue(Exception):
    """It can't be evaluated; the message says what and why."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that references refer to."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)


def parts(reference: str, scope: Scope) -> list[str]:
    """Resolve the arguments in a reference to a place in the state.

    Raises:
        BadValue: it is no reference.
        Missing: an argument is missing.
    """
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise BadValue(f"{short(reference)} is no reference, such as $city or weather.$city")
    return [str(_argument(part, scope)) if part.startswith("$") else part for part in reference.split(".")]


def look_up(reference: str, scope: Scope) -> Any:
    """Look up the value of a reference.

    Raises:
        BadValue: it is no reference.
        Missing: there is nothing.
    """
    keys = parts(reference, scope)
    value: Any = scope.state
    if reference.startswith("$"):
        value, keys = _argument(reference.split(".")[0], scope), keys[1:]
    for key in keys:
        value = child(value, key)
    return value


def child(value: Any, key: str) -> Any:
    """
    Raises:
        Missing: it has none of that name.
    """
    if isinstance(value, Mapping):
        return value[same_key(value, key)]
    if isinstance(value, list) and key.isdigit() and int(key[:9]) < len(value):
        return value[int(key[:9])]
    raise Missing(f"there is no {short(key)}")


def same_key(value: Mapping[str, Any], key: str) -> str:
    """The key itself, or one that differs only in case."""
    if key in value:
        return key
    for other in value:
        if other.casefold() == key.strip().casefold():
            return other
    raise Missing(f"there is no {short(key)}")


def fill(value: Any, scope: Scope) -> Any:
    """Fill and evaluate a value.

    Raises:
        BadValue, Missing: as above.
    """
    if isinstance(value, str):
        return _text(value, scope)
    if isinstance(value, list):
        return [fill(entry, scope) for entry in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1 and (name := next(iter(value))).startswith("$"):
        if name not in _EVALUATED:
            raise BadValue(f"`{name}` can't be worked out; there are {', '.join(_EVALUATED)}")
        return _EVALUATED[name](value[name], scope)
    return {key: fill(entry, scope) for key, entry in value.items()}


def draw_in(value: Any, drawn: Mapping[str, Any]) -> Any:
    """Replace drawn names by their values, in keys too; other references stay."""
    if isinstance(value, str):
        def put(match: re.Match[str]) -> str:
            return as_text(look_up(match[1], scope)) if match[1].split(".")[0] in drawn else match[0]

        scope = Scope(state=drawn)
        whole = _IN_TEXT.fullmatch(value)
        if whole and whole[1].split(".")[0] in drawn:
            return look_up(whole[1], scope)
        return _IN_TEXT.sub(put, value)
    if isinstance(value, list):
        return [draw_in(entry, drawn) for entry in value]
    if isinstance(value, Mapping):
        return {as_text(draw_in(key, drawn)): draw_in(entry, drawn) for key, entry in value.items()}
    return value


def _argument(part: str, scope: Scope) -> Any:
    if part[1:] not in scope.arguments:
        raise Missing(f"no {part[1:]} is given")
    return scope.arguments[part[1:]]


def _text(text: str, scope: Scope) -> Any:
    whole = _IN_TEXT.fullmatch(text)
    if whole:
        return look_up(whole[1], scope)
    filled = _IN_TEXT.sub(lambda match: as_text(look_up(match[1], scope)), text)
    if len(filled) > MOST_TEXT:
        raise BadValue(f"a text of more than {MOST_TEXT:,} characters")
    return filled


def _numbers(value: Any, scope: Scope) -> list[float]:
    values = fill(value, scope)
    if not isinstance(values, list) or not values or not all(_is_number(number) for number in values):
        raise BadValue(f"{short(values)} is not allowed: a list of numbers")
    return values


def _sum(value: Any, scope: Scope) -> Any:
    return _tidy(sum(_numbers(value, scope)))


def _difference(value: Any, scope: Scope) -> Any:
    first, *others = _numbers(value, scope)
    return _tidy(first - sum(others))


def _product(value: Any, scope: Scope) -> Any:
    result: float = 1
    for number in _numbers(value, scope):
        result = _tidy(result * number)
    return result


def _quotient(value: Any, scope: Scope) -> Any:
    first, *others = _numbers(value, scope)
    for number in others:
        if number == 0:
            raise Missing("division by zero")
        first /= number
    return _tidy(first)


def _count(value: Any, scope: Scope) -> Any:
    filled = fill(value, scope)
    if not isinstance(filled, list | dict | str):
        raise BadValue(f"`$count` of {short(filled)}: a list, a mapping or a text is needed")
    return len(filled)


def _find(value: Any, scope: Scope) -> Any:
    """`{$find: {in: products, where: {kind: "{$kind}"}}}`: the matching members of a list or mapping."""
    if not isinstance(value, Mapping) or not {"in"} <= value.keys() <= {"in", "where"}:
        raise BadValue("`$find` needs `in`, a reference, and may have `where`")
    there = look_up(value["in"], scope)
    entries = list(there.values()) if isinstance(there, Mapping) else there
    if not isinstance(entries, list):
        raise BadValue(f"`$find`: {value['in']} is no list and no mapping")
    where = fill(value.get("where", {}), scope)
    return [entry for entry in entries if not where or matches(where, entry) == ""][:MOST_FOUND]


_EVALUATED: dict[str, Callable[[Any, Scope], Any]] = {
    "$sum": _sum, "$difference": _difference, "$product": _product, "$quotient": _quotient, "$count": _count,
    "$find": _find}


def matches(wanted: Any, value: Any) -> str:
    """Compare a value, None if there is none, with the expected one.

    Texts are equal if they differ only in case and surrounding blanks. A mapping of `OPERATORS` compares; any other
    mapping requires each of its members and allows more.

    Returns:
        The difference; empty if there is none.
    """
    if isinstance(wanted, Mapping) and wanted and wanted.keys() <= OPERATORS.keys():
        return next((f"{short(value)} is not {name.replace('_', ' ')} {short(operand)}"
                     for name, operand in wanted.items() if not OPERATORS[name](operand, value)), "")
    if isinstance(wanted, Mapping):
        if not isinstance(value, Mapping):
            return f"{short(value)} is not {short(wanted)}"
        compared = ((key, matches(entry, value.get(key))) for key, entry in wanted.items())
        return next((f"{key}: {wrong}" for key, wrong in compared if wrong), "")
    if isinstance(wanted, list) and isinstance(value, list) and len(wanted) == len(value):
        return next((wrong for pair in zip(wanted, value, strict=True) if (wrong := matches(*pair))), "")
    return "" if same(wanted, value) else f"{short(value)} is not {short(wanted)}"


def same(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, str) and isinstance(value, str):
        return wanted.strip().casefold() == value.strip().casefold()
    if isinstance(wanted, list) and isinstance(value, list):
        return len(wanted) == len(value) and all(map(same, wanted, value))
    if isinstance(wanted, bool) or isinstance(value, bool):
        return wanted is value
    return bool(wanted == value)


def _contains(wanted: Any, value: Any) -> bool:
    if isinstance(value, list):
        return any(matches(wanted, entry) == "" for entry in value)
    # Whole words: 18 is not in 180.
    text = as_text(wanted).strip()
    begin, end = r"(?<!\w)" if text[:1].isalnum() else "", r"(?!\w)" if text[-1:].isalnum() else ""
    return re.search(begin + re.escape(text) + end, as_text(value), re.IGNORECASE) is not None


def _compare(holds: Callable[[float, float], bool]) -> Callable[[Any, Any], bool]:
    return lambda wanted, value: _is_number(wanted) and _is_number(value) and holds(value, wanted)


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "equal_to": same,
    "one_of": lambda wanted, value: any(same(entry, value) for entry in _listed(wanted)),
    "none_of": lambda wanted, value: not any(same(entry, value) for entry in _listed(wanted)),
    "containing": lambda wanted, value: value is not None and all(_contains(entry, value) for entry in _listed(wanted)),
    "containing_one_of": lambda wanted, value: value is not None
    and any(_contains(entry, value) for entry in _listed(wanted)),
    "without": lambda wanted, value: value is None or not any(_contains(entry, value) for entry in _listed(wanted)),
    "less_than": _compare(lambda value, wanted: value < wanted),
    "more_than": _compare(lambda value, wanted: value > wanted),
    "at_least": _compare(lambda value, wanted: value >= wanted),
    "at_most": _compare(lambda value, wanted: value <= wanted),
    "missing": lambda wanted, value: (value is None) is bool(wanted),
}


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tidy(number: float) -> float:
    """Round off binary fractions; an integer where the value is whole."""
    if abs(number) > 1e15:
        raise BadValue("a number of more than 15 digits")
    rounded = round(number, 9)
    return int(rounded) if rounded == int(rounded) else rounded
