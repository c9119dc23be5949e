"""The content of a screen in words: windows, and the widgets of applications that publish them (apps/widgets.py).

All of it comes out of a sandbox, so nothing about its form is taken for granted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.runtime.json import parse_json

MOST_WINDOWS = 40
MOST_WIDGETS = 300
MOST_TEXT = 12_000  # characters
_VALUE = 300

_INT = {"type": "integer"}
_TEXT = {"type": "string"}
_YES = {"type": "boolean"}
_BOX = {"x": _INT, "y": _INT, "width": _INT, "height": _INT}
_WIDGET = {"type": "object", "additionalProperties": False, "required": ["role"], "properties": {
    "role": _TEXT, "label": _TEXT, "value": _TEXT, **_BOX, "enabled": _YES, "focused": _YES, "checked": _YES,
    "options": {"type": "array", "items": _TEXT},
    "items": {"type": "array", "items": {"type": "object", "additionalProperties": False, "required": ["label"],
                                         "properties": {"label": _TEXT, "x": _INT, "y": _INT, "selected": _YES}}}}}

OBSERVATION_SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False,
    "required": ["text", "screen", "application", "windows", "truncated"],
    "properties": {
        "text": {"type": "string", "description": "windows and widgets in words, with the points to click at"},
        "screen": {"type": "object", "required": ["width", "height"], "additionalProperties": False,
                   "properties": {"width": _INT, "height": _INT}},
        "application": {"enum": ["none", "running", "ended"]},
        "windows": {"type": "array", "items": {
            "type": "object", "additionalProperties": False,
            "required": ["title", "x", "y", "width", "height", "focused", "popup", "widgets"],
            "properties": {"title": _TEXT, **_BOX, "focused": _YES, "popup": _YES,
                           "widgets": {"type": "array", "items": _WIDGET,
                                       "description": "x and y are the middle; empty when the application tells none"}},
        }},
        "truncated": {"type": "boolean", "description": "there is more than is told"},
    },
}


@dataclass(slots=True)
class _Window:
    id: int
    title: str
    box: tuple[int, int, int, int]
    parents: tuple[int, ...]  # outermost first


_HEAD = re.compile(r"( +)(0x[0-9a-f]{1,8}) ")
_TAIL = re.compile(r"  (\d{1,6})x(\d{1,6})\+-?\d{1,6}\+-?\d{1,6}  \+(-?\d{1,6})\+(-?\d{1,6})$")


def windows(sections: Mapping[str, str]) -> tuple[list[dict[str, Any]], bool]:
    """List the visible windows, lowest first, following OBSERVATION_SCHEMA, and say whether some were left out.

    Args:
        sections: output of X's programs: `root` (xprop), `tree` (xwininfo), `visible` (xdotool) and, by
            `widgets ID`, the files of applications.
    """
    there = {window.id: window for window in _tree(sections.get("tree", ""))}
    clients = _ids(sections.get("root", ""), "_NET_CLIENT_LIST_STACKING")
    active = _ids(sections.get("root", ""), "_NET_ACTIVE_WINDOW")
    manager = {id >> 21 for id in _ids(sections.get("root", ""), "_NET_SUPPORTING_WM_CHECK")}
    visible = {int(word) for word in sections.get("visible", "").split() if word.isdecimal()}
    inside = {parent for id in clients if id in there for parent in there[id].parents}
    popups = [window.id for window in there.values() if not window.parents and window.id in visible - inside
              and window.id not in clients and window.id >> 21 not in manager]
    widgets, cut = _widgets(sections)
    found = []
    for id in [*clients, *popups]:
        window = there.get(id)
        if window is None or (window.parents or (id,))[0] not in visible:
            continue  # gone, or hidden
        x, y, width, height = window.box
        own = [widget for inner, many in widgets.items() for widget in many
               if inner == id or (inner in there and id in there[inner].parents)]
        found.append({"title": window.title[:_VALUE], "x": x, "y": y, "width": width, "height": height,
                      "focused": id in active, "popup": id in popups, "widgets": own})
    return found[-MOST_WINDOWS:], cut or len(found) > MOST_WINDOWS


def in_words(size: tuple[int, int], application: str, found: list[dict[str, Any]], notes: str) -> tuple[str, bool]:
    """Render the windows for a model, and say whether the text was cut. Texts of applications are quoted as in JSON."""
    lines = [f"Screen {size[0]}x{size[1]}." + (f" {notes}" if notes else "")]
    if application == "ended":
        lines.append("The application has ended.")
    if not found:
        lines.append("There is no window.")
    for window in sorted(reversed(found), key=lambda window: (not window["popup"], not window["focused"])):
        name = "Popup" if window["popup"] else "Window"
        title = f" {_quoted(window['title'])}" if window["title"] and not window["popup"] else ""
        lines.append(f"{name}{title} at ({window['x']}, {window['y']}), {window['width']}x{window['height']}"
                     f"{', has the focus' if window['focused'] else ''}"
                     f"{':' if window['widgets'] else '; it tells nothing of what is in it'}")
        lines += [f"  {line}" for widget in window["widgets"] for line in _widget_lines(widget)]
    text = "\n".join(lines)
    if len(text) <= MOST_TEXT:
        return text, False
    return text[:MOST_TEXT].rsplit("\n", 1)[0] + "\n(more is left out)", True


def _widget_lines(widget: dict[str, Any]) -> Iterator[str]:
    text = widget["role"]
    if widget.get("label"):
        text += f" {_quoted(widget['label'])}"
    if "value" in widget:
        text += f" = {_quoted(widget['value'])}"
    if widget["role"] != "label" and "items" not in widget and "x" in widget and "y" in widget:
        text += f" at ({widget['x']}, {widget['y']})"
    words = [word for word, key in (("checked", "checked"), ("has the focus", "focused")) if widget.get(key)]
    words += ["disabled"] if widget.get("enabled") is False else []
    words += ["not checked"] if widget.get("checked") is False else []
    if widget.get("options"):
        words.append("one of " + ", ".join(_quoted(option) for option in widget["options"]))
    yield text + (", " + ", ".join(words) if words else "") + (":" if widget.get("items") else "")
    for item in widget.get("items", ()):
        where = f" at ({item['x']}, {item['y']})" if "x" in item and "y" in item else ""
        yield f"  {_quoted(item['label'])}{where}{', selected' if item.get('selected') else ''}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _tree(text: str) -> Iterator[_Window]:
    """Parse xwininfo's lines: indent, id, then "title": (class) or (has no name): (), then size and positions. A title
    may contain line feeds."""
    parents: list[tuple[int, int]] = []  # indent, id
    head, name = None, ""
    for line in text[:1 << 16].split("\n"):
        begun = _HEAD.match(line)
        head, name = (begun, line[begun.end():]) if begun else (head, f"{name}\n{line}"[:2000])
        tail = _TAIL.search(line, max(0, len(line) - 80))
        if head is None or tail is None:
            continue
        indent, id = len(head[1]), int(head[2], 16)
        while parents and parents[-1][0] >= indent:
            parents.pop()
        title = name[1:max(name.rfind('": ('), 1)] if name.startswith('"') else ""
        width, height, x, y = map(int, tail.groups())
        yield _Window(id, title, (x, y, width, height), tuple(parent for _, parent in parents[:20]))
        parents.append((indent, id))
        head, name = None, ""


def _ids(text: str, name: str) -> list[int]:
    line = next((line for line in text.splitlines() if line.startswith(name)), "")
    return [int(id, 16) for id in re.findall(r"0x[0-9a-f]{1,8}", line)]


def _widgets(sections: Mapping[str, str]) -> tuple[dict[int, list[dict[str, Any]]], bool]:
    found: dict[int, list[dict[str, Any]]] = {}
    left, cut = MOST_WIDGETS, False
    for name, text in sections.items():
        if not name.startswith("widgets "):
            continue
        try:
            entries = parse_json(text.partition("\n")[2])
        except ValueError:
            continue
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, dict) or type(entry.get("window")) is not int:
                continue
            many = entry.get("widgets")
            cleaned = [good for widget in (many if isinstance(many, list) else ()) if (good := _clean(widget))]
            cut = cut or len(cleaned) > left
            found.setdefault(entry["window"], []).extend(cleaned[:left])
            left -= min(left, len(cleaned))
    return found, cut


def _clean(widget: object) -> dict[str, Any] | None:
    """Keep only members of the schema, with its types."""
    if not isinstance(widget, dict) or not isinstance(widget.get("role"), str):
        return None
    good = _simple(widget)
    if isinstance(widget.get("items"), list):
        good["items"] = [{"label": "", **_simple(item, ("label", "x", "y", "selected"))}
                         for item in widget["items"][:100] if isinstance(item, dict)]
    if isinstance(widget.get("options"), list):
        good["options"] = [option[:_VALUE] for option in widget["options"][:50] if isinstance(option, str)]
    return good


def _simple(values: Mapping[str, Any], keys: tuple[str, ...] = ("role", "label", "value", "x", "y", "width", "height",
                                                                "enabled", "focused", "checked")) -> dict[str, Any]:
    types = {"role": str, "label": str, "value": str, "x": int, "y": int, "width": int, "height": int}
    found = {key: values[key] for key in keys if type(values.get(key)) is types.get(key, bool)}
    return {key: _cut(value) if isinstance(value, str) else value for key, value in found.items()
            if not isinstance(value, int) or abs(value) < 1 << 31}


def _cut(text: str) -> str:
    text = well_formed(text)
    return text if len(text) <= _VALUE else text[:_VALUE] + "..."
