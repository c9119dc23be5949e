"""Functions declared by task files: JSON schema, and for each case the result and the changes.

    name: cancel_order
    description: Cancel an order.
    parameters: {type: object, properties: {id: {type: string}}, required: [id]}
    cases:                                       # the first whose `when` holds
      - when: {orders.$id: {missing: true}}
        error: There is no order {$id}.
      - change: [{set: orders.$id.status, to: cancelled}]
        return: Order {$id} is cancelled.

See openclaw_rl/rollouts/tasks/README.md and values.py.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

from openclaw_rl.rollouts.environments.interface import BadTask, Tool
from openclaw_rl.rollouts.environments.json_schema import Arguments, BadSchema
from openclaw_rl.rollouts.environments.tool_call.values import (
    BadValue,
    Missing,
    Scope,
    child,
    fill,
    look_up,
    matches,
    parts,
    same_key,
)
from openclaw_rl.rollouts.environments.untrusted_text import as_text, short

#: Functions of one task, cases of one function, changes of one case.
MOST_FUNCTIONS, MOST_CASES, MOST_CHANGES = 64, 64, 16
#: Characters of a task's state as JSON.
MOST_STATE = 262_144
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_KEYS = ("name", "description", "parameters", "cases", "return")
_CASE_KEYS = ("when", "change", "return", "error")
_CHANGES = {"set": {"set", "to"}, "append": {"append", "value"}, "remove": {"remove"}}
_UNSURE = "Done."


class FunctionError(Exception):
    """The function's error instead of a result; nothing changed."""


