"""A list of things to do. todo.py FILE: a line each, `[ ] text` or `[x] text`; saved at each change."""

from __future__ import annotations

import os
import sys
import tkinter
from tkinter import ttk

from window import window

path = sys.argv[1]
lines: list[str] = []
if os.path.exists(path):
    with open(path) as file:
        lines = file.read().splitlines()

root = window("To do", 520, 460)
top = ttk.Frame(root)
top.pack(fill="x", padx=12, pady=12)
text = tkinter.StringVar()
ttk.Label(top, text="New:").pack(side="left")
field = ttk.Entry(top, textvariable=text)
field.pack(side="left", fill="x", expand=True, padx=8)
chooser = tkinter.Listbox(root, exportselection=False, borderwidth=0, highlightthickness=1, activestyle="none")
chooser.pack(fill="both", expand=True, padx=12)


def keep(select: int | None = None) -> None:
    with open(path, "w") as file:
        file.writelines(line + "\n" for line in lines)
    show(select)


def show(select: int | None = None) -> None:
    chooser.delete(0, "end")
    for line in lines:
        chooser.insert("end", line)
    if select is not None and 0 <= select < len(lines):
        chooser.selection_set(select)


def add(event: object = None) -> None:
    if text.get().strip():
        lines.append("[ ] " + text.get().strip())
        text.set("")
        keep(len(lines) - 1)


def done() -> None:
    for at in chooser.curselection():  # type: ignore[no-untyped-call]
        lines[at] = ("[ ]" if lines[at].startswith("[x]") else "[x]") + lines[at][3:]
        keep(at)


def move(by: int) -> None:
    for at in chooser.curselection():  # type: ignore[no-untyped-call]
        if 0 <= at + by < len(lines):
            lines[at], lines[at + by] = lines[at + by], lines[at]
            keep(at + by)


def delete() -> None:
    for at in chooser.curselection():  # type: ignore[no-untyped-call]
        del lines[at]
        keep()


ttk.Button(top, text="Add", command=add).pack(side="left")
field.bind("<Return>", add)
field.focus_set()
buttons = ttk.Frame(root)
buttons.pack(fill="x", padx=12, pady=12)
for label, command in (("Done", done), ("Up", lambda: move(-1)), ("Down", lambda: move(1)), ("Delete", delete)):
    ttk.Button(buttons, text=label, command=command).pack(side="left", padx=(0, 8))
show()
root.mainloop()
