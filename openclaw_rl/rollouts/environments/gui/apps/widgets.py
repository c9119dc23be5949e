"""Publication of a Tk application's widgets, like an accessibility tree.

Any application can do the same, in any language. Into the folder that the variable DESK_WIDGETS names it writes a file
named after its main window's X id (0x40000c), replaced as a whole: the first line has a number, the rest is JSON:
`[{"window": X id of the window that the widgets are in, "widgets": [{"role", "label", "value", "x", "y", "width",
"height", "enabled", "focused", "checked", "items"}, ...]}, ...]`, x and y being the middle on the screen, and items
having label, x, y and selected. When the property _DESK_ASK of its main window changes, it writes the file anew, with
the number that is then in the file `serial` of that folder. Events come in order, so by then it has done all that was
clicked and typed before.
"""

from __future__ import annotations

import json
import os
import tkinter
from typing import Any

_TEXT = 2000  # characters of a value
_ITEMS = 100  # of one list
_NAMES: dict[str, str] = {}  # by Tk's path


def name(widget: tkinter.Widget, text: str) -> None:
    """Name a widget whose name can't be derived from the labels around it."""
    _NAMES[str(widget)] = text


def publish(root: tkinter.Tk) -> None:
    folder = os.environ.get("DESK_WIDGETS")
    if not folder:
        return
    path = os.path.join(folder, hex(root.winfo_id()))

    def write() -> None:
        try:
            with open(os.path.join(folder, "serial")) as file:
                serial = file.read().strip()
        except OSError:
            serial = "0"
        with open(path + ".new", "w") as file:
            file.write(serial + "\n" + json.dumps(_Tree(root).windows()))
        os.replace(path + ".new", path)

    root.bind("<Property>", lambda event: root.after_idle(write))
    root.after_idle(write)


