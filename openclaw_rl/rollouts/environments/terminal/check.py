"""Conditions of a terminal task's check: all of `answer`, `number` and `run` must hold, of `parts` each counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.rollouts.environments.interface import BadTask, Outcome
from openclaw_rl.rollouts.tasks.answers import same_number

#: Parts of a check.
MOST_PARTS = 50
_CONDITIONS = ("run", "answer", "number")


def validate(check: Mapping[str, Any]) -> None:
    """
    Raises:
        BadTask: names the key, the value and what is allowed.
    """
    if not isinstance(check.get("processes", False), bool):
        raise BadTask(f"`check.processes`: {check['processes']!r:.80} is not allowed: true or false")
    parts = check.get("parts")
    if parts is None:
        _condition("check", check)
        return
    if extra := [key for key in _CONDITIONS if check.get(key) is not None]:
        raise BadTask(f"`check.{extra[0]}` is not allowed beside `check.parts`: make it one of the parts")
    if not isinstance(parts, list) or not 1 <= len(parts) <= MOST_PARTS:
        raise BadTask(f"`check.parts`: {parts!r:.80} is not allowed: a list of 1 to {MOST_PARTS} parts such as "
                      "{run: test -d done, weight: 2}")
    for number, part in enumerate(parts, 1):
        where = f"check.parts, part {number}"
        if not isinstance(part, Mapping) or not part.keys() <= {*_CONDITIONS, "weight"}:
            raise BadTask(f"`{where}`: {part!r:.80} is not allowed: an object with {', '.join(_CONDITIONS)} or weight")
        _condition(where, part)
        weight = part.get("weight", 1)
        if not _is_number(weight) or not 0 < weight <= 1000:
            raise BadTask(f"`{where}`, `weight`: {weight!r:.80} is not allowed: a number above 0, at most 1000")


def parts_of(check: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return what is checked, and weighed, on its own."""
    return check.get("parts") or [check]


def wrong_answer(part: Mapping[str, Any], answer: str | None) -> str:
    """Return what is wrong with a submitted answer; empty if it is right, or none is asked for."""
    expected, number = part.get("answer"), part.get("number")
    if expected is None and number is None:
        return ""
    if answer is None:
        return "no answer was submitted"
    if (expected is not None and answer.strip() != expected.strip()) or (
            number is not None and not same_number(number, answer)):
        return f"the answer is not the expected one: {answer.strip()[:200]!r}"
    return ""


def combine(parts: Sequence[Mapping[str, Any]], found: Sequence[tuple[bool, str]]) -> Outcome:
    """Combine the parts' results to the share, by weight, of those that hold.

    Args:
        found: of each part, whether it holds, and details.
    """
    if len(parts) == 1:
        [(holds, detail)] = found
        return Outcome(float(holds), detail)
    weights = [float(part.get("weight", 1)) for part in parts]
    held = sum(weight for weight, (holds, _) in zip(weights, found, strict=True) if holds)
    failed = [f"part {number}: {detail}" for number, (holds, detail) in enumerate(found, 1) if not holds]
    return Outcome(held / sum(weights), "; ".join([f"{len(parts) - len(failed)} of {len(parts)} parts", *failed[:3]]))


def _condition(where: str, section: Mapping[str, Any]) -> None:
    for key in ("run", "answer"):
        value = section.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip() or "\0" in value):
            raise BadTask(f"`{where}.{key}`: {value!r:.80} is not allowed: a text that is not empty")
    number = section.get("number")
    if number is not None and not _is_number(number):
        raise BadTask(f"`{where}.number`: {number!r:.80} is not allowed: a number")
    if not section.get("run") and not section.get("answer") and number is None:
        raise BadTask(f"`{where}` needs `run` (shell text, exit code 0 = done), `answer` (what submit must say), "
                      "`number` (the last number that it says), or several of them")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
