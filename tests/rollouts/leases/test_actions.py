"""Actions against a schema of somebody else: the answer comes soon, whatever the schema says."""

from __future__ import annotations

import time
from typing import Any

import pytest

from openclaw_rl.rollouts.environments.interface import Tool, tools_schema
from openclaw_rl.rollouts.leases import actions
from openclaw_rl.rollouts.tasks.task import Action
from openclaw_rl.rpc.errors import MeshError

SLOW = "^(a+)+$"
WORD = "a" * 40 + "!"
#: Each names the next one twice.
TREE: dict[str, Any] = {"t0": {"not": {}}}
TREE |= {f"t{i}": {"anyOf": [{"$ref": f"#/$defs/t{i - 1}"}] * 2} for i in range(1, 40)}


@pytest.mark.parametrize(("schema", "arguments"), [
    ({"properties": {"word": {"type": "string", "pattern": SLOW}}}, {"word": WORD}),
    ({"properties": {"words": {"items": {"pattern": SLOW}}}}, {"words": [f"{WORD}{i}" for i in range(200)]}),
    ({"propertyNames": {"pattern": SLOW}}, {WORD: 1}),
    ({"properties": {"word": {"$ref": "#/$defs/t39"}}, "$defs": TREE}, {"word": 1})])
def test_what_takes_for_ever_is_refused(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    whole = {"properties": {"name": {"const": "step"}, "arguments": schema}}
    if "$defs" in schema:
        whole["$defs"] = TREE
    for given in (tools_schema([Tool("step", "", {"type": "object", **schema})]), whole):
        began = time.monotonic()
        with pytest.raises(MeshError):
            actions.Checker().check(Action("step", arguments), given)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("schema", [
    {"patternProperties": {SLOW: {}}, "additionalProperties": False},
    {"allOf": [{"patternProperties": {SLOW: {}}}], "unevaluatedProperties": False}])
def test_properties_by_pattern_are_not_looked_at(schema: dict[str, Any]) -> None:
    began = time.monotonic()
    actions.Checker().check(Action("step", {WORD: 1}), tools_schema([Tool("step", "", {"type": "object", **schema})]))
    assert time.monotonic() - began < 5


def test_what_can_not_be_written_again_is_no_action() -> None:
    for value in (r'"\ud800"', "NaN", "1e999", "18446744073709551616", "[" * 300 + "]" * 300):
        with pytest.raises(MeshError, match="action_json"):
            actions.parse('{"name": "say", "arguments": {"text": ' + value + "}}")