class _Tree:
    """Queries Tcl, since tkinter does not know the widgets that Tk's own scripts make."""

    def __init__(self, root: tkinter.Tk) -> None:
        self.call = root.tk.call
        self.split = root.tk.splitlist
        self.focus = str(self.call("focus"))

    def windows(self) -> list[dict[str, Any]]:
        found: dict[str, list[dict[str, Any]]] = {}
        self._walk(".", ".", found)
        return [{"window": int(str(self.call("winfo", "id", path)), 16), "widgets": _labelled(widgets)}
                for path, widgets in found.items()]

    def _walk(self, path: str, window: str, found: dict[str, list[dict[str, Any]]]) -> None:
        if not int(self.call("winfo", "viewable", path)):
            return
        kind = str(self.call("winfo", "class", path))
        if path == str(self.call("winfo", "toplevel", path)):
            window = path
        widget = self._widget(path, kind)
        if widget:
            found.setdefault(window, []).append(widget)
        for child in self.split(self.call("winfo", "children", path)):
            self._walk(str(child), window, found)

    def _widget(self, path: str, kind: str) -> dict[str, Any] | None:
        read = _READERS.get(kind)
        if read is None:
            return None
        x, y = (int(self.call("winfo", name, path)) for name in ("rootx", "rooty"))
        width, height = (int(self.call("winfo", name, path)) for name in ("width", "height"))
        widget = {"x": x + width // 2, "y": y + height // 2, "width": width, "height": height,
                  "focused": path == self.focus, **read(self, path)}
        try:
            widget["enabled"] = str(self.call(path, "cget", "-state")) != "disabled"
        except tkinter.TclError:
            pass  # it has no state
        if path in _NAMES:
            widget["label"] = _NAMES[path]
        for item in widget.get("items", ()):
            item["x"] += x
            item["y"] += y
        return widget

    def get(self, path: str, option: str) -> str:
        return str(self.call(path, "cget", option))[:_TEXT]

    def label(self, path: str) -> dict[str, Any]:
        return {"role": "label", "label": self.get(path, "-text")}

    def button(self, path: str) -> dict[str, Any]:
        return {"role": "button", "label": self.get(path, "-text")}

    def field(self, path: str) -> dict[str, Any]:
        return {"role": "field", "value": str(self.call(path, "get"))[:_TEXT]}

    def choice(self, path: str) -> dict[str, Any]:
        options = [str(value) for value in self.split(self.call(path, "cget", "-values"))]
        return {"role": "choice", "value": str(self.call(path, "get"))[:_TEXT], "options": options[:_ITEMS]}

    def checkbox(self, path: str) -> dict[str, Any]:
        return {"role": "checkbox", "label": self.get(path, "-text"), "checked": self._selected(path)}

    def radio(self, path: str) -> dict[str, Any]:
        return {"role": "radio button", "label": self.get(path, "-text"), "checked": self._selected(path)}

    def _selected(self, path: str) -> bool:
        return bool(int(self.call(path, "instate", "selected")))

    def slider(self, path: str) -> dict[str, Any]:
        return {"role": "slider", "value": f"{float(self.call(path, 'get')):g}, from {self.get(path, '-from')} "
                                           f"to {self.get(path, '-to')}"}

    def text(self, path: str) -> dict[str, Any]:
        return {"role": "text area", "value": str(self.call(path, "get", "1.0", "end-1c"))[:_TEXT]}

    def listbox(self, path: str) -> dict[str, Any]:
        chosen = {int(i) for i in self.split(self.call(path, "curselection"))}
        items = []
        for i in range(min(int(self.call(path, "size")), _ITEMS)):
            box = self.split(self.call(path, "bbox", i))
            if box:
                items.append({"label": str(self.call(path, "get", i)), "selected": i in chosen,
                              **_middle([int(n) for n in box])})
        return {"role": "list", "items": items}

    def table(self, path: str) -> dict[str, Any]:
        chosen = set(self.split(self.call(path, "selection")))
        items = []
        for row in self.split(self.call(path, "children", ""))[:_ITEMS]:
            box = self.split(self.call(path, "bbox", row))
            if box:
                cells = [str(self.call(path, "item", row, "-text")),
                         *(str(value) for value in self.split(self.call(path, "item", row, "-values")))]
                items.append({"label": " | ".join(cell for cell in cells if cell), "selected": row in chosen,
                              **_middle([int(n) for n in box])})
        return {"role": "table", "items": items}

    def tabs(self, path: str) -> dict[str, Any]:
        chosen = int(self.call(path, "index", "current"))
        seen: dict[int, list[int]] = {}
        for x in range(0, int(self.call("winfo", "width", path)), 4):
            index = str(self.call(path, "identify", "tab", x, 12))
            if index:
                seen.setdefault(int(index), []).append(x)
        return {"role": "tabs", "items": [{"label": str(self.call(path, "tab", i, "-text")), "selected": i == chosen,
                                           "x": sum(xs) // len(xs), "y": 12} for i, xs in seen.items()]}

    def menu(self, path: str) -> dict[str, Any]:
        bar = self.get(path, "-type") == "menubar"
        last = str(self.call(path, "index", "end"))
        items = []
        for i in range(int(last) + 1 if last.isdigit() else 0):
            kind = str(self.call(path, "type", i))
            if kind not in ("separator", "tearoff"):
                x, y = int(self.call(path, "xposition", i)), int(self.call(path, "yposition", i))
                items.append({"label": str(self.call(path, "entrycget", i, "-label")), "x": x + 20, "y": y + 12,
                              "selected": False})
        return {"role": "menu bar" if bar else "menu", "items": items}


_READERS = {"Label": _Tree.label, "TLabel": _Tree.label, "Button": _Tree.button, "TButton": _Tree.button,
            "Entry": _Tree.field, "TEntry": _Tree.field, "TSpinbox": _Tree.field, "TCombobox": _Tree.choice,
            "TCheckbutton": _Tree.checkbox, "TRadiobutton": _Tree.radio, "Scale": _Tree.slider, "Text": _Tree.text,
            "Listbox": _Tree.listbox, "Treeview": _Tree.table, "TNotebook": _Tree.tabs, "Menu": _Tree.menu}


def _middle(box: list[int]) -> dict[str, int]:
    return {"x": box[0] + min(box[2], 200) // 2, "y": box[1] + box[3] // 2}


def _labelled(widgets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name widgets without a text of their own after the label left of them, or else above them."""
    labels = [widget for widget in widgets if widget["role"] == "label" and widget["label"]]
    used = set()
    for widget in widgets:
        if "label" in widget or "items" in widget:
            continue
        left, top = widget["x"] - widget["width"] // 2, widget["y"] - widget["height"] // 2
        beside = [(left - label["x"], label) for label in labels
                  if label["x"] < left and abs(label["y"] - widget["y"]) <= widget["height"] // 2]
        above = [(top - label["y"], label) for label in labels
                 if 0 < top - label["y"] < 40 and abs(label["x"] - label["width"] // 2 - left) < 40]
        nearest = min(beside or above, key=lambda pair: pair[0], default=None)
        if nearest:
            widget["label"] = nearest[1]["label"].rstrip(":")
            used.add(id(nearest[1]))
    return [widget for widget in widgets if id(widget) not in used and widget.get("label") != ""]
