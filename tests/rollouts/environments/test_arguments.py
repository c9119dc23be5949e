from __future__ import annotations

from typing import Any

import pytest

from openclaw_rl.rollouts.environments.arguments import checked, function
from openclaw_rl.rollouts.environments.interface import BadAction
from openclaw_rl.rollouts.tasks.task import Action

TOOLS = (function("click", "Clicks.", ("x",), x={"type": "integer", "minimum": 0, "maximum": 9},
                  button={"type": "string", "enum": ["left", "right"], "default": "left"},
                  double={"type": "boolean", "default": False}),
         function("type", "Types.", ("text",), text={"type": "string", "minLength": 1, "maxLength": 5}))


def test_defaults_are_filled_in() -> None:
    assert checked(TOOLS, Action("click", {"x": 3, "button": None})) == {"x": 3, "button": "left", "double": False}


@pytest.mark.parametrize(("name", "arguments", "words"), [
    ("fly", {}, ["'fly'", "`click`, `type`"]),
    ("click", [], ["`arguments`", "[]", "an object"]),
    ("click", {}, ["`x` of `click` is missing", "a whole number from 0 to 9"]),
    ("click", {"x": 10}, ["`x`", "10", "from 0 to 9"]),
    ("click", {"x": True}, ["`x`", "True", "a whole number"]),
    ("click", {"x": float("nan")}, ["`x`", "nan", "a whole number"]),
    ("click", {"x": "1"}, ["`x`", "'1'"]),
    ("click", {"x": 1, "button": "top"}, ["`button`", "'top'", "'left' or 'right'"]),
    ("click", {"x": 1, "double": 1}, ["`double`", "true or false"]),
    ("click", {"x": 1, "y\0": 1}, ["no argument 'y\\x00'", "`x`, `button`, `double`"]),
    ("type", {"text": ""}, ["`text`", "1 to 5 characters"]),
    ("type", {"text": "x" * 10**6}, ["`text`", "xxx...", "1 to 5 characters"]),
])
def test_names_the_field_the_value_and_what_is_allowed(name: str, arguments: Any, words: list[str]) -> None:
    with pytest.raises(BadAction) as caught:
        checked(TOOLS, Action(name, arguments))
    assert all(word in str(caught.value) for word in words), caught.value
    assert len(str(caught.value)) < 400