class Function:
    """A function of a task."""

    def __init__(self, declared: Any) -> None:
        """
        Raises:
            BadTask: names the key, the value and what is allowed.
        """
        if not isinstance(declared, Mapping):
            raise BadTask(f"`functions`: {short(declared)} is not allowed: mappings with the keys {', '.join(_KEYS)}")
        self.name: Any = declared.get("name")
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name == "submit":
            raise BadTask(f"a function's `name`: {short(self.name)} is not allowed: a letter, then letters, digits, "
                          "`_` and `-`, at most 64, and not `submit`, which is there anyway")
        _known(declared, _KEYS, f"function {self.name}")
        self.description: Any = declared.get("description")
        if not isinstance(self.description, str) or not 0 < len(self.description) <= 2000:
            raise BadTask(f"function {self.name}, `description`: {short(self.description)} is not allowed: a text of "
                          "at most 2000 characters")
        parameters = declared.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, Mapping):
            raise BadTask(f"function {self.name}, `parameters`: {short(parameters)} is not allowed: a JSON schema")
        try:
            self.arguments = Arguments({"additionalProperties": False, **parameters})
        except BadSchema as error:
            raise BadTask(f"function {self.name}, `parameters`: {error}") from None
        if ("cases" in declared) == ("return" in declared):
            raise BadTask(f"function {self.name}: `return` or `cases` is needed, and only one of them")
        self._cases = self._read_cases(declared)

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.arguments.schema)

    def call(self, arguments: Mapping[str, Any], state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Call the function with validated arguments.

        Args:
            state: of the task; not modified.

        Returns:
            The result, and the new state.

        Raises:
            FunctionError: its error instead of a result.
        """
        scope = Scope(arguments, state)
        try:
            for case in self._cases:
                if not _holds(case.get("when", {}), scope):
                    continue
                if "error" in case:
                    raise FunctionError(as_text(fill(case["error"], scope)))
                changed = _changed(case.get("change", ()), scope)
                # The result is computed after the change, when a removed item is gone.
                return fill(case.get("return", _UNSURE), Scope(arguments, changed)), changed
        except Missing as error:
            raise FunctionError(str(error)) from None
        except BadValue as error:
            raise FunctionError(f"the function {self.name} failed: {error}") from None
        raise FunctionError(f"{self.name} knows nothing about {as_text(dict(arguments))}")

    def _read_cases(self, declared: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        if "return" in declared:
            return [{"return": declared["return"]}]
        cases = declared["cases"]
        if not isinstance(cases, list) or not 0 < len(cases) <= MOST_CASES:
            raise BadTask(f"function {self.name}, `cases`: {short(cases)} is not allowed: 1 to {MOST_CASES} in a list")
        for number, case in enumerate(cases, 1):
            where = f"function {self.name}, case {number}"
            if not isinstance(case, Mapping):
                raise BadTask(f"{where}: {short(case)} is not allowed: a mapping with {', '.join(_CASE_KEYS)}")
            _known(case, _CASE_KEYS, where)
            if "error" in case and ("return" in case or "change" in case):
                raise BadTask(f"{where}: with `error` there is no `return` and no `change`")
            if not isinstance(case.get("when", {}), Mapping):
                raise BadTask(f"{where}, `when`: {short(case['when'])} is not allowed: references and their values")
            for reference in case.get("when", {}):
                _is_reference(reference, f"{where}, `when`")
            changes = case.get("change", [])
            if not isinstance(changes, list) or len(changes) > MOST_CHANGES:
                raise BadTask(f"{where}, `change`: {short(changes)} is not allowed: a list of at most {MOST_CHANGES}")
            for change in changes:
                operation = next((name for name in _CHANGES if isinstance(change, Mapping) and name in change), None)
                if operation is None or change.keys() != _CHANGES[operation]:
                    raise BadTask(f"{where}, `change`: {short(change)} is not allowed: {{set: REFERENCE, to: VALUE}}, "
                                  "{append: REFERENCE, value: VALUE} or {remove: REFERENCE}")
                _is_reference(change[operation], f"{where}, `{operation}`", state=True)
        return cases


def read_functions(declared: Any) -> dict[str, Function]:
    """Read a task's functions, by name.

    Raises:
        BadTask: names the function, the key, the value and what is allowed.
    """
    if not isinstance(declared, list) or not 0 < len(declared) <= MOST_FUNCTIONS:
        raise BadTask(f"`functions`: {short(declared)} is not allowed: a list of 1 to {MOST_FUNCTIONS} functions")
    functions: dict[str, Function] = {}
    for entry in declared:
        function = Function(entry)
        if function.name in functions:
            raise BadTask(f"`functions`: {function.name} is there twice")
        functions[function.name] = function
    return functions


def _known(entry: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in entry:
        if key not in keys:
            raise BadTask(f"{where}: `{key[:100]}` is no key of it; there are {', '.join(keys)}")


def _is_reference(value: Any, where: str, *, state: bool = False) -> None:
    try:
        parts(value, Scope())
    except BadValue as error:
        raise BadTask(f"{where}: {error}") from None
    except Missing:
        pass  # an argument, which exists only in a call
    if state and value.startswith("$"):
        raise BadTask(f"{where}: {value} is not allowed: a place in the state, such as orders{'.' + value}")


def _holds(when: Mapping[str, Any], scope: Scope) -> bool:
    for reference, wanted in when.items():
        try:
            value = look_up(reference, scope)
        except Missing:
            value = None
        if matches(fill(wanted, scope), value):
            return False
    return True


def _changed(changes: Any, scope: Scope) -> dict[str, Any]:
    state = copy.deepcopy(dict(scope.state)) if changes else dict(scope.state)
    for change in changes:
        now = Scope(scope.arguments, state)
        if "set" in change:
            holder, key = _place(change["set"], now)
            holder[key] = copy.deepcopy(fill(change["to"], now))
        elif "append" in change:
            there = look_up(change["append"], now)
            if not isinstance(there, list):
                raise BadValue(f"{change['append']} is no list")
            there.append(copy.deepcopy(fill(change["value"], now)))
        else:
            holder, key = _place(change["remove"], now)
            if key not in holder:
                raise Missing(f"there is no {short(key)}")
            del holder[key]
    if changes and len(json.dumps(state)) > MOST_STATE:
        raise BadValue("nothing more can be stored")
    return state


def _place(reference: str, scope: Scope) -> tuple[dict[str, Any], str]:
    *way, last = parts(reference, scope)
    holder: Any = scope.state
    for key in way:
        holder = child(holder, key)
    if not isinstance(holder, dict):
        raise BadValue(f"{'.'.join(way)} is no mapping")
    try:
        return holder, same_key(holder, last)
    except Missing:
        return holder, last
