"""Screens: what may be done, how it is told in words, and tasks that can't be used. Without a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.gui.actions import Deed, deed
from openclaw_rl.rollouts.environments.gui.plugin import make
from openclaw_rl.rollouts.environments.gui.tree import MOST_TEXT, OBSERVATION_SCHEMA, in_words, windows
from openclaw_rl.rollouts.environments.interface import BadAction, BadTask, Context
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.tasks.task import Action, Task

ROOT = """_NET_CLIENT_LIST_STACKING(WINDOW): window id # 0x600003, 0x40000c
_NET_ACTIVE_WINDOW(WINDOW): window id # 0x40000c
_NET_SUPPORTING_WM_CHECK(WINDOW): window id # 0x200001
"""
TREE = '''
xwininfo: Window id: 0x50d (the root window) (has no name)

  Root window id: 0x50d (the root window) (has no name)
  Parent window id: 0x0 (none)
     5 children:
     0x200034 (has no name): ()  1024x25+0+743  +0+743
        1 child:
        0x200033 (has no name): ()  1x23+944+1  +944+744
     0x20005a (has no name): ()  492x347+0+0  +0+0
        1 child:
        0x40000c "A "quoted": ("name"
title": ("a" "A")  484x316+4+27  +4+27
           1 child:
           0x40001b (has no name): ()  484x316+0+0  +4+27
     0x20006b (has no name): ()  100x100+-20+5  +-20+5
        1 child:
        0x600003 (has no name): ()  90x90+5+5  +-15+10
     0x400077 "menu": ("m" "M")  50x60+7+8  +7+8
     0x200001 "JWM": ()  1x1+0+0  +0+0
'''
VISIBLE = "\n".join(str(id) for id in (0x200034, 0x20005A, 0x20006B, 0x400077))


def sections(widgets: Any = None) -> dict[str, str]:
    found = {"root": ROOT, "tree": TREE, "visible": VISIBLE}
    if widgets is not None:
        found["widgets 0x40001b"] = "1\n" + (widgets if isinstance(widgets, str) else json.dumps(widgets))
    return found


def told(found: dict[str, str]) -> dict[str, Any]:
    there, cut = windows(found)
    text, shortened = in_words((1024, 768), "running", there, "")
    data = {"text": text, "screen": {"width": 1024, "height": 768}, "application": "running", "windows": there,
            "truncated": cut or shortened}
    jsonschema.validate(data, OBSERVATION_SCHEMA)
    text.encode()
    return data


def test_windows_are_told_with_titles_places_and_focus() -> None:
    data = told(sections())
    assert [(w["title"], w["x"], w["y"], w["width"], w["height"], w["focused"], w["popup"]) for w in data["windows"]] \
        == [("", -15, 10, 90, 90, False, False), ('A "quoted": ("name"\ntitle', 4, 27, 484, 316, True, False),
            ("menu", 7, 8, 50, 60, False, True)]
    popup, focused = data["text"].splitlines()[1:3]
    assert popup == "Popup at (7, 8), 50x60; it tells nothing of what is in it"
    assert focused.startswith(r'Window "A \"quoted\": (\"name\"\ntitle" at (4, 27), 484x316, has the focus; ')


def test_widgets_are_told_where_they_belong() -> None:
    data = told(sections([{"window": 0x40001B, "widgets": [
        {"role": "button", "label": "Save", "x": 5, "y": 6, "width": 7, "height": 8, "enabled": False, "focused": True},
        {"role": "field", "label": "Name", "value": "Ann\n\x1b[2J", "x": 1, "y": 2},
        {"role": "checkbox", "label": "On", "checked": False, "x": 1, "y": 2},
        {"role": "list", "items": [{"label": "one", "x": 3, "y": 4, "selected": True}]}]},
        {"window": 0x400077, "widgets": [{"role": "menu", "items": [{"label": "Open", "x": 9, "y": 9}]}]}]))
    assert [len(window["widgets"]) for window in data["windows"]] == [0, 4, 1]
    lines = data["text"].splitlines()
    assert '  button "Save" at (5, 6), has the focus, disabled' in lines
    assert r'  field "Name" = "Ann\n\u001b[2J" at (1, 2)' in lines
    assert '  checkbox "On" at (1, 2), not checked' in lines
    assert '    "one" at (3, 4), selected' in lines
    assert '    "Open" at (9, 9)' in lines


@pytest.mark.parametrize("widgets", [
    "no json", "[" * 100_000, "{}", "null", "[1, null, []]", '[{"window": "x", "widgets": []}]',
    [{"window": 0x40001B, "widgets": 5}], [{"window": 0x40001B}],
    [{"window": 0x40001B, "widgets": [{"role": 1}, None, [], {"label": "x"}]}],
    [{"window": 0x40001B, "widgets": [{"role": "button", "x": 10**30, "y": "1", "label": ["x"], "enabled": 1,
                                       "items": [1, {"label": 5}], "options": [1, "good"], "odd": {}}]}],
    [{"window": 0x40001B, "widgets": [{"role": "text area", "value": "x" * 100_000}]}],
    '[{"window": 4194331, "widgets": [{"role": "button", "label": "\\ud800"}]}]',
    [{"window": 0x40001B, "widgets": [{"role": "button", "label": "x" * 200}] * 5000}],
])
def test_whatever_an_application_publishes_is_bounded(widgets: Any) -> None:
    data = told(sections(widgets))
    assert len(data["text"]) <= MOST_TEXT + 100
    assert len(json.dumps(data)) < 300_000
    assert len(data["windows"]) == 3


@pytest.mark.parametrize("found", [
    {}, {"root": "", "tree": "", "visible": ""}, {"root": ROOT}, {"tree": TREE},
    {"root": ROOT, "tree": '     0x40000c "' + '": (' * 10_000, "visible": "x 1 \u0663"},
    {"root": ROOT, "tree": '     0x40000c "\n' * 100_000},
])
def test_nothing_is_a_screen_too(found: dict[str, str]) -> None:
    assert "There is no window." in told(found)["text"]


def test_actions_become_words_for_xdotool() -> None:
    def said(name: str, **arguments: Any) -> Deed:
        return deed(Action(name, arguments), 1024, 768)

    assert said("click", x=3, y=4).commands == "mousemove 3 4 sleep 0.1 click 1"
    assert said("click", x=3, y=4, button="right", double=True).commands == \
        "mousemove 3 4 sleep 0.1 click --repeat 2 --delay 60 3"
    assert said("scroll", x=0, y=0, amount=-2).commands.endswith("click --repeat 2 --delay 10 4")
    assert "click" not in said("scroll", x=0, y=0, amount=0).commands
    assert said("keys", keys="ctrl+S  alt+F4 A ctrl+- shift+page_down +").commands == " ".join(
        f"key --clearmodifiers {key}" for key in ("ctrl+s", "alt+F4", "A", "ctrl+minus", "shift+Page_Down", "plus"))
    assert said("keys", keys="ctrl++").commands.endswith("ctrl+plus")
    assert said("type", text="--file /etc/passwd\n$(x) é中").typed == "--file /etc/passwd\n$(x) é中"
    assert said("submit").done
    assert said("screenshot") == said("windows") == Deed()


@pytest.mark.parametrize(("name", "arguments", "words"), [
    ("click", {"x": 1024, "y": 0}, ["`x` of `click`", "1024", "from 0 to 1023"]),
    ("click", {"x": 0, "y": -1}, ["`y`", "-1", "from 0 to 767"]),
    ("click", {"x": 1.5, "y": 1}, ["`x`", "1.5", "a whole number"]),
    ("click", {"x": "1; rm", "y": 1}, ["`x`", "'1; rm'"]),
    ("scroll", {"x": 1, "y": 1, "amount": 1000}, ["`amount`", "1000", "-50 to 50"]),
    ("type", {"text": "a\0b"}, ["`text`", "character 2", r"'\x00'", "printable"]),
    ("type", {"text": "a\x1b[A"}, ["`text`", "character 2", "`keys`"]),
    ("type", {"text": "\x7f"}, ["`text`", "character 1"]),
    ("type", {"text": "\ud83d"}, ["`text`", "character 1"]),
    ("type", {"text": "x" * 2001}, ["`text`", "1 to 2,000 characters"]),
    ("type", {"text": "".join(chr(0x4E00 + i) for i in range(49))}, ["`text`", "49 different", "at most 48"]),
    ("keys", {"keys": "Hyper_L"}, ["`keys`", "'Hyper_L'", "'ctrl+s'", "Page_Down"]),
    ("keys", {"keys": "--window 1"}, ["`keys`", "'--window'"]),
    ("keys", {"keys": "ctrl+"}, ["`keys`", "'ctrl+'"]),
    ("keys", {"keys": "ctrl+alt+shift+x+y"}, ["`keys`"]),
    ("keys", {"keys": "  "}, ["`keys`", "0 keys", "1 to 20"]),
    ("keys", {"keys": "a " * 21}, ["`keys`", "21 keys"]),
    ("keys", {"keys": "a\nb;type"}, ["'b;type'"]),
    ("drag", {}, ["'drag'", "`screenshot`, `click`"]),
    ("screenshot", {"x": 1}, ["no argument 'x'", "none"]),
])
def test_bad_actions_are_named(name: str, arguments: Any, words: list[str]) -> None:
    with pytest.raises(BadAction) as caught:
        deed(Action(name, arguments), 1024, 768)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(("setup", "check", "words"), [
    ({"app": "paint"}, None, ["`setup.app`", "'paint'", "calculator, contacts"]),
    ({"app": []}, None, ["`setup.app`", "[]", "the list of a program"]),
    ({"app": ["a", 1]}, None, ["`setup.app`"]),
    ({"app": "todo", "args": "x"}, None, ["`setup.args`", "'x'", "a list of texts"]),
    ({"size": "9000x10"}, None, ["`setup.size`", "'9000x10'", "320x240", "1920x1200"]),
    ({"size": "4000x4000"}, None, ["`setup.size`"]),
    ({"files": {"a": 1}}, None, ["`setup.files`", "paths to texts"]),
    ({"wait": True}, None, ["`setup.wait`", "True", "1 to 120"]),
    ({"apps": "todo"}, None, ["`setup`", "'apps'", "`app`"]),
    ({"run": ["ls"]}, None, ["`setup.run`", "shell text"]),
    ({}, {}, ["`check` is empty"]),
    ({}, {"file": {"path": "a"}}, ["`check.file`", "equals or contains"]),
    ({}, {"file": {"path": "a", "equals": "x", "contains": "y"}}, ["`check.file`"]),
    ({}, {"file": [{"path": 1, "equals": "x"}]}, ["`check.file`"]),
    ({}, {"run": "a\0"}, ["`check.run`"]),
    ({}, {"answer": "x"}, ["`check`", "'answer'", "`run`"]),
])
def test_bad_tasks_are_named(setup: Any, check: Any, words: list[str], tmp_path: Path) -> None:
    config = EnvironmentConfig(count=1)
    kind = make(config, Context("gui", tmp_path, backend(config, tmp_path)))
    with pytest.raises(BadTask) as caught:
        kind.check_task(Task("t", "gui", "g", setup=setup, check={"run": "true"} if check is None else check))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_solution_outside_of_the_screen_is_a_bad_task(tmp_path: Path) -> None:
    config = EnvironmentConfig(count=1)
    kind = make(config, Context("gui", tmp_path, backend(config, tmp_path)))
    task = Task("t", "gui", "g", setup={"size": "640x480"}, check={"run": "true"},
                solution=[Action("submit", {}), Action("click", {"x": 700, "y": 1})])
    with pytest.raises(BadTask, match=r"`solution`, action 2: `x` of `click`: 700 .* from 0 to 639"):
        kind.check_task(task)
