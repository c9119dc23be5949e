"""Functions that tasks declare: what they give, what they refuse, and that nothing in a task or a call does harm."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask
from openclaw_rl.rollouts.environments.json_schema import Arguments, BadSchema
from openclaw_rl.rollouts.environments.tool_call.check import Call, Check, drawn
from openclaw_rl.rollouts.environments.tool_call.environment import ToolCallEnvironment
from openclaw_rl.rollouts.environments.tool_call.functions import Function, FunctionError
from openclaw_rl.rollouts.environments.tool_call.plugin import DeclaredFunctionsType
from openclaw_rl.rollouts.environments.tool_call.values import BadValue, Missing, Scope, fill, matches
from openclaw_rl.rollouts.environments.untrusted_text import MOST, inert
from openclaw_rl.rollouts.tasks.task import Action, Task

ITEM = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}


def function(**declared: Any) -> dict[str, Any]:
    return {"name": "f", "description": "It does something.", "parameters": ITEM, **declared}


def task(*functions: dict[str, Any], **more: Any) -> Task:
    return Task("t", "tool_call", more.pop("goal", "Do it."), check=more.pop("check", {"answer": "x"}),
                solution=more.pop("solution", ()), setup={"functions": list(functions), **more})


async def begun(of: Task, seed: int | None = None) -> ToolCallEnvironment:
    environment = await DeclaredFunctionsType().make()
    await environment.reset(of, seed)
    return environment


async def said(environment: ToolCallEnvironment, name: str, **arguments: Any) -> str:
    return (await environment.step(Action(name, arguments), 5)).observation.text


# ---- values

@pytest.mark.parametrize(("value", "result"), [
    ("{stock.$item}", 3), ("There are {stock.$item} of {$item}.", "There are 3 of pens."), ("{list.1.name}", "b"),
    ("{stock.PENS}", 3), ({"a": ["{$item}"]}, {"a": ["pens"]}), ("{not a reference} {}", "{not a reference} {}"),
    ({"$sum": ["{stock.pens}", 0.1, 0.2]}, 3.3), ({"$difference": [5, 2, 1]}, 2),
    ({"$product": ["{stock.pens}", 4]}, 12), ({"$quotient": [9, 2]}, 4.5), ({"$count": "{list}"}, 2),
    ({"$find": {"in": "list", "where": {"kind": "{$item}"}}}, [{"name": "b", "kind": "pens"}]),
    ({"$find": {"in": "list", "where": {"price": {"more_than": 1}}}}, []),
    ({"$find": {"in": "stock"}}, [3]), ("{stock}", {"pens": 3}), (7, 7), (None, None), ("{text}", "{stock.pens}"),
])
def test_values(value: Any, result: Any) -> None:
    state = {"stock": {"pens": 3}, "text": "{stock.pens}",
             "list": [{"name": "a", "kind": "ink"}, {"name": "b", "kind": "pens"}]}
    assert fill(value, Scope({"item": "pens"}, state)) == result


@pytest.mark.parametrize(("value", "error", "says"), [
    ("{stock.ink}", Missing, 'there is no "ink"'), ("{$other}", Missing, "no other is given"),
    ({"$eval": "1"}, BadValue, "`\\$eval` can't be worked out; there are \\$sum"),
    ({"$sum": ["a"]}, BadValue, "a list of numbers"), ({"$sum": [True, 1]}, BadValue, "a list of numbers"),
    ({"$quotient": [1, 0]}, Missing, "division by zero"), ({"$product": [1e15, 10]}, BadValue, "15 digits"),
    ({"$count": 5}, BadValue, "a list, a mapping or a text"), ({"$find": {"of": "x"}}, BadValue, "needs `in`"),
    ({"$find": {"in": "long"}}, BadValue, "no list and no mapping"), ("{stock.__class__}", Missing, "__class__"),
    ("{long}{long}", BadValue, "more than 65,536 characters"), ("{stock.pens.real}", Missing, "real"),
])
def test_values_that_are_none(value: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fill(value, Scope({"item": "pens"}, {"stock": {"pens": 3}, "long": "x" * 40_000}))


def test_numbers_that_grow_stay_small() -> None:
    with pytest.raises(BadValue):
        fill({"$product": [10 ** 9] * 1000}, Scope())


@pytest.mark.parametrize(("wanted", "value", "good"), [
    ("Paris", " paris ", True), ("Paris", "Rome", False), (3, 3.0, True), (3, "3", False), (True, 1, False),
    (None, None, True), ({"a": 1}, {"a": 1, "b": 2}, True), ({"a": 1}, {}, False),
    ([1, {"a": "X"}], [1, {"a": "x"}], True), ([1], [1, 2], False), ({"one_of": [1, 2]}, 2, True),
    ({"none_of": "a"}, "b", True), ({"none_of": "a"}, "A", False),
    ({"containing": 18}, "It is 18 °C", True), ({"containing": 18}, "It is 180", False),
    ({"containing": ["a", "b"]}, "a b", True), ({"containing": ["a", "b"]}, "a", False),
    ({"containing": "x"}, ["x", "y"], True), ({"containing": "x"}, None, False), ({"without": "x"}, "a x", False),
    ({"without": "x"}, None, True), ({"containing_one_of": ["p", "q"]}, "q!", True), ({"less_than": 3}, 2, True),
    ({"less_than": 3}, "2", False), ({"at_least": 3, "at_most": 4}, 3.5, True), ({"more_than": 3}, 3, False),
    ({"missing": True}, None, True), ({"missing": True}, 0, False), ({"missing": False}, 0, True),
    ({"equal_to": {"one_of": 1}}, {"one_of": 1}, True), ({"containing": ".*"}, "anything", False),
])
def test_matches(wanted: Any, value: Any, good: bool) -> None:
    assert (matches(wanted, value) == "") is good


# ---- functions

async def test_cases_changes_and_errors() -> None:
    environment = await begun(task(
        function(name="take", cases=[
            {"when": {"stock.$item": {"missing": True}}, "error": "There is no {$item}."},
            {"when": {"stock.$item": {"less_than": 1}}, "error": "No {$item} left."},
            {"change": [{"set": "stock.$item", "to": {"$difference": ["{stock.$item}", 1]}},
                        {"append": "taken", "value": {"what": "{$item}"}}],
             "return": "{stock.$item} left"}]),
        function(name="drop", cases=[{"change": [{"remove": "stock.$item"}], "return": "{stock}"}]),
        function(name="look", **{"return": "{stock.$item}"}),
        state={"stock": {"pens": 2}, "taken": []}, check={"state": {"stock.pens": 0, "taken": [{"what": "pens"}] * 2}}))
    assert await said(environment, "take", item="pens") == "1 left"
    assert (await environment.evaluate()).detail == "stock.pens: 1 is not 0"
    assert await said(environment, "take", item="Pens") == "0 left", "letters may be large or small"
    failed = await environment.step(Action("take", {"item": "pens"}), 5)
    assert failed.error == failed.observation.text == "Error: No pens left." and not failed.done
    assert await said(environment, "take", item="ink") == "Error: There is no ink."
    assert await said(environment, "look", item="ink") == 'Error: there is no "ink"'
    assert (await environment.evaluate()).value == 1
    assert await said(environment, "drop", item="pens") == "{}"
    assert await said(environment, "drop", item="pens") == 'Error: there is no "pens"'


async def test_each_reset_begins_anew_and_leases_share_nothing() -> None:
    of = task(function(cases=[{"change": [{"append": "all", "value": "{$item}"}], "return": "{all}"}]),
              state={"all": []})
    first, second = await begun(of), await begun(of)
    assert await said(first, "f", item="a") == '["a"]'
    assert await said(second, "f", item="b") == '["b"]'
    await first.reset(of, None)
    assert await said(first, "f", item="c") == '["c"]'
    await first.reset(None, None)
    with pytest.raises(BadAction, match="no function; there are submit"):
        await said(first, "f", item="d")
    assert (await first.evaluate()).value == 0


async def test_a_case_that_fails_half_way_changes_nothing() -> None:
    f = Function(function(cases=[{"change": [{"set": "a", "to": 1}, {"append": "nowhere", "value": 1}]}]))
    state = {"a": 0}
    with pytest.raises(FunctionError, match="nowhere"):
        f.call({"item": "x"}, state)
    assert state == {"a": 0}


async def test_state_does_not_grow_without_end() -> None:
    environment = await begun(task(function(cases=[{"change": [{"append": "all", "value": "{$item}"}]}]),
                                   state={"all": []}))
    answers = [await said(environment, "f", item="x" * 60_000) for _ in range(8)]
    assert answers[0] == "Done." and answers[-1].endswith("nothing more can be stored")


@pytest.mark.parametrize(("declared", "says"), [
    (5, "mappings with the keys name"), (function(name="a b", **{"return": 1}), "a function's `name`: \"a b\""),
    (function(name="submit", **{"return": 1}), "`submit`, which is there anyway"),
    (function(description="", **{"return": 1}), '`description`: "" is not allowed'),
    (function(returns=1), "`returns` is no key of it; there are name, description, parameters, cases, return"),
    (function(), "`return` or `cases` is needed"), (function(cases=[], **{"return": 1}), "only one of them"),
    (function(cases=[]), "`cases`: \\[\\] is not allowed"), (function(cases=[1]), "case 1: 1 is not allowed"),
    (function(cases=[{"then": 1}]), "`then` is no key"),
    (function(cases=[{"error": "x", "return": 1}]), "with `error`"),
    (function(cases=[{"when": []}]), "`when`: \\[\\] is not allowed"),
    (function(cases=[{"when": {"a b": 1}}]), '`when`: "a b" is no reference'),
    (function(cases=[{"change": {"set": "a"}}]), "`change`: "),
    (function(cases=[{"change": [{"set": "a"}]}]), "{set: REFERENCE, to: VALUE}"),
    (function(cases=[{"change": [{"set": "$item", "to": 1}]}]), "\\$item is not allowed: a place in the state"),
    (function(parameters=[], **{"return": 1}) | {"parameters": "x"}, '`parameters`: "x" is not allowed'),
    (function(parameters={"type": "array"}, **{"return": 1}), '`parameters`: type: "array"'),
    (function(parameters={"properties": {"a": {"type": "text"}}}, **{"return": 1}), "`parameters`: properties.a.type"),
])
def test_functions_that_are_none(declared: Any, says: str) -> None:
    with pytest.raises(BadTask, match=says):
        DeclaredFunctionsType().check_task(task(declared))


@pytest.mark.parametrize(("of", "says"), [
    (Task("t", "tool_call", "x", check={"answer": "x"}), "`functions` is missing"),
    (task(function(**{"return": 1}), tools=[]), "`tools` is no key of it; there are functions, state and draw"),
    (task(function(**{"return": 1}), function(**{"return": 1})), "f is there twice"),
    (task(function(**{"return": 1}), state=[]), "`state`: \\[\\] is not allowed"),
    (task(function(**{"return": 1}), state={"a": "x" * 300_000}), "at most 262,144 characters"),
    (task(function(**{"return": 1}), draw=[]), "`draw`: \\[\\] is not allowed"),
    (task(function(**{"return": 1}), draw={"a": []}), "`draw`, a: \\[\\] is not allowed"),
    (task(function(**{"return": 1}), draw={"a": {"from": 2, "to": 1}}), "{from: 1, to: 9}"),
    (task(function(**{"return": 1}), draw={"a b": [1]}), '"a b" is not allowed as a name'),
    (task(function(**{"return": 1}), draw={"a": [{"b": 1}]}, goal="{a.c}"), 'there is no "c"'),
    (task(function(**{"return": 1}), check={}), "at least one of `calls`, `state` and `answer`"),
    (task(function(**{"return": 1}), check={"run": "exit 0"}), "`run` is no key of it"),
    (task(function(**{"return": 1}), check={"calls": {}, "answer": "x"}), "`calls`: {} is not allowed: a list"),
    (task(function(**{"return": 1}), check={"calls": [{"name": "g"}]}), 'there is no function "g"; there are f'),
    (task(function(**{"return": 1}), check={"calls": [{"call": "f"}]}), "`calls`: "),
    (task(function(**{"return": 1}), check={"answer": "x", "never": "f"}), "`never`"),
    (task(function(**{"return": 1}), check={"answer": "x", "only": "yes"}), "`only`: \"yes\" is not allowed: true or"),
    (task(function(**{"return": 1}), check={"state": ["a"]}), "`state`: "),
    (task(function(**{"return": 1}), check={"state": {"a..b": 1}}), '`state`: "a..b" is not allowed'),
    (task(function(**{"return": 1}), check={"answer": "{nothing.there}"}), "there is no"),
    (task(function(**{"return": 1}), solution=[Action("g", {})]), '`solution`: "g" is no function'),
    (task(function(**{"return": 1}), solution=[Action("f", {"item": 1})]), "`solution`: f: `item`: 1 is not allowed"),
])
def test_tasks_that_are_none(of: Task, says: str) -> None:
    with pytest.raises(BadTask, match=says):
        DeclaredFunctionsType().check_task(of)


# ---- arguments

@pytest.mark.parametrize(("arguments", "says"), [
    ({}, "f: the argument `a` is missing; the arguments are a, b, c"),
    ({"a": "1"}, 'f: `a`: "1" is not allowed: of type integer'), ({"a": True}, "f: `a`: true is not allowed"),
    ({"a": 0}, "f: `a`: 0 is not allowed: at least 1"),
    ({"a": 1, "z": 1}, "f: `z` is no argument; the arguments are a, b, c"),
    ({"a": 1, "b": "blue"}, 'f: `b`: "blue" is not allowed: one of ["red", "green"]'),
    ({"a": 1, "c": {"d": [1, "x"]}}, 'f: `c.d.1`: "x" is not allowed: of type number'),
    ({"a": 1, "e": "aa"}, "no argument"), ({"a": "x" * 300_000}, "longer than 262,144 characters"),
])
def test_arguments_of_the_wrong_type(arguments: dict[str, Any], says: str) -> None:
    schema = Arguments({"additionalProperties": False, "required": ["a"], "properties": {
        "a": {"type": "integer", "minimum": 1}, "b": {"enum": ["red", "green"]},
        "c": {"type": "object", "properties": {"d": {"type": "array", "items": {"type": "number"}}}}}})
    with pytest.raises(BadAction) as error:
        schema.check("f", arguments)
    assert says in str(error.value) and len(str(error.value)) < 600


def test_a_schema_fetches_nothing_and_takes_no_time() -> None:
    with pytest.raises(BadAction, match="its schema is broken"):
        Arguments({"properties": {"a": {"$ref": "http://198.51.100.1/schema"}}}).check("f", {"a": 1})
    with pytest.raises(BadAction, match="its schema is broken"):
        Arguments({"properties": {"a": {"$ref": "#/properties/a"}}}).check("f", {"a": 1})
    began = time.monotonic()
    with pytest.raises(BadAction):
        Arguments({"properties": {"a": {"pattern": "^(a+)+$"}}}).check("f", {"a": "a" * 40 + "b"})
    assert time.monotonic() - began < 5
    Arguments({"properties": {"a": {"pattern": "^a+$"}}}).check("f", {"a": "aa"})
    for part in ({"maximum": 10**30}, {"description": "half \ud800"}):
        with pytest.raises(BadSchema, match="no JSON schema"):
            Arguments({"properties": {"a": part}})
    with pytest.raises(BadSchema, match="larger than"):
        Arguments({"description": "x" * 40_000})
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    with pytest.raises(BadSchema):
        Arguments(deep)


@pytest.mark.parametrize(("action", "says"), [
    (Action("g", {}), '`name`: "g" is no function; there are f, submit'),
    (Action(5, {}), "`name`: 5 is no function"),  # type: ignore[arg-type]
    (Action("f", [1]), "`arguments`: [1] is not allowed: an object"),  # type: ignore[arg-type]
    (Action("submit", {"answer": ["x"]}), 'submit: `answer`: ["x"] is not allowed: of type string'),
    (Action("submit", {"text": "x"}), "submit: `text` is no argument; the arguments are answer"),
])
async def test_bad_actions_change_nothing(action: Action, says: str) -> None:
    environment = await begun(task(function(**{"return": 1})))
    with pytest.raises(BadAction) as error:
        await environment.step(action, 5)
    assert says in str(error.value)
    assert await said(environment, "f", item="x") == "1"


async def test_nothing_after_submit() -> None:
    environment = await begun(task(function(**{"return": 1}), check={"answer": {"at_least": 3}}))
    assert (await environment.step(Action("submit", {"answer": 3}), 5)).done
    assert (await environment.evaluate()).value == 1
    with pytest.raises(BadAction, match="the episode is over"):
        await said(environment, "f", item="x")


# ---- draws and checks

def test_draws_follow_the_seed() -> None:
    of = task(function(**{"return": "{n} {who.name}"}), goal="Give {n} to {who.name}.",
              draw={"n": {"from": 1, "to": 1000}, "who": [{"name": "Ada", "id": 1}, {"name": "Bo", "id": 2}]},
              check={"calls": [{"name": "f", "arguments": {"{who.name}": "{who.id}"}}]}, state={"{who.name}": "{who}"})
    assert drawn(of, 5) == drawn(of, 5)
    assert len({drawn(of, seed).goal for seed in range(50)}) > 40
    first = drawn(of, None)
    assert first.goal == "Give 1 to Ada." and first.setup["functions"][0]["return"] == "1 Ada"
    assert first.check["calls"][0]["arguments"] == {"Ada": 1}
    assert first.setup["state"] == {"Ada": {"name": "Ada", "id": 1}} and "draw" not in first.setup


@pytest.mark.parametrize(("check", "calls", "answer", "detail"), [
    ({"calls": [{"name": "a", "arguments": {"x": 1}}]}, [Call("a", {"x": 1, "y": 2})], None, ""),
    ({"calls": [{"name": "a", "arguments": {"x": 1}}]}, [Call("a", {"x": 2})], None, 'a was not called with {"x": 1}'),
    ({"calls": [{"name": "a"}]}, [Call("a", {}, failed=True)], None, "a was not called with {}"),
    ({"calls": [{"name": "a", "failed": True}]}, [Call("a", {}, failed=True)], None, ""),
    ({"calls": [{"name": "a"}, {"name": "a"}]}, [Call("a", {})], None, "a was not called"),
    ({"calls": [{"name": "b"}, {"name": "a"}]}, [Call("a", {}), Call("b", {})], None, ""),
    ({"calls": [{"name": "b"}, {"name": "a"}], "in_order": True}, [Call("a", {}), Call("b", {})], None,
     "a was not called after the one before"),
    ({"calls": [{"name": "a"}], "only": True}, [Call("a", {}), Call("b", {})], None, "2 calls were made, 1 are"),
    ({"calls": [{"name": "a"}], "only": True}, [Call("b", {}, failed=True), Call("a", {})], None, ""),
    ({"calls": [{"name": "a"}], "never": ["b"]}, [Call("a", {}), Call("b", {})], None, "b was called, which must"),
    ({"answer": "Rome"}, [], " rome. ", ""), ({"answer": "Rome"}, [], None, "no answer was submitted"),
    ({"answer": 42}, [], "42", ""), ({"answer": 42}, [], "43", 'the answer: "43" is not "42"'),
    ({"answer": {"more_than": 10}}, [], "12.5", ""), ({"answer": {"more_than": 10}}, [], "9", "is not more than 10"),
    ({"answer": {"containing": {"$sum": [20, 22]}}}, [], "It is 42.", ""),
    ({"state": {"a.b": 1}}, [], None, ""), ({"state": {"a.c": 1}}, [], None, "a.c: null is not 1"),
])
def test_checks(check: dict[str, Any], calls: list[Call], answer: str | None, detail: str) -> None:
    outcome = Check(check, ["a", "b"]).evaluate(calls, {"a": {"b": 1}}, answer)
    assert (outcome.value == 1) is (detail == "") and detail in outcome.detail


# ---- what comes back is text that does nothing

@pytest.mark.parametrize(("text", "shown"), [
    ("<script>alert(1)</script><img src=x onerror=alert(1)>", "<script>alert(1)</script><img src=x onerror=alert(1)>"),
    ("\x1b[31mred\x1b]0;title\x07\x00\x9b2J", "\\x1b[31mred\\x1b]0;title\\x07\\x00\\x9b2J"),
    ("a\ud83d\udfffb\ud800", "a\\ud83d\\udfffb\\ud800"), ("\u202egnp.exe\u2066\u200b", "\\u202egnp.exe\\u2066\\u200b"),
    ("tab\tline\r\nend\r", "tab\tline\nend\\x0d"), ("日本 é 😀", "日本 é 😀"), ("\U000e0041", "\\U000e0041"),
])
def test_inert(text: str, shown: str) -> None:
    assert inert(text) == shown
    inert(text).encode()


def test_inert_is_bounded() -> None:
    assert inert("x" * 50_000_000) == "x" * MOST + f"\n[{50_000_000 - MOST:,} more characters are left out]"
    assert len(inert("\0" * 50_000_000)) < MOST + 100


async def test_a_result_as_bad_as_can_be_is_harmless() -> None:
    nasty = "<script>alert(1)</script>\x1b[2J\x00\ud800\u202e" + "x" * 60_000
    environment = await begun(task(function(**{"return": "{text} {$item}"}), state={"text": nasty}))
    result = await environment.step(Action("f", {"item": "\x1b\ud801"}), 5)
    text = result.observation.text
    assert text.startswith("<script>alert(1)</script>\\x1b[2J\\x00\\ud800\\u202exxx")
    assert len(text) < MOST + 100 and text.endswith("more characters are left out]")
    json.dumps(result.observation.data, ensure_ascii=False).encode()
    await environment.step(Action("submit", {"answer": nasty}), 5)
    view = (await environment.view()).text
    view.encode()
    assert len(view) < 3000 and "\x1b" not in view and "f(" in view
    assert (await environment.evaluate()).detail.encode()


async def test_what_it_offers() -> None:
    from openclaw_rl.rollouts.environments.tool_call.plugin import make
    kind = make(EnvironmentConfig(count=1), None)  # type: ignore[arg-type]
    assert await kind.validate() is None and "declares" in kind.sandbox
    environment = await kind.make()
    opening = await environment.reset(task(function(**{"return": 1})), 1)
    assert [tool.name for tool in opening.tools] == ["f", "submit"]
    assert opening.tools[0].parameters == {"additionalProperties": False, **ITEM}
    assert (opening.observation.text, opening.goal) == ("", "Do it.") and "submit" in opening.instructions
    assert (await environment.view()).text == "No function has been called."
    await environment.close()
    await environment.close()
