"""Draw and check of tool_call tasks."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openclaw_rl.rollouts.environments.interface import BadTask, Outcome
from openclaw_rl.rollouts.environments.tool_call.values import (
    BadValue,
    Missing,
    Scope,
    draw_in,
    fill,
    look_up,
    matches,
    parts,
)
from openclaw_rl.rollouts.environments.untrusted_text import short
from openclaw_rl.rollouts.tasks.task import Action, Task

_KEYS = ("calls", "in_order", "only", "never", "state", "answer")
_CALL_KEYS = ("name", "arguments", "failed")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a policy made."""

    name: str
    arguments: Mapping[str, Any]
    failed: bool = False


def drawn(task: Task, seed: int | None) -> Task:
    """Draw a task's values: one of each of `setup.draw`, in goal, setup, check and solution.

    Args:
        seed: None draws the first of each.

    Raises:
        BadTask: `draw` can't be used.
    """
    draw = task.setup.get("draw", {})
    if not isinstance(draw, Mapping):
        raise BadTask(f"`draw`: {short(draw)} is not allowed: names and lists to draw from")
    # Seeded by the task's id too, so that two tasks of a run don't always draw alike.
    source = random.Random(f"{task.id} {seed}")
    values = {name: _draw(name, choices, None if seed is None else source) for name, choices in draw.items()}
    try:
        return replace(
            task, goal=str(draw_in(task.goal, values)), check=draw_in(task.check, values),
            setup={key: draw_in(value, values) for key, value in task.setup.items() if key != "draw"},
            solution=tuple(Action(action.name, fill(draw_in(action.arguments, values), Scope()))
                           for action in task.solution))
    except (Missing, BadValue) as error:
        raise BadTask(f"what is drawn can't be put in its place: {error}") from None


def _draw(name: str, choices: Any, source: random.Random | None) -> Any:
    if not re.fullmatch(r"[A-Za-z_]\w{0,63}", name):
        raise BadTask(f"`draw`: {short(name)} is not allowed as a name: a letter, then letters, digits and `_`")
    if isinstance(choices, Mapping) and choices.keys() == {"from", "to"}:
        low, high = choices["from"], choices["to"]
        if type(low) is int and type(high) is int and low <= high:
            return source.randint(low, high) if source else low
    elif isinstance(choices, list) and 0 < len(choices) <= 1000:
        return source.choice(choices) if source else choices[0]
    raise BadTask(f"`draw`, {name}: {short(choices)} is not allowed: a list of 1 to 1000, or {{from: 1, to: 9}}")


class Check:
    """A task's `check`."""

    def __init__(self, check: Mapping[str, Any], functions: Sequence[str] | None) -> None:
        """
        Args:
            check: of a drawn task.
            functions: names of the callable functions; None if not yet known.

        Raises:
            BadTask: names the key, the value and what is allowed.
        """
        for key in check:
            if key not in _KEYS:
                raise BadTask(f"`check`: `{key[:100]}` is no key of it; there are {', '.join(_KEYS)}")
        if not any(check.get(key) not in (None, [], {}) for key in ("calls", "state", "answer")):
            raise BadTask("`check`: at least one of `calls`, `state` and `answer` is needed")
        try:
            self._check: dict[str, Any] = {key: fill(value, Scope()) for key, value in check.items()}
        except (BadValue, Missing) as error:
            raise BadTask(f"`check`: {error}") from None
        for key in ("in_order", "only"):
            if not isinstance(check.get(key, False), bool):
                raise BadTask(f"`check`, `{key}`: {short(check[key])} is not allowed: true or false")
        never = check.get("never", [])
        if not isinstance(never, list) or not all(isinstance(name, str) for name in never):
            raise BadTask(f"`check`, `never`: {short(never)} is not allowed: a list of functions")
        for name in [*never, *self._read_calls()]:
            if functions is not None and name not in functions:
                raise BadTask(f"`check`: there is no function {short(name)}; there are {', '.join(functions)}")
        self._read_state()

    def evaluate(self, calls: Sequence[Call], state: Mapping[str, Any], answer: str | None) -> Outcome:
        """1 if everything holds, else 0 and the first failure."""
        wrong = self._check_calls(calls) or self._check_state(state) or self._check_answer(answer)
        return Outcome(0.0, wrong) if wrong else Outcome(1.0, "everything that the check asks for is so")

    def _read_calls(self) -> list[str]:
        calls = self._check.get("calls", [])
        if not isinstance(calls, list):
            raise BadTask(f"`check`, `calls`: {short(calls)} is not allowed: a list")
        for call in calls:
            if not isinstance(call, Mapping) or not call.keys() <= {*_CALL_KEYS} \
                    or not isinstance(call.get("name"), str) or not isinstance(call.get("arguments", {}), Mapping) \
                    or not isinstance(call.get("failed", False), bool):
                raise BadTask(f"`check`, `calls`: {short(call)} is not allowed: {{name: FUNCTION, arguments: {{...}}, "
                              "failed: true or false}")
        return [call["name"] for call in calls]

    def _read_state(self) -> None:
        state = self._check.get("state", {})
        if not isinstance(state, Mapping):
            raise BadTask(f"`check`, `state`: {short(state)} is not allowed: references and what they must be")
        for reference in state:
            try:
                parts(reference, Scope())
            except (BadValue, Missing):
                raise BadTask(f"`check`, `state`: {short(reference)} is not allowed: a place such as orders.A1.status"
                              ) from None

    def _check_calls(self, calls: Sequence[Call]) -> str:
        for call in calls:
            if call.name in self._check.get("never", []):
                return f"{call.name} was called, which must not be"
        left = list(calls)
        for wanted in self._check.get("calls", []):
            found = next((i for i, call in enumerate(left) if _is(wanted, call)), None)
            if found is None:
                later = " after the one before" if self._check.get("in_order") else ""
                return f"{wanted['name']} was not called{later} with {short(wanted.get('arguments', {}))}" \
                       f"{' so that it failed' if wanted.get('failed') else ''}"
            left = left[found + 1:] if self._check.get("in_order") else left[:found] + left[found + 1:]
        if self._check.get("only") and len([c for c in calls if not c.failed]) > len(self._check.get("calls", [])):
            return f"{len(calls)} calls were made, {len(self._check.get('calls', []))} are what it takes"
        return ""

    def _check_state(self, state: Mapping[str, Any]) -> str:
        for reference, wanted in self._check.get("state", {}).items():
            try:
                value = look_up(reference, Scope(state=state))
            except Missing:
                value = None
            wrong = matches(wanted, value)
            if wrong:
                return f"{reference}: {wrong}"
        return ""

    def _check_answer(self, answer: str | None) -> str:
        wanted = self._check.get("answer")
        if wanted is None:
            return ""
        if answer is None:
            return "no answer was submitted"
        submitted: Any = answer.strip().rstrip(".!")
        if not isinstance(wanted, Mapping | str):
            wanted = str(wanted)
        number = re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?", submitted)
        # An answer is a text; `less_than` and the like compare it as a number.
        if isinstance(wanted, Mapping) and number and any(type(entry) in (int, float) for entry in wanted.values()) \
                and matches(wanted, float(submitted)) == "":
            return ""
        wrong = matches(wanted, submitted)
        return f"the answer: {wrong}" if wrong else ""


def _is(wanted: Mapping[str, Any], call: Call) -> bool:
    return wanted["name"] == call.name and wanted.get("failed", False) == call.failed \
        and matches(wanted.get("arguments", {}), call.arguments) == ""
